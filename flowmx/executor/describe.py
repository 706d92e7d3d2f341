"""Graphs as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowmx.errors import ShapeError
from flowmx.graph import infer
from flowmx.graph.node import Entry, topological


def describe_graph(entries: Sequence[Entry]) -> str:
    """Describe every node with its inputs, and the total memory of the values whose shapes are known."""
    nodes = topological(entries)
    lines = ["Symbol Outputs:"]
    lines += [f"\toutput[{i}]={e.node.name}({e.index})" for i, e in enumerate(entries)]
    try:
        shapes = infer.infer_shapes(nodes, {})
    except ShapeError:
        shapes = {}
    total = 0
    for node in nodes:
        if node.is_variable:
            lines.append(f"Variable:{node.name}")
        else:
            assert node.op is not None
            lines += ["--------------------", f"Op:{node.op.name}, Name={node.name}", "Inputs:"]
            lines += [f"\targ[{i}]={e.node.name}({e.index})" for i, e in enumerate(node.inputs)]
            if node.user_parameters:
                lines += ["Attrs:", *(f"\t{key}={value}" for key, value in node.user_parameters.items())]
        for index in range(node.visible_outputs()):
            shape = shapes.get(Entry(node, index))
            if shape is not None and -1 not in shape:
                total += 4 * int(np.prod(shape))
    if total:
        lines.append(f"Values of known shape: {total / (1 << 20):.2f} MiB as float32")
    return "\n".join(lines)
