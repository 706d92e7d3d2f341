"""Microseconds of predictions by small networks, from NumPy arrays or the system's arrays to a NumPy array.

    python short_calls.py SYSTEM

The networks are multilayer perceptrons of three layers (64-128-128-10) and of six narrow ones, at batch 1 and 8.
Systems: flowmx and MXNet (hybridized), ``torch`` (in inference mode) and ``onnxruntime`` (with one thread).
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from timing import best_ms

NETWORKS = {"mlp": (64, 128, 128, 10), "deep": (16, 32, 32, 32, 32, 32, 4)}
BATCHES = (1, 8)
REPEATS = 100


def microseconds(call: Callable[[], Any]) -> float:
    """Return the time of a call, the best of many rows."""

    def row() -> None:
        for _ in range(REPEATS):
            call()

    row()
    return 1000 * best_ms(row) / REPEATS


def network(mx: Any, units: tuple[int, ...]) -> Any:
    """Return an initialized network of dense layers."""
    gluon = importlib.import_module(f"{mx.__name__}.gluon")
    net = gluon.nn.HybridSequential()
    for width, count in pairwise(units):
        net.add(gluon.nn.Dense(count, activation=None if count == units[-1] else "relu", in_units=width))
    net.initialize(mx.init.Xavier())
    return net


def mxnet_like(name: str, units: tuple[int, ...], batch: int) -> float:
    """Measure flowmx or MXNet."""
    mx = importlib.import_module(name)
    net, x = network(mx, units), mx.nd.array(np.ones((batch, units[0])))
    net.hybridize(static_alloc=True, static_shape=True)
    return microseconds(lambda: net(x).asnumpy())


def torch(units: tuple[int, ...], batch: int) -> float:
    """Measure PyTorch."""
    torch = importlib.import_module("torch")
    layers: list[Any] = []
    for width, count in pairwise(units):
        layers += [torch.nn.Linear(width, count), torch.nn.ReLU()]
    net, x = torch.nn.Sequential(*layers[:-1]).eval(), torch.ones(batch, units[0])
    with torch.inference_mode():
        return microseconds(lambda: net(x).numpy())


def onnxruntime(units: tuple[int, ...], batch: int) -> float:
    """Measure onnxruntime with the network that flowmx exports."""
    mx, ort = importlib.import_module("flowmx"), importlib.import_module("onnxruntime")
    net = network(mx, units)
    net.hybridize()
    x = np.ones((batch, units[0]), np.float32)
    net(mx.nd.array(x)).wait_to_read()
    with tempfile.TemporaryDirectory() as folder:
        prefix, path = Path(folder) / "net", Path(folder) / "net.onnx"
        net.export(str(prefix))
        mx.onnx.export_model(f"{prefix}-symbol.json", f"{prefix}-0000.params", [x.shape], np.float32, str(path))
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return microseconds(lambda: session.run(None, {name: x}))


def main() -> None:
    """Measure the system that the command line names, and print its figures as JSON."""
    system = sys.argv[1]
    measure = {"torch": torch, "onnxruntime": onnxruntime}.get(system) or (
        lambda units, batch: mxnet_like(system, units, batch)
    )
    print(json.dumps({f"{name} {batch}": measure(NETWORKS[name], batch) for name in NETWORKS for batch in BATCHES}))


if __name__ == "__main__":
    main()
