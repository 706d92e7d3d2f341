"""Data iterators (``mx.io``): batches, one after another.

Every iterator works in a ``for`` loop and in an ``async for`` loop, and returns its position (``state()``), so that
training can resume in the middle of an epoch (``set_state``). Iterators over files split them among workers
(``num_parts``, ``part_index``).
"""

from flowmx.io.data_iter import DataBatch, DataDesc, DataIter
from flowmx.io.image_det_record import ImageDetRecordIter
from flowmx.io.image_record import (
    ImageRecordInt8Iter,
    ImageRecordIter,
    ImageRecordIter_v1,
    ImageRecordUInt8Iter,
    ImageRecordUInt8Iter_v1,
)
from flowmx.io.mnist import MNISTIter
from flowmx.io.ndarray_iter import NDArrayIter
from flowmx.io.text import CSVIter, LibSVMIter
from flowmx.io.wrappers import PrefetchingIter, ResizeIter

__all__ = [
    "CSVIter", "DataBatch", "DataDesc", "DataIter", "ImageDetRecordIter", "ImageRecordInt8Iter", "ImageRecordIter",
    "ImageRecordIter_v1", "ImageRecordUInt8Iter", "ImageRecordUInt8Iter_v1", "LibSVMIter", "MNISTIter", "NDArrayIter",
    "PrefetchingIter", "ResizeIter",
]  # fmt: skip
