"""Data iterators (``mx.io``): batches, one after the other.

Every iterator works in a ``for`` loop and in an ``async for`` loop.
"""

from flowmx.io.base import DataBatch, DataDesc, DataIter
from flowmx.io.memory import NDArrayIter
from flowmx.io.wrapping import PrefetchingIter, ResizeIter

__all__ = ["DataBatch", "DataDesc", "DataIter", "NDArrayIter", "PrefetchingIter", "ResizeIter"]
