"""VGG, with and without batch normalization."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowmx.gluon import nn
from flowmx.gluon.model_zoo.model_store import Root
from flowmx.gluon.model_zoo.vision.builders import load_pretrained, model_function
from flowmx.gluon.model_zoo.vision.classifier import Classifier
from flowmx.gluon.parameter import Contexts
from flowmx.initializer import Xavier

__all__ = ["VGG", "get_vgg", "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn"]

vgg_spec = {
    11: ([1, 1, 2, 2, 2], [64, 128, 256, 512, 512]),
    13: ([2, 2, 2, 2, 2], [64, 128, 256, 512, 512]),
    16: ([2, 2, 3, 3, 3], [64, 128, 256, 512, 512]),
    19: ([2, 2, 4, 4, 4], [64, 128, 256, 512, 512]),
}
"""For each number of layers: the number of convolutions of each stage, and their channels."""


class VGG(Classifier):
    """VGG (Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition, 2015).

    Args:
        layers: the number of convolutions of each stage.
        filters: the channels of each stage.
        classes: the number of classes.
        batch_norm: normalize after each convolution.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: the numbers of filters and layers differ.
    """

    def __init__(
        self, layers: Sequence[int], filters: Sequence[int], classes: int = 1000, batch_norm: bool = False,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        if len(layers) != len(filters):
            raise ValueError(f"VGG: {len(layers)} layers and {len(filters)} filters were given, expected equal numbers")
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = self._convolutions(layers, filters, batch_norm)
            for _ in range(2):
                self.features.add(nn.Dense(4096, activation="relu", weight_initializer="normal"), nn.Dropout(rate=0.5))
            self.output = nn.Dense(classes, weight_initializer="normal")

    def _convolutions(self, layers: Sequence[int], filters: Sequence[int], batch_norm: bool) -> nn.HybridSequential:
        stages = nn.HybridSequential(prefix="")
        for count, channels in zip(layers, filters, strict=True):
            for _ in range(count):
                init = Xavier(rnd_type="gaussian", factor_type="out", magnitude=2)
                stages.add(nn.Conv2D(channels, kernel_size=3, padding=1, weight_initializer=init))
                if batch_norm:
                    stages.add(nn.BatchNorm())
                stages.add(nn.Activation("relu"))
            stages.add(nn.MaxPool2D(strides=2))
        return stages


def get_vgg(num_layers: int, pretrained: bool = False, ctx: Contexts = None, root: Root = None, **kwargs: Any) -> VGG:
    """Make the VGG with ``num_layers`` layers.

    Args:
        num_layers: 11, 13, 16 or 19.
        pretrained: load the weights that MXNet published, downloading them if needed.
        ctx: the device or devices of the weights (default: the CPU).
        root: the folder of the weights; see ``model_store.get_model_file``.
        **kwargs: arguments of :class:`VGG`.

    Raises:
        ValueError: the number of layers is unknown.
    """
    if num_layers not in vgg_spec:
        raise ValueError(f"get_vgg: num_layers is {num_layers}, expected one of {list(vgg_spec)}")
    name = f"vgg{num_layers}{'_bn' if kwargs.get('batch_norm') else ''}"
    return load_pretrained(VGG(*vgg_spec[num_layers], **kwargs), name, pretrained, ctx, root)


def _plain(layers: int) -> Callable[..., VGG]:
    return model_function(f"vgg{layers}", get_vgg, layers, doc=f"VGG with {layers} layers.")


def _with_batch_norm(layers: int) -> Callable[..., VGG]:
    doc = f"VGG with {layers} layers and batch normalization."
    return model_function(f"vgg{layers}_bn", get_vgg, layers, doc=doc, batch_norm=True)


vgg11, vgg13, vgg16, vgg19 = (_plain(layers) for layers in vgg_spec)
vgg11_bn, vgg13_bn, vgg16_bn, vgg19_bn = (_with_batch_norm(layers) for layers in vgg_spec)
