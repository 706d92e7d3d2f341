"""MobileNet, versions 1 and 2."""

from __future__ import annotations

from typing import Any, Unpack

from flowmx.gluon import nn
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.model_zoo.model_store import Root
from flowmx.gluon.model_zoo.vision.builders import load_pretrained, model_function
from flowmx.gluon.model_zoo.vision.classifier import Classifier
from flowmx.gluon.parameter import Contexts
from flowmx.gluon.scope import BlockOptions
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = [
    "MobileNet", "MobileNetV2", "get_mobilenet", "get_mobilenet_v2", "mobilenet0_5", "mobilenet0_25", "mobilenet0_75",
    "mobilenet1_0", "mobilenet_v2_0_5", "mobilenet_v2_0_25", "mobilenet_v2_0_75", "mobilenet_v2_1_0",
]  # fmt: skip


class RELU6(HybridBlock):
    """Clips the input to the range from 0 to 6."""

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        return F.clip(x, 0, 6, name="relu6")


class _ConvolutionStack(nn.HybridSequential):
    """A sequence of convolutions, each followed by batch normalization and, unless it is ``linear``, by ReLU."""

    def convolve(
        self, channels: int, kernel: int = 1, stride: int = 1, pad: int = 0, groups: int = 1, linear: bool = False,
        relu6: bool = False,
    ) -> None:  # fmt: skip
        """Add a convolution, BatchNorm, and unless ``linear``, an activation: ReLU, or ReLU6 if ``relu6`` is True."""
        self.add(nn.Conv2D(channels, kernel, stride, pad, groups=groups, use_bias=False), nn.BatchNorm())
        if not linear:
            self.add(RELU6() if relu6 else nn.Activation("relu"))

    def _alias(self) -> str:
        return "hybridsequential"


class LinearBottleneck(HybridBlock):
    """A block of MobileNet v2: expand the channels, convolve each channel, and reduce them without an activation.

    Args:
        in_channels: the number of input channels.
        channels: the number of output channels.
        t: the expansion factor of the channels.
        stride: the stride of the convolution of each channel.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(self, in_channels: int, channels: int, t: int, stride: int, **kwargs: Unpack[BlockOptions]) -> None:
        super().__init__(**kwargs)
        self.use_shortcut = stride == 1 and in_channels == channels
        expanded = in_channels * t
        with self.name_scope():
            self.out = _ConvolutionStack()
            self.out.convolve(expanded, relu6=True)
            self.out.convolve(expanded, kernel=3, stride=stride, pad=1, groups=expanded, relu6=True)
            self.out.convolve(channels, linear=True)

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        out = self.out(x)
        return F.elemwise_add(out, x) if self.use_shortcut else out


class MobileNet(Classifier):
    """MobileNet (Howard et al., Efficient Convolutional Neural Networks for Mobile Vision Applications, 2017).

    Args:
        multiplier: the factor of the channels.
        classes: the number of classes.
        **kwargs: ``prefix`` and ``params``.
    """

    widths = (32, 64, 128, 128, 256, 256, *(512,) * 6, 1024, 1024)
    strides = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)

    def __init__(self, multiplier: float = 1.0, classes: int = 1000, **kwargs: Unpack[BlockOptions]) -> None:
        super().__init__(**kwargs)
        widths = [int(width * multiplier) for width in self.widths]
        with self.name_scope():
            self.features = _ConvolutionStack(prefix="")
            with self.features.name_scope():
                self.features.convolve(widths[0], kernel=3, pad=1, stride=2)
                for before, after, stride in zip(widths, widths[1:], self.strides, strict=False):
                    self.features.convolve(before, kernel=3, stride=stride, pad=1, groups=before)
                    self.features.convolve(after)
                self.features.add(nn.GlobalAvgPool2D(), nn.Flatten())
            self.output = nn.Dense(classes)


class MobileNetV2(Classifier):
    """MobileNet v2 (Sandler et al., Inverted Residuals and Linear Bottlenecks, CVPR 2018).

    Args:
        multiplier: the factor of the channels.
        classes: the number of classes.
        **kwargs: ``prefix`` and ``params``.
    """

    widths = (32, 16, *(24,) * 2, *(32,) * 3, *(64,) * 4, *(96,) * 3, *(160,) * 3, 320)
    strides = (1, 2, 1, 2, 1, 1, 2, *(1,) * 6, 2, 1, 1, 1)

    def __init__(self, multiplier: float = 1.0, classes: int = 1000, **kwargs: Unpack[BlockOptions]) -> None:
        super().__init__(**kwargs)
        widths = [int(width * multiplier) for width in self.widths]
        with self.name_scope():
            self.features = _ConvolutionStack(prefix="features_")
            with self.features.name_scope():
                self.features.convolve(widths[0], kernel=3, stride=2, pad=1, relu6=True)
                for index, (before, after, stride) in enumerate(zip(widths, widths[1:], self.strides, strict=False)):
                    self.features.add(LinearBottleneck(before, after, 6 if index else 1, stride))
                self.features.convolve(int(1280 * multiplier) if multiplier > 1.0 else 1280, relu6=True)
                self.features.add(nn.GlobalAvgPool2D())
            self.output = nn.HybridSequential(prefix="output_")
            with self.output.name_scope():
                self.output.add(nn.Conv2D(classes, 1, use_bias=False, prefix="pred_"), nn.Flatten())


def _version(multiplier: float) -> str:
    """Return the width multiplier in the format of file names: "1.0", "0.75", "0.5", "0.25"."""
    text = f"{multiplier:.2f}"
    return text[:-1] if text in ("1.00", "0.50") else text


def get_mobilenet(
    multiplier: float, pretrained: bool = False, ctx: Contexts = None, root: Root = None, **kwargs: Any
) -> MobileNet:
    """Make a MobileNet with a width multiplier.

    Args:
        multiplier: the factor of the channels; weights are published for 1.0, 0.75, 0.5 and 0.25.
        pretrained: load the weights that MXNet published, downloading them if needed.
        ctx: the device or devices of the weights (default: the CPU).
        root: the folder of the weights; see ``model_store.get_model_file``.
        **kwargs: arguments of :class:`MobileNet`.
    """
    return load_pretrained(MobileNet(multiplier, **kwargs), f"mobilenet{_version(multiplier)}", pretrained, ctx, root)


def get_mobilenet_v2(
    multiplier: float, pretrained: bool = False, ctx: Contexts = None, root: Root = None, **kwargs: Any
) -> MobileNetV2:
    """Make a MobileNet v2 with a width multiplier; the arguments are those of :func:`get_mobilenet`."""
    net = MobileNetV2(multiplier, **kwargs)
    return load_pretrained(net, f"mobilenetv2_{_version(multiplier)}", pretrained, ctx, root)


_WIDTHS = (1.0, 0.75, 0.5, 0.25)
mobilenet1_0, mobilenet0_75, mobilenet0_5, mobilenet0_25 = (
    model_function(
        f"mobilenet{_version(width).replace('.', '_')}", get_mobilenet, width, doc=f"MobileNet of width {width}."
    )
    for width in _WIDTHS
)
mobilenet_v2_1_0, mobilenet_v2_0_75, mobilenet_v2_0_5, mobilenet_v2_0_25 = (
    model_function(
        f"mobilenet_v2_{_version(width).replace('.', '_')}", get_mobilenet_v2, width,
        doc=f"MobileNet v2 of width {width}.",
    )
    for width in _WIDTHS
)  # fmt: skip
