"""SqueezeNet."""

from __future__ import annotations

from typing import Any

from flowmx.gluon import nn
from flowmx.gluon.contrib.nn import HybridConcurrent
from flowmx.gluon.model_zoo.model_store import Root
from flowmx.gluon.model_zoo.vision.classifier import Classifier
from flowmx.gluon.model_zoo.vision.making import filled, maker
from flowmx.gluon.parameter import Contexts

__all__ = ["SqueezeNet", "get_squeezenet", "squeezenet1_0", "squeezenet1_1"]

# The first convolution's channels and kernel; then the squeezed channels of each fire module, which expands them to
# eight times as many, and None for a pooling layer.
_VERSIONS: dict[str, tuple[int, int, list[int | None]]] = {
    "1.0": (96, 7, [None, 16, 16, 32, None, 32, 48, 48, 64, None, 64]),
    "1.1": (64, 3, [None, 16, 16, None, 32, 32, None, 48, 48, 64, 64]),
}


class SqueezeNet(Classifier):
    """SqueezeNet (Iandola et al., AlexNet-level accuracy with 50x fewer parameters, 2016).

    Args:
        version: ``"1.0"``, or ``"1.1"``, which computes less.
        classes: the number of classes.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: another version.
    """

    def __init__(self, version: str, classes: int = 1000, **kwargs: Any) -> None:
        if version not in _VERSIONS:
            raise ValueError(f"SqueezeNet: version is {version!r}, expected '1.0' or '1.1'")
        super().__init__(**kwargs)
        channels, kernel, modules = _VERSIONS[version]
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="")
            self.features.add(nn.Conv2D(channels, kernel_size=kernel, strides=2), nn.Activation("relu"))
            for squeezed in modules:
                pool = squeezed is None
                self.features.add(nn.MaxPool2D(3, 2, ceil_mode=True) if pool else _fire(squeezed or 0))
            self.features.add(nn.Dropout(0.5))
            self.output = _convolution(classes, 1)
            self.output.add(nn.AvgPool2D(13), nn.Flatten())


def _fire(squeezed: int) -> nn.HybridSequential:
    made = _convolution(squeezed, 1)
    out = nn.HybridSequential(prefix="")
    paths = HybridConcurrent(axis=1, prefix="")
    paths.add(_convolution(4 * squeezed, 1), _convolution(4 * squeezed, 3, 1))
    out.add(made, paths)
    return out


def _convolution(channels: int, kernel_size: int, padding: int = 0) -> nn.HybridSequential:
    out = nn.HybridSequential(prefix="")
    out.add(nn.Conv2D(channels, kernel_size, padding=padding), nn.Activation("relu"))
    return out


def get_squeezenet(
    version: str, pretrained: bool = False, ctx: Contexts = None, root: Root = None, **kwargs: Any
) -> SqueezeNet:
    """SqueezeNet of a version.

    Args:
        version: ``"1.0"`` or ``"1.1"``.
        pretrained: load the weights that MXNet published, fetched where they are not there.
        ctx: their device or devices (default: the CPU).
        root: the folder of the file; see ``model_store.get_model_file``.
        **kwargs: arguments of :class:`SqueezeNet`.
    """
    return filled(SqueezeNet(version, **kwargs), f"squeezenet{version}", pretrained, ctx, root)


squeezenet1_0, squeezenet1_1 = (
    maker(f"squeezenet{version.replace('.', '_')}", get_squeezenet, version, doc=f"SqueezeNet {version}.")
    for version in _VERSIONS
)
