"""Microseconds of single operators, called as a user would, on arrays of 1e3 to 1e7 elements, and of Adam.

    python operators.py SYSTEM [SIZE ...]

Each figure is the least of many. Ten forward calls run before each wait, like the
layers of a network; ``+`` means forward and backward into the user's gradient arrays, with a wait after each, like a
training step. Rows are 1024 long; the embedding has 30,000 rows of 128.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

SIZES = (1e3, 1e4, 1e5, 1e6, 1e7)
ROW, WIDTH, VOCABULARY, CHANNELS, SIDE = 1024, 128, 30_000, 64, 14
PARAMETERS = 25_000_000
BLOCK = 10

Case = tuple[str, Callable[[], Any]]


def normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def best_us(call: Callable[[], Any], wait: Callable[[], Any], seconds: float = 0.5, block: int = BLOCK) -> float:
    for _ in range(3):
        call()
    wait()
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or best == float("inf"):
        start = time.perf_counter()
        for _ in range(block):
            call()
        wait()
        best = min(best, (time.perf_counter() - start) / block)
    return 1e6 * best


def rows_of(size: int, row: int) -> int:
    return max(1, size // row)


def flowmx_cases(size: int) -> Iterator[Case]:
    import flowmx as mx

    nd = mx.nd

    def both(forward: Callable[[], Any], head: Any, *leaves: Any) -> Callable[[], None]:
        for leaf in leaves:
            leaf.attach_grad()

        def call() -> None:
            with mx.autograd.record():
                out = forward()
            out.backward(head)

        return call

    x, head = nd.array(normal(size)), nd.array(normal(size))
    yield "gelu", lambda: nd.LeakyReLU(x, act_type="gelu")
    yield "gelu +", both(lambda: nd.LeakyReLU(x, act_type="gelu"), head, x)
    yield "tanh", lambda: nd.tanh(x)
    yield "add", lambda: x + head

    rows = rows_of(size, ROW)
    m, rows_head = nd.array(normal(rows, ROW)), nd.array(normal(rows, ROW))
    gamma, beta = nd.ones((ROW,)), nd.zeros((ROW,))
    yield "softmax", lambda: nd.softmax(m)
    yield "softmax +", both(lambda: nd.softmax(m), rows_head, m)
    yield "layer norm", lambda: nd.LayerNorm(m, gamma, beta)
    yield "layer norm +", both(lambda: nd.LayerNorm(m, gamma, beta), rows_head, m, gamma, beta)

    count = rows_of(size, WIDTH)
    words = nd.array(np.random.default_rng(0).integers(0, VOCABULARY, count), dtype="int64")
    table, words_head = nd.array(normal(VOCABULARY, WIDTH)), nd.array(normal(count, WIDTH))

    def look_up() -> Any:
        return nd.Embedding(words, table, input_dim=VOCABULARY, output_dim=WIDTH)

    yield "embedding", look_up
    yield "embedding +", both(look_up, words_head, table)

    if size >= 1e5:
        batch = rows_of(size, CHANNELS * SIDE * SIDE)
        image, image_head = (nd.array(normal(batch, CHANNELS, SIDE, SIDE)) for _ in range(2))
        scale, shift, mean, var = (make((CHANNELS,)) for make in (nd.ones, nd.zeros, nd.zeros, nd.ones))

        def batch_norm() -> Any:
            return nd.BatchNorm(image, scale, shift, mean, var, fix_gamma=False)

        yield "batch norm +", both(batch_norm, image_head, image, scale, shift)


def flowmx_adam() -> Iterator[Case]:
    import flowmx as mx

    weight, grad = mx.nd.array(normal(PARAMETERS)), mx.nd.array(normal(PARAMETERS))
    update = mx.optimizer.get_updater(mx.optimizer.Adam(learning_rate=1e-3))
    yield "adam", lambda: update(0, grad, weight)
    yield "adam, PyTorch's fused", lambda: update(0, grad, weight)


def torch_cases(size: int) -> Iterator[Case]:
    import torch
    import torch.nn.functional as F

    def array(*shape: int) -> Any:
        return torch.from_numpy(normal(*shape))

    def both(forward: Callable[..., Any], head: Any, *leaves: Any) -> Callable[[], None]:
        variables = [leaf.clone().requires_grad_() for leaf in leaves]

        def call() -> None:
            for each in variables:
                each.grad = None
            forward(*variables).backward(head)

        return call

    x, head = array(size), array(size)
    yield "gelu", lambda: F.gelu(x)
    yield "gelu +", both(F.gelu, head, x)
    yield "tanh", lambda: torch.tanh(x)
    yield "add", lambda: x + head

    rows = rows_of(size, ROW)
    m, rows_head = array(rows, ROW), array(rows, ROW)
    gamma, beta = torch.ones(ROW), torch.zeros(ROW)
    yield "softmax", lambda: F.softmax(m, -1)
    yield "softmax +", both(lambda m: F.softmax(m, -1), rows_head, m)
    yield "layer norm", lambda: F.layer_norm(m, (ROW,), gamma, beta)
    yield "layer norm +", both(lambda m, g, b: F.layer_norm(m, (ROW,), g, b), rows_head, m, gamma, beta)

    count = rows_of(size, WIDTH)
    words = torch.from_numpy(np.random.default_rng(0).integers(0, VOCABULARY, count))
    table, words_head = array(VOCABULARY, WIDTH), array(count, WIDTH)
    yield "embedding", lambda: F.embedding(words, table)
    yield "embedding +", both(lambda table: F.embedding(words, table), words_head, table)

    if size >= 1e5:
        batch = rows_of(size, CHANNELS * SIDE * SIDE)
        image, image_head = array(batch, CHANNELS, SIDE, SIDE), array(batch, CHANNELS, SIDE, SIDE)
        mean, var = torch.zeros(CHANNELS), torch.ones(CHANNELS)

        def batch_norm(image: Any, scale: Any, shift: Any) -> Any:
            return F.batch_norm(image, mean, var, scale, shift, training=True, momentum=0.1, eps=1e-3)

        yield "batch norm +", both(batch_norm, image_head, image, torch.ones(CHANNELS), torch.zeros(CHANNELS))


def torch_adam() -> Iterator[Case]:
    import torch

    for name, fused in (("adam", None), ("adam, PyTorch's fused", True)):
        weight = torch.nn.Parameter(torch.from_numpy(normal(PARAMETERS)))
        weight.grad = torch.from_numpy(normal(PARAMETERS))
        yield name, torch.optim.Adam([weight], lr=1e-3, fused=fused).step


def main() -> None:
    system = sys.argv[1]
    if system == "flowmx":
        import flowmx as mx

        cases, adam, wait = flowmx_cases, flowmx_adam, mx.nd.waitall
    else:
        cases, adam, wait = torch_cases, torch_adam, lambda: None
    figures = {}
    for size in map(float, sys.argv[2:] or SIZES):
        for name, call in cases(int(size)):
            figures[f"{name} {size:.0e}"] = best_us(call, wait, block=1 if "+" in name else BLOCK)
    for name, call in adam():
        figures[f"{name} {PARAMETERS:.1e}"] = best_us(call, wait, 1.5, 1)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
