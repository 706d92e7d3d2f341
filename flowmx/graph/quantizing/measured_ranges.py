"""Ranges that were measured, put into a quantized graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowmx.graph.node import Entry, Node, topological
from flowmx.ops.quantization.recurrent import QuantizeAsymmetrically, with_states
from flowmx.ops.registry.operators import lookup

__all__ = ["calibrated", "rebuilt", "with_parameters"]

_PREFIX = "quantized_"


def calibrated(entries: Sequence[Entry], ranges: Mapping[str, tuple[float, float]]) -> list[Entry]:
    """The graph with the ranges of the values of those names, where its nodes want to know them."""

    def changed(node: Node, inputs: tuple[Entry, ...]) -> Node | None:
        wanted = "" if node.op is None else node.op.traits.calibrates
        if not wanted:
            return None
        entry = Entry(node, 0) if wanted == "output" else node.inputs[0]
        name = entry.node.output_name(entry.index).removeprefix(_PREFIX)
        if name not in ranges:
            return None
        ends = ranges[name]
        if isinstance(node.op, QuantizeAsymmetrically):  # what reads it rounds its states by the same range
            ends = with_states(*ends)
        low, high = (f"{float(end):.9g}" for end in ends)
        return with_parameters(node, inputs, min_calib_range=low, max_calib_range=high)

    return rebuilt(entries, changed)


def with_parameters(node: Node, inputs: tuple[Entry, ...], **given: str) -> Node:
    """A copy of a node with other inputs and further parameters."""
    op = node.op
    assert op is not None
    values: dict[str, Any] = {name: getattr(op, name) for name in op.attributes()}
    if op.subgraphs:
        values["subgraphs"] = op.subgraphs
    made = lookup(op.name).create(**{**values, **given})
    return Node(made, node.name, inputs, node.attributes, {**node.given, **given}, node.origin)


def rebuilt(entries: Sequence[Entry], change: Any) -> list[Entry]:
    """The graph with other nodes in the place of some.

    Args:
        entries: the graph.
        change: called with each operator's node and its new inputs; gives a node with the same outputs, an
            :class:`Entry` for all of them where there is one, or None where nothing changes.
    """
    moved: dict[Node, Node | Entry] = {}

    def new(entry: Entry) -> Entry:
        found = moved.get(entry.node, entry.node)
        return found if isinstance(found, Entry) else Entry(found, entry.index)

    for node in topological(entries):
        if node.op is None:
            continue
        inputs = tuple([new(entry) for entry in node.inputs])
        made = change(node, inputs)
        if made is not None:
            moved[node] = made
        elif inputs != node.inputs:
            moved[node] = Node(node.op, node.name, inputs, node.attributes, node.given, node.origin)
    return [new(entry) for entry in entries]
