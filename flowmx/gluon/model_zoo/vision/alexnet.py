"""AlexNet."""

from __future__ import annotations

from typing import Any, Unpack

from flowmx.gluon import nn
from flowmx.gluon.model_zoo.model_store import Root
from flowmx.gluon.model_zoo.vision.builders import load_pretrained
from flowmx.gluon.model_zoo.vision.classifier import Classifier
from flowmx.gluon.parameter import Contexts
from flowmx.gluon.scope import BlockOptions

__all__ = ["AlexNet", "alexnet"]


class AlexNet(Classifier):
    """AlexNet on one device (Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014).

    Args:
        classes: the number of classes.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(self, classes: int = 1000, **kwargs: Unpack[BlockOptions]) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="")
            with self.features.name_scope():
                self.features.add(
                    nn.Conv2D(64, kernel_size=11, strides=4, padding=2, activation="relu"),
                    nn.MaxPool2D(pool_size=3, strides=2),
                    nn.Conv2D(192, kernel_size=5, padding=2, activation="relu"),
                    nn.MaxPool2D(pool_size=3, strides=2),
                    *(nn.Conv2D(n, kernel_size=3, padding=1, activation="relu") for n in (384, 256, 256)),
                    nn.MaxPool2D(pool_size=3, strides=2),
                    nn.Flatten(),
                )
                for _ in range(2):
                    self.features.add(nn.Dense(4096, activation="relu"), nn.Dropout(0.5))
            self.output = nn.Dense(classes)


def alexnet(pretrained: bool = False, ctx: Contexts = None, root: Root = None, **kwargs: Any) -> AlexNet:
    """Make an AlexNet.

    Args:
        pretrained: load the weights that MXNet published, downloading them if needed.
        ctx: the device or devices of the weights (default: the CPU).
        root: the folder of the weights; see ``model_store.get_model_file``.
        **kwargs: arguments of :class:`AlexNet`.
    """
    return load_pretrained(AlexNet(**kwargs), "alexnet", pretrained, ctx, root)
