"""Microseconds of operators of ``mx.np`` and ``mx.nd``, in turns, on small arrays.

    python numpy_api.py flowmx [SIZE ...]

Each figure is the least of many: ten calls and the wait for the last, of one API and then of the other.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import flowmx as mx

SIZES = (16, 1024, 16384)
BLOCK = 10
nd, np, npx = mx.nd, mx.np, mx.npx

Case = tuple[Callable[[], Any], Callable[[], Any]]


def cases(size: int) -> dict[str, Case]:
    """Return for each operator a call by ``mx.np`` and one by ``mx.nd``."""
    side = math.isqrt(size)
    x = nd.random.uniform(0.1, 1, shape=(side, side))
    y = nd.random.uniform(0.1, 1, shape=(side, side))
    row, mask, places = x[0], x > y, nd.array(range(side), dtype="int32")
    a, b, r, m, p = (each.as_np_ndarray() for each in (x, y, row, mask, places))
    truth = m.astype("bool")
    return {
        "x + y": (lambda: a + b, lambda: x + y),
        "x + row": (lambda: a + r, lambda: nd.broadcast_add(x, row.reshape((1, -1)))),
        "x + 1": (lambda: a + 1, lambda: x + 1),
        "2 / x": (lambda: 2 / a, lambda: 2 / x),
        "x ** 2": (lambda: a**2, lambda: x**2),
        "-x": (lambda: -a, lambda: -x),
        "x > y": (lambda: a > b, lambda: x > y),
        "x > 0": (lambda: a > 0, lambda: x > 0),
        "x += y": (lambda: a.__iadd__(b), lambda: x.__iadd__(y)),
        "add": (lambda: np.add(a, b), lambda: nd.add(x, y)),
        "maximum": (lambda: np.maximum(a, b), lambda: nd.maximum(x, y)),
        "maximum number": (lambda: np.maximum(a, 0), lambda: nd.maximum(x, 0)),
        "exp": (lambda: np.exp(a), lambda: nd.exp(x)),
        "sqrt": (lambda: np.sqrt(a), lambda: nd.sqrt(x)),
        "abs": (lambda: np.abs(a), lambda: nd.abs(x)),
        "sign": (lambda: np.sign(a), lambda: nd.sign(x)),
        "floor": (lambda: np.floor(a), lambda: nd.floor(x)),
        "clip": (lambda: np.clip(a, 0.2, 0.8), lambda: nd.clip(x, 0.2, 0.8)),
        "x.clip": (lambda: a.clip(0.2, 0.8), lambda: x.clip(0.2, 0.8)),
        "where": (lambda: np.where(truth, a, b), lambda: nd.where(mask, x, y)),
        "sum": (lambda: np.sum(a), lambda: nd.sum(x)),
        "sum axis": (lambda: np.sum(a, axis=1), lambda: nd.sum(x, axis=1)),
        "x.sum": (lambda: a.sum(axis=0), lambda: x.sum(axis=0)),
        "mean": (lambda: np.mean(a, axis=0, keepdims=True), lambda: nd.mean(x, axis=0, keepdims=True)),
        "max": (lambda: np.max(a, axis=1), lambda: nd.max(x, axis=1)),
        "argmax": (lambda: np.argmax(a, axis=1), lambda: nd.argmax(x, axis=1)),
        "norm": (lambda: np.linalg.norm(a), lambda: nd.norm(x)),
        "dot": (lambda: np.dot(a, b), lambda: nd.dot(x, y)),
        "matmul": (lambda: a @ b, lambda: nd.dot(x, y)),
        "transpose": (lambda: np.transpose(a), lambda: nd.transpose(x)),
        "T": (lambda: a.T, lambda: x.T),
        "swapaxes": (lambda: np.swapaxes(a, 0, 1), lambda: nd.swapaxes(x, 0, 1)),
        "reshape": (lambda: a.reshape(-1), lambda: x.reshape((-1,))),
        "expand_dims": (lambda: np.expand_dims(a, 1), lambda: nd.expand_dims(x, 1)),
        "squeeze": (lambda: np.squeeze(a), lambda: nd.squeeze(x)),
        "flip": (lambda: np.flip(a, 1), lambda: nd.flip(x, 1)),
        "concatenate": (lambda: np.concatenate([a, b], axis=1), lambda: nd.concat(x, y, dim=1)),
        "stack": (lambda: np.stack([a, b]), lambda: nd.stack(x, y)),
        "split": (lambda: np.split(a, 2, axis=1), lambda: nd.split(x, 2, axis=1)),
        "tile": (lambda: np.tile(a, (2, 1)), lambda: nd.tile(x, (2, 1))),
        "repeat": (lambda: np.repeat(a, 2, axis=0), lambda: nd.repeat(x, 2, axis=0)),
        "broadcast_to": (lambda: np.broadcast_to(r, a.shape), lambda: nd.broadcast_to(row.reshape((1, -1)), x.shape)),
        "take": (lambda: np.take(a, p, axis=0), lambda: nd.take(x, places, axis=0)),
        "x[1]": (lambda: a[1], lambda: x[1]),
        "x[:, 1]": (lambda: a[:, 1], lambda: x[:, 1]),
        "x[places]": (lambda: a[p], lambda: x[places]),
        "x[1] = 0": (lambda: a.__setitem__(1, 0), lambda: x.__setitem__(1, 0)),
        "astype": (lambda: a.astype("float64"), lambda: x.astype("float64")),
        "sort": (lambda: np.sort(a, axis=1), lambda: nd.sort(x, axis=1)),
        "cumsum": (lambda: np.cumsum(a, axis=1), lambda: nd.cumsum(x, axis=1)),
        "zeros": (lambda: np.zeros((side, side)), lambda: nd.zeros((side, side))),
        "ones_like": (lambda: np.ones_like(a), lambda: nd.ones_like(x)),
        "arange": (lambda: np.arange(side), lambda: nd.arange(side)),
        "random": (lambda: np.random.uniform(size=(side, side)), lambda: nd.random.uniform(shape=(side, side))),
        "softmax": (lambda: npx.softmax(a, axis=-1), lambda: nd.softmax(x, axis=-1)),
        "relu": (lambda: npx.relu(a), lambda: nd.relu(x)),
        "one_hot": (lambda: npx.one_hot(p, 8), lambda: nd.one_hot(places, 8)),
        "pick": (lambda: npx.pick(a, p), lambda: nd.pick(x, places)),
    }


def compared(case: Case, seconds: float = 0.25) -> list[float]:
    """Return the microseconds of a call by each API, the least of all turns."""
    best = [math.inf, math.inf]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or math.inf in best:
        for index, call in enumerate(case):
            start = time.perf_counter()
            for _ in range(BLOCK):
                call()
            mx.nd.waitall()
            best[index] = min(best[index], (time.perf_counter() - start) / BLOCK * 1e6)
    return best


def main() -> None:
    """Measure, and print as JSON the figures of ``mx.np`` and their ratios to ``mx.nd``."""
    figures = {}
    for size in map(int, sys.argv[2:] or SIZES):
        for name, case in cases(size).items():
            ours, classic = compared(case)
            figures[f"{name}, {size}: us"] = ours
            figures[f"{name}, {size}: ratio"] = ours / classic
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
