"""The choice of the nodes that are quantized."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from flowmx.graph.node import Node
from flowmx.ops.registry.traits import Quantization

__all__ = ["marked"]


def marked(
    nodes: Sequence[Node], excluded: Collection[str], excluded_operators: Collection[str], everything: bool
) -> dict[Node, Quantization]:
    """The nodes to quantize, with their quantized forms.

    Args:
        nodes: a graph, inputs before users.
        excluded: names of nodes that stay as they are.
        excluded_operators: names of operators whose nodes do.
        everything: quantize all that can be; else what is not worth it by itself only between nodes that are.
    """
    found: dict[Node, Quantization] = {}
    for node in nodes:
        form = None if node.op is None else node.op.traits.quantized
        if form is None or node.op is None or node.op.name in excluded_operators:
            continue
        if not any(name in excluded for name in _names(node)):
            found[node] = form
    if everything:
        return found
    always = [node for node, form in found.items() if form.always]
    before = _spread(always, {node: [entry.node for entry in node.inputs] for node in nodes}, found)
    after = _spread(always, _users(nodes), found)
    return {node: form for node, form in found.items() if form.always or (node in before and node in after)}


def _names(node: Node) -> Iterable[str]:
    """The names of a node, and of those in its body."""
    yield node.name
    for body in node.op.subgraphs if node.op is not None else ():
        yield from (each.name for each in body.nodes if not each.is_variable)


def _users(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    found: dict[Node, list[Node]] = {}
    for node in nodes:
        for entry in node.inputs:
            found.setdefault(entry.node, []).append(node)
    return found


def _spread(
    start: Iterable[Node], neighbours: Mapping[Node, Sequence[Node]], allowed: Mapping[Node, Quantization]
) -> set[Node]:
    """The nodes that are not quantized by themselves, reached from some over others of their kind."""
    reached: set[Node] = set()
    left = list(start)
    while left:
        for node in neighbours.get(left.pop(), ()):
            if node in allowed and not allowed[node].always and node not in reached:
                reached.add(node)
                left.append(node)
    return reached
