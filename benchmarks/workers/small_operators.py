"""Microseconds of 32 operators on 1e3 and 1e4 elements, forward alone and with their gradients (+).

    python small_operators.py SYSTEM

Each figure is the least of many. Forward calls come ten at a time before the last result is waited for, like the layers
of a network; with a gradient each is waited for, like a training step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
from timing import measure  # lies beside this file; the peers know nothing of the package

SIZES = (1000, 10_000)
BLOCK, SECONDS = 10, 0.1
CLOCK = time.process_time if os.environ.get("CPU_TIME") else time.perf_counter

Case = tuple[str, Callable[..., Any], tuple[Any, ...], int]
"""A name, a function of arrays, the arrays, and of how many of these the gradient is wanted."""


def normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def arrays(size: int) -> dict[str, Any]:
    """The operands for so many elements."""
    side = int(size**0.5) // 4 * 4
    rng = np.random.default_rng(0)
    return {
        "x": normal(size // 20, 20),
        "y": normal(size // 20, 20)[::-1].copy(),
        "positive": np.abs(normal(size // 20, 20)) + 0.1,
        "row": normal(20),
        "a": normal(side, side),
        "b": normal(side, side).T.copy(),
        "bias": normal(side),
        "stack": normal(4, size // 80, 20),
        "turned": normal(4, 20, size // 80),
        "image": normal(1, 4, side // 2, side // 2),
        "filters": normal(4, 4, 3, 3),
        "filter_bias": normal(4),
        "indices": rng.integers(0, size // 20, size // 20),
        "columns": rng.integers(0, 20, size // 20),
    }


def mxnet_cases(mx: Any, of: dict[str, Any]) -> Iterator[Case]:
    nd = mx.nd
    x, y, positive, row, a, b, bias, stack, turned, image, filters, filter_bias, indices, columns = of.values()
    yield "add", lambda x, y: x + y, (x, y), 2
    yield "subtract", lambda x, y: x - y, (x, y), 2
    yield "multiply", lambda x, y: x * y, (x, y), 2
    yield "divide", lambda x, y: x / y, (x, positive), 2
    yield "add number", lambda x: x + 2.0, (x,), 1
    yield "multiply number", lambda x: x * 0.5, (x,), 1
    yield "maximum", nd.maximum, (x, y), 2
    yield "add row", nd.broadcast_add, (x, row.reshape((1, 20))), 2
    yield "exp", nd.exp, (x,), 1
    yield "log", nd.log, (positive,), 1
    yield "sqrt", nd.sqrt, (positive,), 1
    yield "square", nd.square, (x,), 1
    yield "abs", nd.abs, (x,), 1
    yield "tanh", nd.tanh, (x,), 1
    yield "sigmoid", nd.sigmoid, (x,), 1
    yield "relu", nd.relu, (x,), 1
    yield "gelu", lambda x: nd.LeakyReLU(x, act_type="gelu"), (x,), 1
    yield "clip", lambda x: nd.clip(x, -1, 1), (x,), 1
    yield "sum", lambda x: nd.sum(x, axis=1), (x,), 1
    yield "mean", nd.mean, (x,), 1
    yield "max", lambda x: nd.max(x, axis=1), (x,), 1
    yield "norm", nd.norm, (x,), 1
    yield "softmax", nd.softmax, (x,), 1
    yield "log softmax", nd.log_softmax, (x,), 1
    yield "layer norm", nd.LayerNorm, (x, row, row + 0), 3
    yield "product", nd.dot, (a, b), 2
    yield "batched product", nd.batch_dot, (stack, turned), 2
    yield "dense", lambda a, b, c: nd.FullyConnected(a, b, c, num_hidden=c.shape[0]), (a, b, bias), 3
    yield (
        "convolution", lambda x, w, b: nd.Convolution(x, w, b, kernel=(3, 3), pad=(1, 1), num_filter=4),
        (image, filters, filter_bias), 3,
    )  # fmt: skip
    yield "max pooling", lambda x: nd.Pooling(x, kernel=(2, 2), stride=(2, 2)), (image,), 1
    yield "transpose", lambda x: nd.transpose(x, axes=(0, 2, 1)), (stack,), 1
    yield "concat", lambda x, y: nd.concat(x, y, dim=1), (x, y), 2
    yield "take", lambda x: nd.take(x, indices), (x,), 1
    yield "pick", lambda x: nd.pick(x, columns), (x,), 1


def torch_cases(torch: Any, of: dict[str, Any]) -> Iterator[Case]:
    F = torch.nn.functional
    x, y, positive, row, a, b, bias, stack, turned, image, filters, filter_bias, indices, columns = of.values()
    yield "add", lambda x, y: x + y, (x, y), 2
    yield "subtract", lambda x, y: x - y, (x, y), 2
    yield "multiply", lambda x, y: x * y, (x, y), 2
    yield "divide", lambda x, y: x / y, (x, positive), 2
    yield "add number", lambda x: x + 2.0, (x,), 1
    yield "multiply number", lambda x: x * 0.5, (x,), 1
    yield "maximum", torch.maximum, (x, y), 2
    yield "add row", torch.add, (x, row.reshape(1, 20)), 2
    yield "exp", torch.exp, (x,), 1
    yield "log", torch.log, (positive,), 1
    yield "sqrt", torch.sqrt, (positive,), 1
    yield "square", torch.square, (x,), 1
    yield "abs", torch.abs, (x,), 1
    yield "tanh", torch.tanh, (x,), 1
    yield "sigmoid", torch.sigmoid, (x,), 1
    yield "relu", torch.relu, (x,), 1
    yield "gelu", F.gelu, (x,), 1
    yield "clip", lambda x: torch.clamp(x, -1, 1), (x,), 1
    yield "sum", lambda x: torch.sum(x, 1), (x,), 1
    yield "mean", torch.mean, (x,), 1
    yield "max", lambda x: torch.amax(x, 1), (x,), 1
    yield "norm", torch.linalg.norm, (x,), 1
    yield "softmax", lambda x: torch.softmax(x, -1), (x,), 1
    yield "log softmax", lambda x: torch.log_softmax(x, -1), (x,), 1
    yield "layer norm", lambda x, g, b: F.layer_norm(x, (20,), g, b), (x, row, row + 0), 3
    yield "product", torch.matmul, (a, b), 2
    yield "batched product", torch.bmm, (stack, turned), 2
    yield "dense", F.linear, (a, b, bias), 3
    yield "convolution", lambda x, w, b: F.conv2d(x, w, b, padding=1), (image, filters, filter_bias), 3
    yield "max pooling", lambda x: F.max_pool2d(x, 2), (image,), 1
    yield "transpose", lambda x: x.transpose(1, 2).contiguous(), (stack,), 1
    yield "concat", lambda x, y: torch.cat([x, y], 1), (x, y), 2
    yield "take", lambda x: torch.index_select(x, 0, indices), (x,), 1
    yield "pick", lambda x: torch.gather(x, 1, columns[:, None])[:, 0], (x,), 1


def best_us(call: Callable[[], Any], wait: Callable[[], Any], block: int) -> float:
    """The least microseconds of a call, so many of which come before each wait."""
    for _ in range(5):
        call()
    wait()
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end or best == float("inf"):
        start = CLOCK()
        for _ in range(block):
            call()
        wait()
        best = min(best, (CLOCK() - start) / block)
    return 1e6 * best


def mxnet_like(mx: Any) -> dict[str, float]:
    """All by MXNet's interface."""
    figures: dict[str, float] = {}
    for size in SIZES:
        for name, function, operands, wanted in mxnet_cases(mx, {k: mx.nd.array(v) for k, v in arrays(size).items()}):
            figures[f"{name} {size}"] = best_us(lambda: function(*operands), mx.nd.waitall, BLOCK)  # noqa: B023
            leaves = [each.copy() for each in operands[:wanted]]
            for leaf in leaves:
                leaf.attach_grad()
            head = mx.nd.ones_like(function(*operands))

            def call() -> None:
                with mx.autograd.record():
                    out = function(*leaves, *operands[wanted:])  # noqa: B023
                out.backward(head)  # noqa: B023

            figures[f"{name} + {size}"] = best_us(call, mx.nd.waitall, 1)
    return figures


def pytorch() -> dict[str, float]:
    """All by PyTorch."""
    torch = import_module("torch")
    figures: dict[str, float] = {}
    for size in SIZES:
        for name, function, operands, wanted in torch_cases(
            torch, {k: torch.from_numpy(v) for k, v in arrays(size).items()}
        ):
            figures[f"{name} {size}"] = best_us(lambda: function(*operands), lambda: None, BLOCK)  # noqa: B023
            leaves = [each.clone().requires_grad_() for each in operands[:wanted]]
            head = torch.ones_like(function(*operands))

            def call() -> None:
                for leaf in leaves:  # noqa: B023
                    leaf.grad = None
                function(*leaves, *operands[wanted:]).backward(head)  # noqa: B023

            figures[f"{name} + {size}"] = best_us(call, lambda: None, 1)
    return figures


def main() -> None:
    """Measure, and print the figures as JSON."""
    measure(mxnet_like, pytorch)


if __name__ == "__main__":
    main()
