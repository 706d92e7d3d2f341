"""Loops that are compiled while what comes before them is still planned, or runs already."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flowmx.graph.graph import Graph, Options
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.workspace import lying
from flowmx.ops import kernels
from flowmx.ops.compiled.chain import Chain
from flowmx.ops.registry.operators import Laid, Operator


def compile_loops(nodes: Iterable[Node], laid: Callable[[Entry], Laid], device_type: str) -> None:
    """Let the loops of nodes be compiled, in this order.

    Args:
        nodes: of which chains have loops.
        laid: how a value lies.
        device_type: that of their device's kernels.
    """
    steps: dict[object, tuple[Operator, list[Laid], list[Laid]]] = {}
    for node in nodes:
        op: Any = node.op
        if type(op) is Chain:
            inputs = [laid(entry) for entry in node.inputs]
            outputs = [laid(Entry(node, index)) for index in range(node.outputs())]
            steps.setdefault((id(op.prepared), *inputs, *outputs), (op, inputs, outputs))
    if steps:
        kernels.compile_ahead(device_type, list(steps.values()))


def compile_unplanned(graph: Graph, options: Options) -> None:
    """Let the loops of a graph on one device be compiled before it is planned, where no plan lays values otherwise."""
    nodes = graph.nodes()
    if not any(node.op is not None and node.op.traits.makes_channels_last for node in nodes):
        compile_loops(nodes, lambda entry: _dense(graph, entry), options.device_type)


def _dense(graph: Graph, entry: Entry) -> Laid:
    return lying(graph.shapes[entry], False, graph.dtypes[entry])
