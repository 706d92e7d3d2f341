"""Measure costs of the GPU: launching, copying during computation, and memory for varying shapes.

    python gpu_device.py SYSTEM

``launch_us`` is the host's time for an ``a + b`` of 16 floats, in a long sequence without waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from timing import measure  # a module of this folder: the peers cannot import the package

_LAUNCHES = 20_000
_STEPS = 40
_SHAPES = 1000


def _us_each(push: Callable[[], Any], wait: Callable[[], Any]) -> float:
    for _ in range(1000):
        push()
    wait()
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(_LAUNCHES):
            push()
        wait()
        best = min(best, time.perf_counter() - began)
    return 1e6 * best / _LAUNCHES


def _step_ms(step: Callable[[int], Any], wait: Callable[[], Any]) -> float:
    for number in range(4):
        step(number)
    wait()
    began = time.perf_counter()
    for number in range(_STEPS):
        step(number)
    wait()
    return 1000 * (time.perf_counter() - began) / _STEPS


def mxnet_like(mx: Any) -> dict[str, float]:
    """Measure flowmx on its first GPU."""
    a, b = (mx.nd.ones((16,), ctx=mx.gpu(0)) for _ in range(2))
    return {
        "launch_us": _us_each(lambda: a + b, mx.nd.waitall), **_overlap(mx), "peak_of_largest": _peak(mx),
    }  # fmt: skip


def _overlap(mx: Any) -> dict[str, float]:
    """Measure a loop that copies a batch and computes, and each part alone."""
    batches = [mx.nd.ones((64, 3, 512, 512), ctx=mx.cpu_pinned(0)) for _ in range(4)]
    x = mx.nd.ones((4096, 4096), ctx=mx.gpu(0)) * 1e-4

    def copy(number: int) -> Any:
        return batches[number % 4].as_in_context(mx.gpu(0))

    def compute(number: int) -> Any:
        y = x
        for _ in range(6):
            y = mx.nd.dot(y, x)
        return y

    alone = [_step_ms(each, mx.nd.waitall) for each in (copy, compute)]
    both = _step_ms(lambda number: (copy(number), compute(number)), mx.nd.waitall)
    return {"copy_ms": alone[0], "compute_ms": alone[1], "both_ms": both, "both_of_larger": both / max(alone)}


def _peak(mx: Any) -> float:
    """Return the peak memory over a thousand shapes, as a multiple of the largest shape's need."""
    from flowmx import devices

    pool: Any = devices.get(mx.gpu(0)).pool  # type: ignore[attr-defined]
    mx.nd.waitall()
    mx.gpu(0).empty_cache()
    rng, largest, before = np.random.default_rng(0), 0, pool.used
    pool.peak = before
    for _ in range(_SHAPES):
        n = int(rng.integers(1, 4_000_000))
        largest = max(largest, 3 * 4 * n)
        a = mx.nd.ones((n,), ctx=mx.gpu(0))
        (a + a * 2).wait_to_read()
    return float(pool.peak - before) / largest


def pytorch() -> dict[str, float]:
    """Measure PyTorch's launch."""
    import torch

    a, b = (torch.ones(16, device="cuda") for _ in range(2))
    return {"launch_us": _us_each(lambda: a + b, torch.cuda.synchronize)}


if __name__ == "__main__":
    measure(mxnet_like, pytorch)
