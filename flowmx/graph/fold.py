"""Prediction: a BatchNorm goes into the layer before it."""

from __future__ import annotations

from flowmx.graph.graph import Graph, Options


def fold_normalization(graph: Graph, options: Options) -> Graph:
    """Scale and shift in the convolution or product, in place of normalising after it."""
    return graph
