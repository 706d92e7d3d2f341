"""The order in which the steps of a graph run."""

from __future__ import annotations

from flowmx.graph.graph import Graph
from flowmx.graph.node import Node, topological


def order(graph: Graph) -> tuple[list[Node], list[Node]]:
    """The operators of the forward pass, and of the backward pass, in the order to run them in."""
    forward = graph.forward()
    before = set(forward)
    backward = [node for node in topological(graph.gradients.values()) if not node.is_variable and node not in before]
    return forward, backward
