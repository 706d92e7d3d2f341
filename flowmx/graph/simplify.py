"""What can be said with fewer nodes: constants, the same thing twice, nodes that change nothing."""

from __future__ import annotations

from flowmx.graph.graph import Graph, Options


def fold_constants(graph: Graph, options: Options) -> Graph:
    """Compute what depends on no variable now."""
    return graph


def merge_common(graph: Graph, options: Options) -> Graph:
    """Compute the same thing once."""
    return graph


def drop_identities(graph: Graph, options: Options) -> Graph:
    """Leave out nodes that give back what they are given."""
    return graph
