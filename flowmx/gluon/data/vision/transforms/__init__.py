"""Changes of images, as blocks: ``mx.gluon.data.vision.transforms``.

An image has the shape (height, width, channels) up to :class:`ToTensor`, and (channels, height, width) after it.

What is random draws, for an array, from the generator that ``mx.random.seed`` seeds and that a `DataLoader` starts anew
for each batch: so it is the same in whichever process or thread. Composed with symbols it is an operator.
"""

from flowmx.gluon.data.vision.transforms.composing import Compose, HybridCompose, HybridRandomApply, RandomApply
from flowmx.gluon.data.vision.transforms.geometry import (
    CenterCrop,
    CropResize,
    RandomCrop,
    RandomFlipLeftRight,
    RandomFlipTopBottom,
    RandomResizedCrop,
    RandomRotation,
    Resize,
    Rotate,
)
from flowmx.gluon.data.vision.transforms.values import (
    Cast,
    Normalize,
    RandomBrightness,
    RandomColorJitter,
    RandomContrast,
    RandomGray,
    RandomHue,
    RandomLighting,
    RandomSaturation,
    ToTensor,
)

__all__ = [
    "Cast", "CenterCrop", "Compose", "CropResize", "HybridCompose", "HybridRandomApply", "Normalize", "RandomApply",
    "RandomBrightness", "RandomColorJitter", "RandomContrast", "RandomCrop", "RandomFlipLeftRight",
    "RandomFlipTopBottom", "RandomGray", "RandomHue", "RandomLighting", "RandomResizedCrop", "RandomRotation",
    "RandomSaturation", "Resize", "Rotate", "ToTensor",
]  # fmt: skip
