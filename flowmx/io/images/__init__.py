"""`ImageRecordIter`: images from a RecordIO file, decoded and augmented by threads, ahead of who trains on them.

`records` finds the records, `options` are its many parameters, `augment` changes an image as MXNet's default augmenter
does, `colours` its colours, `normalize` puts it into the batch, `iterator` fetches batches ahead.
"""

from flowmx.io.images.iterator import (
    ImageRecordInt8Iter,
    ImageRecordIter,
    ImageRecordIter_v1,
    ImageRecordUInt8Iter,
    ImageRecordUInt8Iter_v1,
)

__all__ = [
    "ImageRecordInt8Iter", "ImageRecordIter", "ImageRecordIter_v1", "ImageRecordUInt8Iter", "ImageRecordUInt8Iter_v1",
]  # fmt: skip
