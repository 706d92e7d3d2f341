"""Images with boxes (``mx.image.detection``): augmenters that transform both, and iterators over batches.

The label of an image is an array with a row for each object: its class, then left, top, right and bottom as fractions
of the image's width and height, then other values.
"""

from flowmx.image.detection.augmenters import (
    CreateDetAugmenter,
    CreateMultiRandCropAugmenter,
    DetAugmenter,
    DetBorrowAug,
    DetHorizontalFlipAug,
    DetRandomCropAug,
    DetRandomPadAug,
    DetRandomSelectAug,
)
from flowmx.image.detection.iterator import ImageDetIter

__all__ = [
    "CreateDetAugmenter", "CreateMultiRandCropAugmenter", "DetAugmenter", "DetBorrowAug", "DetHorizontalFlipAug",
    "DetRandomCropAug", "DetRandomPadAug", "DetRandomSelectAug", "ImageDetIter",
]  # fmt: skip
