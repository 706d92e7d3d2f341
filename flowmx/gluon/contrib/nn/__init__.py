"""Further layers: ``mx.gluon.contrib.nn``."""

from flowmx.gluon.contrib.nn import basic_layers
from flowmx.gluon.contrib.nn.basic_layers import (
    Concurrent,
    HybridConcurrent,
    Identity,
    PixelShuffle1D,
    PixelShuffle2D,
    PixelShuffle3D,
    SparseEmbedding,
    SyncBatchNorm,
)

__all__ = [
    "Concurrent", "HybridConcurrent", "Identity", "PixelShuffle1D", "PixelShuffle2D", "PixelShuffle3D",
    "SparseEmbedding", "SyncBatchNorm", "basic_layers",
]  # fmt: skip
