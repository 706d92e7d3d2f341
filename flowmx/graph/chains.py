"""Chains of elementwise operators become one loop over memory."""

from __future__ import annotations

from flowmx.graph.graph import Graph, Options


def fuse_chains(graph: Graph, options: Options) -> Graph:
    """One node for each group of elementwise operators that one loop can compute."""
    return graph
