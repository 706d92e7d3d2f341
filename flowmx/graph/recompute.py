"""Recomputation: values that the backward pass computes again, so that they need not be kept."""

from __future__ import annotations

from flowmx.graph.graph import Graph, Options


def recompute(graph: Graph, options: Options) -> Graph:
    """Compute again what the options say, or what must be to fit into their budget."""
    return graph
