"""Insertion of calibrated ranges into a quantized graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowmx.graph.node import Entry, Node, topological
from flowmx.ops.quantization.quantized_rnn import QuantizeAsymmetrically, with_states
from flowmx.ops.registry.operators import lookup

__all__ = ["rebuild", "with_parameters", "with_ranges"]

_PREFIX = "quantized_"


def with_ranges(entries: Sequence[Entry], ranges: Mapping[str, tuple[float, float]]) -> list[Entry]:
    """Set calibrated ranges, by the names of the values, on the nodes that have range parameters."""

    def change(node: Node, inputs: tuple[Entry, ...]) -> Node | None:
        which = "" if node.op is None else node.op.traits.calibrates
        if not which:
            return None
        entry = Entry(node, 0) if which == "output" else node.inputs[0]
        name = entry.node.output_name(entry.index).removeprefix(_PREFIX)
        if name not in ranges:
            return None
        ends = ranges[name]
        if isinstance(node.op, QuantizeAsymmetrically):  # its reader rounds its states with the same range
            ends = with_states(*ends)
        low, high = (f"{float(end):.9g}" for end in ends)
        return with_parameters(node, inputs, min_calib_range=low, max_calib_range=high)

    return rebuild(entries, change)


def with_parameters(node: Node, inputs: tuple[Entry, ...], **parameters: str) -> Node:
    """Return a copy of a node with other inputs and additional parameters."""
    op = node.op
    assert op is not None
    values: dict[str, object] = {name: getattr(op, name) for name in op.attributes()}
    if op.subgraphs:
        values["subgraphs"] = op.subgraphs
    new_op = lookup(op.name).create(**{**values, **parameters})
    return Node(new_op, node.name, inputs, node.attributes, {**node.user_parameters, **parameters}, node.origin)


def rebuild(entries: Sequence[Entry], change: Any) -> list[Entry]:
    """Replace nodes of a graph.

    Args:
        entries: the graph.
        change: called with each operator's node and its new inputs; returns a node with the same outputs, an
            :class:`Entry` for a single output, or None to change nothing.
    """
    replaced: dict[Node, Node | Entry] = {}

    def new(entry: Entry) -> Entry:
        target = replaced.get(entry.node, entry.node)
        return target if isinstance(target, Entry) else Entry(target, entry.index)

    for node in topological(entries):
        if node.op is None:
            continue
        inputs = tuple([new(entry) for entry in node.inputs])
        new_node = change(node, inputs)
        if new_node is not None:
            replaced[node] = new_node
        elif inputs != node.inputs:
            replaced[node] = Node(node.op, node.name, inputs, node.attributes, node.user_parameters, node.origin)
    return [new(entry) for entry in entries]
