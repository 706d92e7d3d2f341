"""Megabytes of every operator output of a network's graph, each counted once: the memory without a planner.

    python unshared.py SYSTEM NETWORK [BATCH [SIZE]]

The graph is the one before fusion; training includes the gradients of all parameters. Outputs and gradients of
parameters, which the user's arrays hold, are excluded. MXNet logs the outputs with its memory plan.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import sys
import tempfile
from typing import Any

import symbols  # a module of this folder: the peers cannot import the package
from timing import sizes

MIB = 2**20


def flowmx_bytes(model: symbols.Model, train: bool) -> int:
    """Count the bytes on flowmx's graph."""
    from flowmx.graph import infer
    from flowmx.graph.compiler import graph_of
    from flowmx.graph.node import Entry

    nodes, arguments = model.symbol.nodes(), model.symbol._variables()[0]
    shapes = {node: model.inputs[node.name] for node in arguments if node.name in model.inputs}
    parameters = [node for node in arguments if node.name not in model.inputs] if train else []
    graph = graph_of(
        model.symbol.entries, parameters, infer.infer_shapes(nodes, shapes), infer.infer_types(nodes, {}), train
    )
    entries = {Entry(node, index) for node in graph.nodes() if node.op is not None for index in range(node.outputs())}
    inside = entries - {*graph.outputs, *graph.gradients.values()}
    return sum(math.prod(graph.shapes[entry]) * graph.dtypes[entry].itemsize for entry in inside)


def mxnet_bytes(model: symbols.Model, train: bool) -> int:
    """Count the bytes of the nodes that MXNet logs as it plans."""
    import mxnet as mx

    logged = _standard_error_of(
        lambda: model.symbol.simple_bind(
            mx.cpu(), grad_req=model.requests("write" if train else "null"), **model.inputs
        )
    )
    total = sum(_bytes(shape) for shape in re.findall(r"\toutput \d+: \[([0-9,]*)\]", logged))
    shapes, outputs, _ = model.symbol.infer_shape(**model.inputs)
    gradients = [
        shape
        for name, shape in zip(model.symbol.list_arguments(), shapes, strict=True)
        if train and name not in model.inputs
    ]
    return total - sum(4 * math.prod(shape) for shape in (*outputs, *gradients))


def _bytes(shape: str) -> int:
    return 4 * math.prod(map(int, filter(None, shape.split(","))))


def _standard_error_of(call: Any) -> str:
    """Capture what a call writes to file descriptor 2, from C++ too."""
    with tempfile.TemporaryFile("w+") as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            call()
        finally:
            os.dup2(before, 2)
            os.close(before)
        file.seek(0)
        return file.read()


def main() -> None:
    """Count, and print the figures as JSON."""
    system, name = sys.argv[1:3]
    os.environ["MXNET_MEM_PLAN_VERBOSE_LOGGING"] = "1"
    os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE"
    mx = importlib.import_module(system)
    count = flowmx_bytes if system == "flowmx" else mxnet_bytes
    model = symbols.model(mx, name, *sizes(sys.argv[3:], (64, 224)))
    print(json.dumps({"train_mb": count(model, True) / MIB, "predict_mb": count(model, False) / MIB}))


if __name__ == "__main__":
    main()
