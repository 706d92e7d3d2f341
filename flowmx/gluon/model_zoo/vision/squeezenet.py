"""SqueezeNet."""

from __future__ import annotations

from typing import Any, Unpack

from flowmx.gluon import nn
from flowmx.gluon.contrib.nn import HybridConcurrent
from flowmx.gluon.model_zoo.model_store import Root
from flowmx.gluon.model_zoo.vision.builders import load_pretrained, model_function
from flowmx.gluon.model_zoo.vision.classifier import Classifier
from flowmx.gluon.parameter import Contexts
from flowmx.gluon.scope import BlockOptions

__all__ = ["SqueezeNet", "get_squeezenet", "squeezenet1_0", "squeezenet1_1"]

# The first convolution's channels and kernel size; then the squeezed channels of each fire module, which expands them
# eightfold, and None for a pooling layer.
_VERSIONS: dict[str, tuple[int, int, list[int | None]]] = {
    "1.0": (96, 7, [None, 16, 16, 32, None, 32, 48, 48, 64, None, 64]),
    "1.1": (64, 3, [None, 16, 16, None, 32, 32, None, 48, 48, 64, 64]),
}


class SqueezeNet(Classifier):
    """SqueezeNet (Iandola et al., AlexNet-level accuracy with 50x fewer parameters, 2016).

    Args:
        version: ``"1.0"``, or ``"1.1"``, which is faster.
        classes: the number of classes.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: the version is unknown.
    """

    def __init__(self, version: str, classes: int = 1000, **kwargs: Unpack[BlockOptions]) -> None:
        if version not in _VERSIONS:
            raise ValueError(f"SqueezeNet: version is {version!r}, expected '1.0' or '1.1'")
        super().__init__(**kwargs)
        channels, kernel, modules = _VERSIONS[version]
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="")
            self.features.add(nn.Conv2D(channels, kernel_size=kernel, strides=2), nn.Activation("relu"))
            for squeeze in modules:
                pool = squeeze is None
                self.features.add(nn.MaxPool2D(3, 2, ceil_mode=True) if pool else _fire(squeeze or 0))
            self.features.add(nn.Dropout(0.5))
            self.output = _convolution(classes, 1)
            self.output.add(nn.AvgPool2D(13), nn.Flatten())


def _fire(channels: int) -> nn.HybridSequential:
    squeeze = _convolution(channels, 1)
    out = nn.HybridSequential(prefix="")
    paths = HybridConcurrent(axis=1, prefix="")
    paths.add(_convolution(4 * channels, 1), _convolution(4 * channels, 3, 1))
    out.add(squeeze, paths)
    return out


def _convolution(channels: int, kernel_size: int, padding: int = 0) -> nn.HybridSequential:
    out = nn.HybridSequential(prefix="")
    out.add(nn.Conv2D(channels, kernel_size, padding=padding), nn.Activation("relu"))
    return out


def get_squeezenet(
    version: str, pretrained: bool = False, ctx: Contexts = None, root: Root = None, **kwargs: Any
) -> SqueezeNet:
    """Make the SqueezeNet of this version.

    Args:
        version: ``"1.0"`` or ``"1.1"``.
        pretrained: load the weights that MXNet published, downloading them if needed.
        ctx: the device or devices of the weights (default: the CPU).
        root: the folder of the weights; see ``model_store.get_model_file``.
        **kwargs: arguments of :class:`SqueezeNet`.
    """
    return load_pretrained(SqueezeNet(version, **kwargs), f"squeezenet{version}", pretrained, ctx, root)


squeezenet1_0, squeezenet1_1 = (
    model_function(f"squeezenet{version.replace('.', '_')}", get_squeezenet, version, doc=f"SqueezeNet {version}.")
    for version in _VERSIONS
)
