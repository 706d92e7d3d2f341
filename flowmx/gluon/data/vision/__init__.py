"""Data sets of images, and their transforms: ``mx.gluon.data.vision``."""

from flowmx.gluon.data.vision import datasets, transforms
from flowmx.gluon.data.vision.datasets import (
    CIFAR10,
    CIFAR100,
    MNIST,
    FashionMNIST,
    ImageFolderDataset,
    ImageListDataset,
    ImageRecordDataset,
)

__all__ = [
    "CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "ImageFolderDataset", "ImageListDataset", "ImageRecordDataset",
    "datasets", "transforms",
]  # fmt: skip
