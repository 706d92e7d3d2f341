"""ResNet, versions 1 and 2.

Version 1 normalizes after the convolutions of a block, version 2 before them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Unpack

from flowmx.gluon import nn
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.model_zoo.model_store import Root
from flowmx.gluon.model_zoo.vision.builders import load_pretrained, model_function
from flowmx.gluon.model_zoo.vision.classifier import Classifier
from flowmx.gluon.parameter import Contexts
from flowmx.gluon.scope import BlockOptions
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = [
    "BasicBlockV1", "BasicBlockV2", "BottleneckV1", "BottleneckV2", "ResNetV1", "ResNetV2", "get_resnet", "resnet18_v1",
    "resnet18_v2", "resnet34_v1", "resnet34_v2", "resnet50_v1", "resnet50_v2", "resnet101_v1", "resnet101_v2",
    "resnet152_v1", "resnet152_v2",
]  # fmt: skip


def _conv3x3(channels: int, stride: int, in_channels: int) -> nn.Conv2D:
    return nn.Conv2D(channels, 3, stride, 1, use_bias=False, in_channels=in_channels)


class _BlockV1(HybridBlock):
    """Convolutions and a shortcut, added and followed by ReLU.

    Args:
        channels: the number of output channels.
        stride: the stride of the block.
        downsample: add a convolution to the shortcut, because the shapes differ.
        in_channels: the number of input channels (default: inferred at the first call).
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self, channels: int, stride: int, downsample: bool = False, in_channels: int = 0, **kwargs: Unpack[BlockOptions]
    ) -> None:
        super().__init__(**kwargs)
        self.body = nn.HybridSequential(prefix="")
        convolutions = self._convolutions(channels, stride, in_channels)
        for convolution in convolutions:
            self.body.add(*([nn.Activation("relu")] if len(self.body) else []), convolution, nn.BatchNorm())
        self.downsample: nn.HybridSequential | None = None
        if downsample:
            self.downsample = nn.HybridSequential(prefix="")
            shortcut = nn.Conv2D(channels, 1, stride, use_bias=False, in_channels=in_channels)
            self.downsample.add(shortcut, nn.BatchNorm())

    def _convolutions(self, channels: int, stride: int, in_channels: int) -> Sequence[HybridBlock]:
        raise NotImplementedError

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        return F.Activation(shortcut + self.body(x), act_type="relu")


class BasicBlockV1(_BlockV1):
    """Two 3x3 convolutions (He et al., Deep Residual Learning for Image Recognition, CVPR 2016)."""

    def _convolutions(self, channels: int, stride: int, in_channels: int) -> Sequence[HybridBlock]:
        return _conv3x3(channels, stride, in_channels), _conv3x3(channels, 1, channels)


class BottleneckV1(_BlockV1):
    """A 3x3 convolution of a quarter of the channels, between two 1x1 convolutions."""

    def _convolutions(self, channels: int, stride: int, in_channels: int) -> Sequence[HybridBlock]:
        narrow = channels // 4
        return nn.Conv2D(narrow, 1, stride), _conv3x3(narrow, 1, narrow), nn.Conv2D(channels, 1, 1)


class _BlockV2(HybridBlock):
    """Pre-activation convolutions and a shortcut; the arguments are those of version 1."""

    def __init__(
        self, channels: int, stride: int, downsample: bool = False, in_channels: int = 0, **kwargs: Unpack[BlockOptions]
    ) -> None:
        super().__init__(**kwargs)
        self._depth = 0
        for convolution in self._convolutions(channels, stride, in_channels):
            self._depth += 1
            setattr(self, f"bn{self._depth}", nn.BatchNorm())
            setattr(self, f"conv{self._depth}", convolution)
        self.downsample: nn.Conv2D | None = None
        if downsample:
            self.downsample = nn.Conv2D(channels, 1, stride, use_bias=False, in_channels=in_channels)

    def _convolutions(self, channels: int, stride: int, in_channels: int) -> Sequence[HybridBlock]:
        raise NotImplementedError

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        shortcut = x
        for depth in range(1, self._depth + 1):
            x = F.Activation(getattr(self, f"bn{depth}")(x), act_type="relu")
            if depth == 1 and self.downsample is not None:
                shortcut = self.downsample(x)
            x = getattr(self, f"conv{depth}")(x)
        return x + shortcut


class BasicBlockV2(_BlockV2):
    """Two 3x3 convolutions (He et al., Identity Mappings in Deep Residual Networks, ECCV 2016)."""

    def _convolutions(self, channels: int, stride: int, in_channels: int) -> Sequence[HybridBlock]:
        return _conv3x3(channels, stride, in_channels), _conv3x3(channels, 1, channels)


class BottleneckV2(_BlockV2):
    """A 3x3 convolution of a quarter of the channels, between two 1x1 convolutions."""

    def _convolutions(self, channels: int, stride: int, in_channels: int) -> Sequence[HybridBlock]:
        narrow = channels // 4
        first = nn.Conv2D(narrow, kernel_size=1, strides=1, use_bias=False)
        middle = _conv3x3(narrow, stride, narrow)
        return first, middle, nn.Conv2D(channels, kernel_size=1, strides=1, use_bias=False)


