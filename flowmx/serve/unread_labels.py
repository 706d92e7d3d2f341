"""Removal of the computation of labels, which predictions do not read.

A symbol that was saved for training and prediction may compute the label of an output layer from the user's label, as
an SSD does with ``MultiBoxTarget``. The forward pass of an output layer does not read its label.
"""

from __future__ import annotations

from collections.abc import Collection

from flowmx.graph.node import Entry, Node
from flowmx.symbol import Symbol

__all__ = ["without_computed_labels"]

_INPUTS = ("data", "label")


def without_computed_labels(symbol: Symbol, labels: Collection[str]) -> Symbol:
    """Return a symbol whose output layers have a variable instead of a label that is computed from ``labels``.

    Args:
        symbol: the symbol.
        labels: names of variables.
    """
    copies: dict[Node, Node] = {}
    names = {node.name for node in symbol.nodes()}
    from_labels: set[Node] = set()

    def move(entry: Entry) -> Entry:
        return Entry(copies.get(entry.node, entry.node), entry.index)

    for node in symbol.nodes():
        if node.is_variable:
            from_labels |= {node} if node.name in labels else set()
            continue
        inputs, is_output_layer = tuple(map(move, node.inputs)), _is_output_layer(node)
        if is_output_layer and not node.inputs[1].node.is_variable and node.inputs[1].node in from_labels:
            name = f"{node.name}_label"
            while name in names:
                name = f"unread_{name}"
            names.add(name)
            inputs = inputs[0], Entry(Node(None, name, origin=node.origin), 0)
        read = node.inputs[:1] if is_output_layer else node.inputs
        from_labels |= {node} if any(entry.node in from_labels for entry in read) else set()
        if inputs != node.inputs:
            copies[node] = Node(
                node.op, node.name, inputs, node.attributes, node.user_parameters, node.origin, node.versions
            )
    return Symbol([move(entry) for entry in symbol.entries]) if copies else symbol


def _is_output_layer(node: Node) -> bool:
    """Return whether a node is an output layer with a label, such as SoftmaxOutput."""
    return node.op is not None and node.op.traits.is_loss and tuple(node.op.inputs()) == _INPUTS
