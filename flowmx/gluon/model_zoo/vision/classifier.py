"""The base class of image classifiers: a stack of feature layers, and an output layer."""

from __future__ import annotations

from flowmx.gluon import nn
from flowmx.gluon.hybrid import HybridBlock, Layer
from flowmx.ops.registry.tensors import Functions, Tensor


class Classifier(Layer):
    """A model with the children ``features`` and ``output``, for images of shape (batch, 3, height, width)."""

    features: nn.HybridSequential
    output: HybridBlock

    def hybrid_forward(self, F: Functions, x: Tensor) -> Tensor:
        scores: Tensor = self.output(self.features(x))
        return scores
