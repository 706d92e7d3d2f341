"""Filters in the order that kernels want, copied once and kept."""

from __future__ import annotations

from flowmx.graph.graph import Graph, Options


def pack_filters(graph: Graph, options: Options) -> Graph:
    """Let convolutions read packed filters."""
    return graph
