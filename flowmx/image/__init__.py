"""Images (``mx.image``): reading, augmentation, and iterators over batches.

`functions` transform one image, `augmenters` are such transforms as objects, `iterator` applies them to batches of
files, `detection` does both for images with boxes. Random transforms draw from Python's and NumPy's generators, as in
MXNet: see `flowmx.data.rng`.
"""

from flowmx.image import detection
from flowmx.image import detection as det
from flowmx.image.augmenters import (
    Augmenter,
    BrightnessJitterAug,
    CastAug,
    CenterCropAug,
    ColorJitterAug,
    ColorNormalizeAug,
    ContrastJitterAug,
    CreateAugmenter,
    ForceResizeAug,
    HorizontalFlipAug,
    HueJitterAug,
    LightingAug,
    RandomCropAug,
    RandomGrayAug,
    RandomOrderAug,
    RandomSizedCropAug,
    ResizeAug,
    SaturationJitterAug,
    SequentialAug,
)
from flowmx.image.detection import (
    CreateDetAugmenter,
    CreateMultiRandCropAugmenter,
    DetAugmenter,
    DetBorrowAug,
    DetHorizontalFlipAug,
    DetRandomCropAug,
    DetRandomPadAug,
    DetRandomSelectAug,
    ImageDetIter,
)
from flowmx.image.functions import (
    center_crop,
    color_normalize,
    copyMakeBorder,
    fixed_crop,
    imdecode,
    imread,
    imresize,
    imrotate,
    random_crop,
    random_rotate,
    random_size_crop,
    resize_short,
    scale_down,
)
from flowmx.image.iterator import ImageIter

__all__ = [
    "Augmenter", "BrightnessJitterAug", "CastAug", "CenterCropAug", "ColorJitterAug", "ColorNormalizeAug",
    "ContrastJitterAug", "CreateAugmenter", "CreateDetAugmenter", "CreateMultiRandCropAugmenter", "DetAugmenter",
    "DetBorrowAug", "DetHorizontalFlipAug", "DetRandomCropAug", "DetRandomPadAug", "DetRandomSelectAug",
    "ForceResizeAug", "HorizontalFlipAug", "HueJitterAug", "ImageDetIter", "ImageIter", "LightingAug", "RandomCropAug",
    "RandomGrayAug", "RandomOrderAug", "RandomSizedCropAug", "ResizeAug", "SaturationJitterAug", "SequentialAug",
    "center_crop", "color_normalize", "copyMakeBorder", "det", "detection", "fixed_crop", "imdecode", "imread",
    "imresize", "imrotate", "random_crop", "random_rotate", "random_size_crop", "resize_short", "scale_down",
]  # fmt: skip
