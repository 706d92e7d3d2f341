"""Inception v3.

A branch is a tuple of convolutions (channels, kernel, strides, padding), optionally preceded by the name of a pooling
layer. A module concatenates branches along the channels.
"""

from __future__ import annotations

from typing import Any, Unpack

from flowmx.gluon import nn
from flowmx.gluon.contrib.nn import HybridConcurrent
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.model_zoo.model_store import Root
from flowmx.gluon.model_zoo.vision.builders import load_pretrained
from flowmx.gluon.model_zoo.vision.classifier import Classifier
from flowmx.gluon.parameter import Contexts
from flowmx.gluon.scope import BlockOptions

__all__ = ["Inception3", "inception_v3"]

Convolution = tuple[object, ...]

_ONE_BY_SEVEN = ((1, 7), 1, (0, 3))
_SEVEN_BY_ONE = ((7, 1), 1, (3, 0))


def _convolution(
    channels: int, kernel: int | tuple[int, int], strides: int | tuple[int, int] = 1, padding: int | tuple[int, int] = 0
) -> nn.HybridSequential:
    out = nn.HybridSequential(prefix="")
    out.add(nn.Conv2D(channels, kernel, strides, padding, use_bias=False))
    out.add(nn.BatchNorm(epsilon=0.001), nn.Activation("relu"))
    return out


def _branch(*convolutions: str | Convolution) -> nn.HybridSequential:
    out = nn.HybridSequential(prefix="")
    for convolution in convolutions:
        if convolution == "avg":
            out.add(nn.AvgPool2D(pool_size=3, strides=1, padding=1))
        elif convolution == "max":
            out.add(nn.MaxPool2D(pool_size=3, strides=2))
        else:
            out.add(_convolution(*convolution))
    return out


def _concatenate(*branches: HybridBlock) -> HybridConcurrent:
    out = HybridConcurrent(axis=1, prefix="")
    out.add(*branches)
    return out


def _chain(*blocks: HybridBlock) -> nn.HybridSequential:
    out = nn.HybridSequential(prefix="")
    out.add(*blocks)
    return out


# -- the branches of each kind of module, named as in MXNet -------------------------------------------------


def _a(pool_channels: int) -> list[HybridBlock]:
    return [
        _branch((64, 1)),
        _branch((48, 1), (64, 5, 1, 2)),
        _branch((64, 1), (96, 3, 1, 1), (96, 3, 1, 1)),
        _branch("avg", (pool_channels, 1)),
    ]


def _b() -> list[HybridBlock]:
    return [_branch((384, 3, 2)), _branch((64, 1), (96, 3, 1, 1), (96, 3, 2)), _branch("max")]


def _c(narrow: int) -> list[HybridBlock]:
    return [
        _branch((192, 1)),
        _branch((narrow, 1), (narrow, *_ONE_BY_SEVEN), (192, *_SEVEN_BY_ONE)),
        _branch(
            (narrow, 1), (narrow, *_SEVEN_BY_ONE), (narrow, *_ONE_BY_SEVEN), (narrow, *_SEVEN_BY_ONE),
            (192, *_ONE_BY_SEVEN),
        ),
        _branch("avg", (192, 1)),
    ]  # fmt: skip


def _d() -> list[HybridBlock]:
    return [
        _branch((192, 1), (320, 3, 2)),
        _branch((192, 1), (192, *_ONE_BY_SEVEN), (192, *_SEVEN_BY_ONE), (192, 3, 2)),
        _branch("max"),
    ]


def _e() -> list[HybridBlock]:
    def split() -> HybridConcurrent:
        return _concatenate(_branch((384, (1, 3), 1, (0, 1))), _branch((384, (3, 1), 1, (1, 0))))

    return [
        _branch((320, 1)),
        _chain(_branch((384, 1)), split()),
        _chain(_branch((448, 1), (384, 3, 1, 1)), split()),
        _branch("avg", (192, 1)),
    ]


# -- the network -------------------------------------------------------------------------------------------

_MODULES = (
    ("A1_", _a, 32), ("A2_", _a, 64), ("A3_", _a, 64), ("B_", _b), ("C1_", _c, 128), ("C2_", _c, 160),
    ("C3_", _c, 160), ("C4_", _c, 192), ("D_", _d), ("E1_", _e), ("E2_", _e),
)  # fmt: skip


def _module(prefix: str, make: Any, *sizes: int) -> HybridConcurrent:
    out = HybridConcurrent(axis=1, prefix=prefix)
    with out.name_scope():
        out.add(*make(*sizes))
    return out


class Inception3(Classifier):
    """Inception v3, for images of 299 x 299 (Szegedy et al., Rethinking the Inception Architecture, CVPR 2016).

    Args:
        classes: the number of classes.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(self, classes: int = 1000, **kwargs: Unpack[BlockOptions]) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="")
            self.features.add(_convolution(32, 3, 2), _convolution(32, 3), _convolution(64, 3, padding=1))
            self.features.add(nn.MaxPool2D(pool_size=3, strides=2))
            self.features.add(_convolution(80, 1), _convolution(192, 3), nn.MaxPool2D(pool_size=3, strides=2))
            for module in _MODULES:
                self.features.add(_module(*module))
            self.features.add(nn.AvgPool2D(pool_size=8), nn.Dropout(0.5))
            self.output = nn.Dense(classes)


def inception_v3(pretrained: bool = False, ctx: Contexts = None, root: Root = None, **kwargs: Any) -> Inception3:
    """Make an Inception v3.

    Args:
        pretrained: load the weights that MXNet published, downloading them if needed.
        ctx: the device or devices of the weights (default: the CPU).
        root: the folder of the weights; see ``model_store.get_model_file``.
        **kwargs: arguments of :class:`Inception3`.
    """
    return load_pretrained(Inception3(**kwargs), "inceptionv3", pretrained, ctx, root)
