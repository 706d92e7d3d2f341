"""Megabytes of every operator output of a network's graph, each counted once: what memory would be without a planner.

    python unshared.py SYSTEM NETWORK [BATCH [SIZE]]

The graph is the one before anything is fused, in training with the gradients of all parameters. What goes to the
user's own arrays (outputs, gradients of parameters) is left out. MXNet tells it in its log of the memory plan.
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

import symbols  # these two lie beside this file; the peers know nothing of the package
from timing import sizes

MIB = 2**20


def flowmx_bytes(model: symbols.Model, train: bool) -> int:
    """Counted on flowmx's graph."""
    from flowmx.graph import infer
    from flowmx.graph.compiler import graph_of
    from flowmx.graph.node import Entry

    nodes, arguments = model.symbol._nodes(), model.symbol._variables()[0]
    known = {node: model.inputs[node.name] for node in arguments if node.name in model.inputs}
    wanted = [node for node in arguments if node.name not in model.inputs] if train else []
    graph = graph_of(
        model.symbol._entries, wanted, infer.infer_shapes(nodes, known), infer.infer_types(nodes, {}), train
    )
    made = {Entry(node, index) for node in graph.nodes() if node.op is not None for index in range(node.outputs())}
    inside = made - {*graph.outputs, *graph.gradients.values()}
    return sum(math.prod(graph.shapes[entry]) * graph.dtypes[entry].itemsize for entry in inside)


def mxnet_bytes(model: symbols.Model, train: bool) -> int:
    """Counted on the nodes that MXNet logs as it plans."""
    import mxnet as mx

    logged = _standard_error_of(
        lambda: model.symbol.simple_bind(
            mx.cpu(), grad_req=model.requests("write" if train else "null"), **model.inputs
        )
    )
    made = sum(_bytes(shape) for shape in re.findall(r"\toutput \d+: \[([0-9,]*)\]", logged))
    shapes, outputs, _ = model.symbol.infer_shape(**model.inputs)
    gradients = [
        shape
        for name, shape in zip(model.symbol.list_arguments(), shapes, strict=True)
        if train and name not in model.inputs
    ]
    return made - sum(4 * math.prod(shape) for shape in (*outputs, *gradients))


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
