"""DenseNet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from flowmx.gluon import nn
from flowmx.gluon.contrib.nn import HybridConcurrent, Identity
from flowmx.gluon.model_zoo.model_store import Root
from flowmx.gluon.model_zoo.vision.builders import load_pretrained, model_function
from flowmx.gluon.model_zoo.vision.classifier import Classifier
from flowmx.gluon.parameter import Contexts
from flowmx.gluon.scope import BlockOptions

__all__ = ["DenseNet", "densenet121", "densenet161", "densenet169", "densenet201", "get_densenet"]

densenet_spec = {
    121: (64, 32, [6, 12, 24, 16]),
    161: (96, 48, [6, 12, 36, 24]),
    169: (64, 32, [6, 12, 32, 32]),
    201: (64, 32, [6, 12, 48, 32]),
}
"""For each number of layers: the first channels, the channels that a layer adds, and the layers of each block."""


class DenseNet(Classifier):
    """DenseNet-BC (Huang et al., Densely Connected Convolutional Networks, CVPR 2017).

    Args:
        num_init_features: the channels of the first convolution.
        growth_rate: the number of channels that each layer adds.
        block_config: the number of layers of each block.
        bn_size: the channels between the two convolutions of a layer, as a multiple of the growth rate.
        dropout: the fraction of a layer's outputs that are dropped in training.
        classes: the number of classes.
        **kwargs: ``prefix`` and ``params``.
    """

    def __init__(
        self, num_init_features: int, growth_rate: int, block_config: Sequence[int], bn_size: int = 4,
        dropout: float = 0, classes: int = 1000, **kwargs: Unpack[BlockOptions],
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="")
            self.features.add(nn.Conv2D(num_init_features, kernel_size=7, strides=2, padding=3, use_bias=False))
            self.features.add(nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(3, 2, 1))
            channels = num_init_features
            for stage, layers in enumerate(block_config, 1):
                self.features.add(_block(layers, bn_size, growth_rate, dropout, stage))
                channels += layers * growth_rate
                if stage < len(block_config):
                    channels //= 2
                    self.features.add(_transition(channels))
            self.features.add(nn.BatchNorm(), nn.Activation("relu"), nn.AvgPool2D(pool_size=7), nn.Flatten())
            self.output = nn.Dense(classes)


def _block(layers: int, bn_size: int, growth_rate: int, dropout: float, stage: int) -> nn.HybridSequential:
    out = nn.HybridSequential(prefix=f"stage{stage}_")
    with out.name_scope():
        for _ in range(layers):
            out.add(_layer(growth_rate, bn_size, dropout))
    return out


def _conv_unit(channels: int, **convolution: Any) -> list[nn.HybridBlock]:
    """Return the layers of a pre-activation convolution: normalization, ReLU, convolution."""
    return [nn.BatchNorm(), nn.Activation("relu"), nn.Conv2D(channels, use_bias=False, **convolution)]


def _layer(growth_rate: int, bn_size: int, dropout: float) -> HybridConcurrent:
    branch = nn.HybridSequential(prefix="")
    branch.add(*_conv_unit(bn_size * growth_rate, kernel_size=1), *_conv_unit(growth_rate, kernel_size=3, padding=1))
    if dropout:
        branch.add(nn.Dropout(dropout))
    out = HybridConcurrent(axis=1, prefix="")
    out.add(Identity(), branch)
    return out


def _transition(channels: int) -> nn.HybridSequential:
    out = nn.HybridSequential(prefix="")
    out.add(*_conv_unit(channels, kernel_size=1), nn.AvgPool2D(pool_size=2, strides=2))
    return out


def get_densenet(
    num_layers: int, pretrained: bool = False, ctx: Contexts = None, root: Root = None, **kwargs: Any
) -> DenseNet:
    """Make the DenseNet with ``num_layers`` layers.

    Args:
        num_layers: 121, 161, 169 or 201.
        pretrained: load the weights that MXNet published, downloading them if needed.
        ctx: the device or devices of the weights (default: the CPU).
        root: the folder of the weights; see ``model_store.get_model_file``.
        **kwargs: arguments of :class:`DenseNet`.

    Raises:
        ValueError: the number of layers is unknown.
    """
    if num_layers not in densenet_spec:
        raise ValueError(f"get_densenet: num_layers is {num_layers}, expected one of {list(densenet_spec)}")
    net = DenseNet(*densenet_spec[num_layers], **kwargs)
    return load_pretrained(net, f"densenet{num_layers}", pretrained, ctx, root)


densenet121, densenet161, densenet169, densenet201 = (
    model_function(f"densenet{layers}", get_densenet, layers, doc=f"DenseNet with {layers} layers.")
    for layers in densenet_spec
)
