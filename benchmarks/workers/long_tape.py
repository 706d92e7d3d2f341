"""Microseconds of a recorded operator with its gradient on tapes of 100 and 100,000 operators, with garbage collection.

python long_tape.py SYSTEM
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from timing import measure  # a module of this folder: the peers cannot import the package

SHORT, LONG = 100, 100_000
CLOCK = time.process_time if os.environ.get("CPU_TIME") else time.perf_counter


def each_us(step: Callable[[int], Any], count: int, times: int) -> float:
    """Return the least microseconds of one operator in a step of ``count``."""
    best = float("inf")
    for _ in range(times):
        start = CLOCK()
        step(count)
        best = min(best, CLOCK() - start)
    return 1e6 * best / count


def figures(step: Callable[[int], Any]) -> dict[str, float]:
    """Measure both lengths, after collecting the garbage of the imports."""
    gc.collect()
    assert gc.isenabled()
    return {f"operators_{count}": each_us(step, count, max(8, 200_000 // count)) for count in (SHORT, LONG)}


def mxnet_like(mx: Any) -> dict[str, float]:
    """Measure flowmx through MXNet's interface."""
    x = mx.nd.array(np.ones(16, "float32"))
    x.attach_grad()

    def step(count: int) -> None:
        with mx.autograd.record():
            y = x
            for _ in range(count // 2):
                y = y * 0.9 + x
        y.backward()
        mx.nd.waitall()

    return figures(step)


def pytorch() -> dict[str, float]:
    """Measure PyTorch."""
    torch = import_module("torch")
    x, head = torch.ones(16, requires_grad=True), torch.ones(16)

    def step(count: int) -> None:
        x.grad = None
        y = x
        for _ in range(count // 2):
            y = y * 0.9 + x
        y.backward(head)

    return figures(step)


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    measure(mxnet_like, pytorch)