class _ResNet(Classifier):
    """A first convolution, followed by stages of blocks.

    Args:
        block: the class of the blocks.
        layers: the number of blocks of each stage.
        channels: the channels of the first convolution, and of each stage.
        classes: the number of classes.
        thumbnail: for small images, such as 32 x 32: begin with a 3x3 convolution, without pooling.
        **kwargs: ``prefix`` and ``params``.

    Raises:
        ValueError: there is not exactly one more number of channels than of layers.
    """

    normalized: ClassVar[bool]
    """Whether the features begin and end with batch normalization, as in version 2."""

    def __init__(
        self, block: Callable[..., HybridBlock], layers: Sequence[int], channels: Sequence[int], classes: int = 1000,
        thumbnail: bool = False, **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        if len(layers) != len(channels) - 1:
            raise ValueError(
                f"{type(self).__name__}: {len(layers)} layers and {len(channels)} channels were given, expected one "
                "more channel than layers"
            )
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="")
            if self.normalized:
                self.features.add(nn.BatchNorm(scale=False, center=False))
            self.features.add(*_first_layers(channels[0], thumbnail))
            for stage, count in enumerate(layers, 1):
                self.features.add(_stage(block, count, channels[stage - 1], channels[stage], stage))
            if self.normalized:
                self.features.add(nn.BatchNorm(), nn.Activation("relu"))
            self.features.add(nn.GlobalAvgPool2D())
            if self.normalized:
                self.features.add(nn.Flatten())
            self.output = nn.Dense(classes, in_units=channels[-1])


def _first_layers(channels: int, thumbnail: bool) -> list[HybridBlock]:
    if thumbnail:
        return [_conv3x3(channels, 1, 0)]
    first = nn.Conv2D(channels, 7, 2, 3, use_bias=False)
    return [first, nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(3, 2, 1)]


def _stage(
    block: Callable[..., HybridBlock], count: int, in_channels: int, channels: int, stage: int
) -> nn.HybridSequential:
    out = nn.HybridSequential(prefix=f"stage{stage}_")
    with out.name_scope():
        out.add(block(channels, 1 if stage == 1 else 2, channels != in_channels, in_channels=in_channels, prefix=""))
        out.add(*(block(channels, 1, False, in_channels=channels, prefix="") for _ in range(count - 1)))
    return out


class ResNetV1(_ResNet):
    """ResNet (He et al., Deep Residual Learning for Image Recognition, CVPR 2016).

    The arguments are ``block``, ``layers`` (blocks of each stage), ``channels`` (of the first convolution and of each
    stage), ``classes`` (1000), and ``thumbnail`` for small images.
    """

    normalized = False


class ResNetV2(_ResNet):
    """ResNet v2 (He et al., Identity Mappings in Deep Residual Networks, ECCV 2016); arguments as for version 1."""

    normalized = True


resnet_spec = {
    18: ("basic_block", [2, 2, 2, 2], [64, 64, 128, 256, 512]),
    34: ("basic_block", [3, 4, 6, 3], [64, 64, 128, 256, 512]),
    50: ("bottle_neck", [3, 4, 6, 3], [64, 256, 512, 1024, 2048]),
    101: ("bottle_neck", [3, 4, 23, 3], [64, 256, 512, 1024, 2048]),
    152: ("bottle_neck", [3, 8, 36, 3], [64, 256, 512, 1024, 2048]),
}
"""For each number of layers: the kind of block, and the layers and channels of each stage."""
resnet_net_versions = [ResNetV1, ResNetV2]
resnet_block_versions: list[dict[str, Callable[..., HybridBlock]]] = [
    {"basic_block": BasicBlockV1, "bottle_neck": BottleneckV1},
    {"basic_block": BasicBlockV2, "bottle_neck": BottleneckV2},
]


def get_resnet(
    version: int, num_layers: int, pretrained: bool = False, ctx: Contexts = None, root: Root = None, **kwargs: Any
) -> _ResNet:
    """Make the ResNet of this version with ``num_layers`` layers.

    Args:
        version: 1 or 2.
        num_layers: 18, 34, 50, 101 or 152.
        pretrained: load the weights that MXNet published, downloading them if needed.
        ctx: the device or devices of the weights (default: the CPU).
        root: the folder of the weights; see ``model_store.get_model_file``.
        **kwargs: arguments of :class:`ResNetV1`.

    Raises:
        ValueError: the version or the number of layers is unknown.
    """
    if num_layers not in resnet_spec or version not in (1, 2):
        raise ValueError(
            f"get_resnet: version {version} with {num_layers} layers is unknown, expected 1 or 2 with one of "
            f"{list(resnet_spec)}"
        )
    kind, layers, channels = resnet_spec[num_layers]
    net = resnet_net_versions[version - 1](resnet_block_versions[version - 1][kind], layers, channels, **kwargs)
    return load_pretrained(net, f"resnet{num_layers}_v{version}", pretrained, ctx, root)


def _model_functions(version: int) -> Iterator[Callable[..., _ResNet]]:
    return (
        model_function(
            f"resnet{layers}_v{version}", get_resnet, version, layers, doc=f"ResNet v{version} with {layers} layers."
        )
        for layers in resnet_spec
    )


resnet18_v1, resnet34_v1, resnet50_v1, resnet101_v1, resnet152_v1 = _model_functions(1)
resnet18_v2, resnet34_v2, resnet50_v2, resnet101_v2, resnet152_v2 = _model_functions(2)
