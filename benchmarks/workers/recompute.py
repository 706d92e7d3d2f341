"""Training steps that recompute values to fit into a part of their memory, in turns with steps that keep them.

    python recompute.py flowmx [KIND [LAYERS [PERCENT [BATCH]]]]

KIND is ``residual`` (pre-activation, 32x32 images, 64 channels), ``plain`` (convolutions in a row), ``dense`` (each
layer reads all before it) or ``lstm`` (as many steps). Megabytes are those planned for internal values; ``different``
counts the gradients in which a bit differs, after three steps.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

import flowmx as mx

SECONDS = 20.0
CHANNELS, GROWTH, HIDDEN = 64, 12, 128
sym = mx.sym


def convolution(x: Any, filters: int = CHANNELS, name: str | None = None) -> Any:
    """A 3x3 convolution."""
    return sym.Convolution(x, num_filter=filters, kernel=(3, 3), pad=(1, 1), no_bias=True, name=name)


def normal(x: Any) -> Any:
    """A normalization with its ReLU."""
    return sym.Activation(sym.BatchNorm(x, fix_gamma=False), act_type="relu")


def residual(x: Any, layers: int) -> Any:
    """Residual blocks with ``layers`` layers, including the first convolution and the classifier."""
    x = convolution(x)
    for _ in range((layers - 2) // 2):
        x = x + convolution(normal(convolution(normal(x))))
    return sym.Pooling(normal(x), global_pool=True, kernel=(1, 1), pool_type="avg")


def plain(x: Any, layers: int) -> Any:
    """Convolutions with a ReLU."""
    for _ in range(layers):
        x = sym.Activation(convolution(x), act_type="relu")
    return sym.Pooling(x, global_pool=True, kernel=(1, 1), pool_type="avg")


def dense(x: Any, layers: int) -> Any:
    """Layers that read the outputs of all earlier layers."""
    x = convolution(x, 2 * GROWTH)
    for _ in range(layers):
        x = sym.Concat(x, convolution(normal(x), GROWTH), dim=1)
    return sym.Pooling(normal(x), global_pool=True, kernel=(1, 1), pool_type="avg")


def lstm(x: Any, layers: int) -> Any:
    """An unrolled LSTM."""
    weights = [sym.Variable(name) for name in ("i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias")]
    read = sym.SliceChannel(x, num_outputs=layers, axis=1, squeeze_axis=True)
    h = c = sym.zeros_like(sym.slice_axis(sym.FullyConnected(read[0], num_hidden=HIDDEN), axis=1, begin=0, end=HIDDEN))
    for step in range(layers):
        gates = sym.FullyConnected(read[step], *weights[:2], num_hidden=4 * HIDDEN)
        gates = gates + sym.FullyConnected(h, *weights[2:], num_hidden=4 * HIDDEN)
        i, f, o, u = sym.SliceChannel(gates, num_outputs=4, axis=1)
        c = sym.sigmoid(f) * c + sym.sigmoid(i) * sym.tanh(u)
        h = sym.sigmoid(o) * sym.tanh(c)
    return h


KINDS = {"residual": residual, "plain": plain, "dense": dense, "lstm": lstm}


def bound(kind: str, layers: int, batch: int, budget: int) -> Any:
    """Bind a network for training, with the same numbers each time."""
    with mx.name.NameManager():
        out = KINDS[kind](sym.Variable("data"), layers)
        net = sym.SoftmaxOutput(sym.FullyConnected(sym.Flatten(out), num_hidden=10), sym.Variable("label"))
    data = (batch, layers, HIDDEN) if kind == "lstm" else (batch, 3, 32, 32)
    requests = {each: "null" if each in ("data", "label") else "write" for each in net.list_arguments()}
    with mx.engine.using(exec_memory_budget=budget):
        executor = net.simple_bind(mx.cpu(), grad_req=requests, data=data, label=(batch,))
    rng = np.random.default_rng(0)
    for name, array in executor.arg_dict.items():
        scale = 1 if name == "data" else 0.05
        array[:] = rng.integers(0, 10, batch) if name == "label" else rng.standard_normal(array.shape) * scale
    for name, array in executor.aux_dict.items():
        array[:] = 1 if name.endswith("var") else 0
    return executor


def step(executor: Any) -> None:
    """Run a training step."""
    executor.forward(is_train=True)
    executor.backward()
    mx.nd.waitall()


def different(one: Any, other: Any) -> int:
    """Count the gradients and moving statistics that differ after three steps of each."""
    for _ in range(3):
        step(one)
        step(other)
    pairs = [*zip(one.grad_arrays, other.grad_arrays, strict=True), *zip(one.aux_arrays, other.aux_arrays, strict=True)]
    return sum(a is not None and a.asnumpy().tobytes() != b.asnumpy().tobytes() for a, b in pairs)


def main() -> None:
    """Measure, and print the figures as JSON."""
    kind, *numbers = sys.argv[2:] or ["residual"]
    sizes = [*map(int, numbers), *(128, 35, 16)[len(numbers) :]]
    layers, percent, batch = sizes
    keeping = bound(kind, layers, batch, 0)
    whole = keeping.plan.internal_bytes()
    computing = bound(kind, layers, batch, whole * percent // 100)
    executors = {"plain": keeping, "recomputed": computing}
    count = different(keeping, computing)
    best = dict.fromkeys(executors, float("inf"))
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for name, executor in executors.items():
            start = time.perf_counter()
            step(executor)
            best[name] = min(best[name], 1000 * (time.perf_counter() - start))
    figures = {f"{name}_mb": each.plan.internal_bytes() / 1e6 for name, each in executors.items()}
    print(json.dumps({**figures, **{f"{name}_ms": each for name, each in best.items()}, "different": count}))


if __name__ == "__main__":
    main()
