"""Megabytes planned for a training step, and its time, within a part of the memory that it needs without a budget.

    python budget.py SYSTEM NETWORK [PERCENT [BATCH [SIDE [ROUNDS]]]]

NETWORK is one of ``networks.py``, or ``transformer``: 12 blocks, 512 wide, with 8 heads, on sequences of SIDE tokens.
Steps take turns, and the fastest of each counts; with ``CPU=1`` in the environment, processor time is measured.
``difference`` is the norm of the difference of the gradients, relative to each gradient's norm, or to a thousandth of
the largest norm. ``expected_mb`` and ``grown_mb`` are those of ``resident.py``, for the step under the budget. For a
peer, the planned memory is printed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

import networks  # a module of this folder: the peers cannot import the package
import numpy as np
import resident
import slices

MIB = 2**20


def network(mx: Any, name: str, batch: int, side: int) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Return a network, and the shapes of its data and labels."""
    if name == "transformer":
        return networks.transformer(mx), {"data": (batch, side, networks.WIDTH), "softmax_label": (batch, side)}
    layers = {**networks.NETWORKS, **networks.LATER}[name]
    return networks.symbol(mx, layers), {"data": (batch, 3, side, side), "softmax_label": (batch,)}


def bind(mx: Any, net: Any, shapes: dict[str, tuple[int, ...]]) -> Any:
    """Bind an executor for training."""
    requests = {name: "null" if name in shapes else "write" for name in net.list_arguments()}
    return net.simple_bind(mx.cpu(), grad_req=requests, **shapes)


def step(mx: Any, executor: Any) -> None:
    """Run a training step."""
    executor.forward_backward()
    mx.nd.waitall()


def filled(executor: Any) -> Any:
    """Fill the executor with random numbers that keep the scale of values from layer to layer; return it."""
    rng = np.random.default_rng(0)
    for name, array in executor.arg_dict.items():
        array.wait_to_read()
        if name == "softmax_label":
            array[:] = rng.integers(0, 10, array.shape)
        elif array.ndim > 1:
            array[:] = rng.normal(0, 1 if name == "data" else (2 / (array.size // len(array))) ** 0.5, array.shape)
        else:
            array[:] = float("gamma" in name)
    for name, array in executor.aux_dict.items():
        array[:] = float("var" in name)
    executor.arg_arrays[0].wait_to_read()
    return executor


def measure(mx: Any, name: str, percent: int, batch: int, side: int, rounds: int) -> dict[str, float]:
    """Return the figures of flowmx."""
    from flowmx import settings

    net, shapes = network(mx, name, batch, side)
    clock = time.process_time if os.environ.get("CPU") else time.perf_counter
    bind(mx, net, shapes)  # compute what is cached for a form of graph
    start = clock()
    whole = bind(mx, net, shapes)
    bind_seconds = {"whole": clock() - start}
    mx.nd.waitall()
    resident.reset_peak()
    before = resident.resident("VmRSS")
    start = clock()
    with settings.override(exec_memory_budget=whole.plan.internal_bytes() * percent // 100):
        small = bind(mx, net, shapes)
    bind_seconds["small"] = clock() - start
    for array in small.arg_dict.values():
        array[:] = 0.01
    step(mx, small)
    growth, expected = resident.resident("VmHWM") - before, resident.expected(small)[1]
    executors, seconds, gradients = {"small": filled(small), "whole": filled(whole)}, {}, {}
    for _ in range(rounds):
        for label, executor in executors.items():
            start = clock()
            step(mx, executor)
            seconds[label] = min(seconds.get(label, 9e9), clock() - start)
    for label, executor in executors.items():
        gradients[label] = [each.asnumpy() for each in executor.grad_arrays if each is not None]
    pairs = zip(gradients["small"], gradients["whole"], strict=True)
    least = 1e-3 * max(np.linalg.norm(each) for each in gradients["whole"])  # some gradients are only rounding errors
    planned = {label: executor.plan.internal_bytes() for label, executor in executors.items()}
    return {
        **{f"{label}_mb": each / MIB for label, each in planned.items()},
        "part": planned["small"] / planned["whole"],
        **{f"{label}_ms": each * 1e3 for label, each in seconds.items()},
        "speed": seconds["whole"] / seconds["small"],
        **{f"{label}_bind_ms": each * 1e3 for label, each in bind_seconds.items()},
        "difference": float(max(np.linalg.norm(a - b) / max(np.linalg.norm(b), least) for a, b in pairs)),
        "expected_mb": expected / MIB,
        "grown_mb": growth / MIB,
    }


def main() -> None:
    """Measure, and print the figures as JSON."""
    system, name = sys.argv[1:3]
    numbers = [int(each) for each in sys.argv[3:]]
    percent, batch, side, rounds = [*numbers, *(30, 64, 128 if name == "transformer" else 224, 3)[len(numbers) :]]
    mx = importlib.import_module(system)
    if system == "flowmx":
        print(json.dumps(measure(mx, name, percent, batch, side, rounds)))
    else:
        net, shapes = network(mx, name, batch, side)
        print(json.dumps({"planned_mb": slices.planned(bind(mx, net, shapes))}))


if __name__ == "__main__":
    main()
