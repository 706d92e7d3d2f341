"""Selection of the nodes that are quantized."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from flowmx.graph.node import Node
from flowmx.ops.registry.traits import Quantization

__all__ = ["select_nodes"]


def select_nodes(
    nodes: Sequence[Node], excluded: Collection[str], excluded_operators: Collection[str], everything: bool
) -> dict[Node, Quantization]:
    """Return the nodes to quantize, with their quantized forms.

    Args:
        nodes: a graph, inputs before users.
        excluded: names of excluded nodes.
        excluded_operators: names of excluded operators.
        everything: quantize all that can be; otherwise, operators that do not pay off alone only between others.
    """
    forms: dict[Node, Quantization] = {}
    for node in nodes:
        form = None if node.op is None else node.op.traits.quantized
        if form is None or node.op is None or node.op.name in excluded_operators:
            continue
        if not any(name in excluded for name in _names(node)):
            forms[node] = form
    if everything:
        return forms
    always = [node for node, form in forms.items() if form.always]
    before = _spread(always, {node: [entry.node for entry in node.inputs] for node in nodes}, forms)
    after = _spread(always, _users(nodes), forms)
    return {node: form for node, form in forms.items() if form.always or (node in before and node in after)}


def _names(node: Node) -> Iterable[str]:
    """Iterate over the names of a node and of those in its body."""
    yield node.name
    for body in node.op.subgraphs if node.op is not None else ():
        yield from (inner.name for inner in body.nodes if not inner.is_variable)


def _users(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    users: dict[Node, list[Node]] = {}
    for node in nodes:
        for entry in node.inputs:
            users.setdefault(entry.node, []).append(node)
    return users


def _spread(
    start: Iterable[Node], neighbors: Mapping[Node, Sequence[Node]], allowed: Mapping[Node, Quantization]
) -> set[Node]:
    """Return the allowed nodes that do not pay off alone and are connected to the start through such nodes."""
    reached: set[Node] = set()
    queue = list(start)
    while queue:
        for node in neighbors.get(queue.pop(), ()):
            if node in allowed and not allowed[node].always and node not in reached:
                reached.add(node)
                queue.append(node)
    return reached
