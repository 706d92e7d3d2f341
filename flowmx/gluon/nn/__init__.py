"""Layers: ``mx.gluon.nn``."""

from flowmx.gluon.block import Block, HybridBlock, SymbolBlock
from flowmx.gluon.nn.activations import ELU, GELU, SELU, Activation, LeakyReLU, PReLU, SiLU, Swish
from flowmx.gluon.nn.attention import MultiHeadAttention
from flowmx.gluon.nn.basic_layers import (
    Dense,
    Dropout,
    Embedding,
    Flatten,
    HybridLambda,
    HybridSequential,
    Lambda,
    Sequential,
)
from flowmx.gluon.nn.conv_layers import (
    AvgPool1D,
    AvgPool2D,
    AvgPool3D,
    Conv1D,
    Conv1DTranspose,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    Conv3DTranspose,
    GlobalAvgPool1D,
    GlobalAvgPool2D,
    GlobalAvgPool3D,
    GlobalMaxPool1D,
    GlobalMaxPool2D,
    GlobalMaxPool3D,
    MaxPool1D,
    MaxPool2D,
    MaxPool3D,
    ReflectionPad2D,
)
from flowmx.gluon.nn.gated import GEGLU, GLU, SwiGLU
from flowmx.gluon.nn.norm_layers import BatchNorm, BatchNormReLU, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from flowmx.gluon.nn.positions import LearnedPositions, RotaryPositions
from flowmx.gluon.nn.transformer import (
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from flowmx.lazy import lazy_attributes

__all__ = [
    "ELU", "GEGLU", "GELU", "GLU", "SELU", "Activation", "AvgPool1D", "AvgPool2D", "AvgPool3D", "BatchNorm",
    "BatchNormReLU", "Block", "Conv1D", "Conv1DTranspose", "Conv2D", "Conv2DTranspose", "Conv3D", "Conv3DTranspose",
    "Dense", "Dropout", "Embedding", "Flatten", "GlobalAvgPool1D", "GlobalAvgPool2D", "GlobalAvgPool3D",
    "GlobalMaxPool1D", "GlobalMaxPool2D", "GlobalMaxPool3D", "GroupNorm", "HybridBlock", "HybridLambda",
    "HybridSequential", "InstanceNorm", "Lambda", "LayerNorm", "LeakyReLU", "LearnedPositions", "MaxPool1D",
    "MaxPool2D", "MaxPool3D", "MultiHeadAttention", "PReLU", "RMSNorm", "ReflectionPad2D", "RotaryPositions",
    "Sequential", "SiLU", "SwiGLU", "Swish", "SymbolBlock", "TransformerDecoder", "TransformerDecoderLayer",
    "TransformerEncoder", "TransformerEncoderLayer",
]  # fmt: skip

__getattr__, __dir__ = lazy_attributes(__name__, others={"linear": "Dense", "module": "HybridBlock", "conv": "Conv2D"})
