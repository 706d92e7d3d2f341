"""Compile the loops of a graph while it is still being planned, or while its first steps already run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flowmx.graph.graph import Graph, Options
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.workspace import array_layout
from flowmx.ops import kernels
from flowmx.ops.compiled.chain import Chain
from flowmx.ops.registry.kernels import ArrayLayout
from flowmx.ops.registry.operators import Operator


def compile_loops(nodes: Iterable[Node], laid: Callable[[Entry], ArrayLayout], device_type: str) -> None:
    """Start compiling the loops of nodes, in this order.

    Args:
        nodes: the nodes, of which chains have loops.
        laid: returns the layout of a value.
        device_type: the device type of the kernels.
    """
    steps: dict[object, tuple[Operator, list[ArrayLayout], list[ArrayLayout]]] = {}
    for node in nodes:
        op: Any = node.op
        if type(op) is Chain:
            inputs = [laid(entry) for entry in node.inputs]
            outputs = [laid(Entry(node, index)) for index in range(node.outputs())]
            steps.setdefault((id(op.prepared), *inputs, *outputs), (op, inputs, outputs))
    if steps:
        kernels.compile_ahead(device_type, list(steps.values()))


def compile_unplanned(graph: Graph, options: Options) -> None:
    """Start compiling the loops of a graph on one device before planning, if no plan can change the layouts."""
    nodes = graph.nodes()
    if not any(node.op is not None and node.op.traits.makes_channels_last for node in nodes):
        compile_loops(nodes, lambda entry: _dense(graph, entry), options.device_type)


def _dense(graph: Graph, entry: Entry) -> ArrayLayout:
    return array_layout(graph.shapes[entry], False, graph.dtypes[entry])
