"""Microseconds of 34 operators on 1e3 and 1e4 elements, forward alone and with their gradients (+).

    python small_operators.py SYSTEM

Each figure is the least of many. Ten forward calls run before each wait, like the layers of a network; calls with a
gradient are followed by a wait each, like a training step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from timing import measure  # a module of this folder: the peers cannot import the package

SIZES = (1000, 10_000)
BLOCK, SECONDS = 10, 0.1
CLOCK = time.process_time if os.environ.get("CPU_TIME") else time.perf_counter


def normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def arrays(size: int) -> dict[str, Any]:
    """Return the operands of ``size`` elements."""
    side = int(size**0.5) // 4 * 4
    rng = np.random.default_rng(0)
    return {
        "x": normal(size // 20, 20),
        "y": normal(size // 20, 20)[::-1].copy(),
        "positive": np.abs(normal(size // 20, 20)) + 0.1,
        "row": normal(20),
        "one_row": normal(1, 20),
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


Case = tuple[str, str, Callable[[Any, Any], Any], Callable[[Any, Any], Any]]
"""A name, the operands (gradients are computed for all), and factories of the functions of ``mx.nd`` and PyTorch, which
take the module and all arrays."""

# fmt: off
CASES: list[Case] = [
    ("add", "x y", lambda nd, of: lambda x, y: x + y, lambda torch, of: lambda x, y: x + y),
    ("subtract", "x y", lambda nd, of: lambda x, y: x - y, lambda torch, of: lambda x, y: x - y),
    ("multiply", "x y", lambda nd, of: lambda x, y: x * y, lambda torch, of: lambda x, y: x * y),
    ("divide", "x positive", lambda nd, of: lambda x, y: x / y, lambda torch, of: lambda x, y: x / y),
    ("add number", "x", lambda nd, of: lambda x: x + 2.0, lambda torch, of: lambda x: x + 2.0),
    ("multiply number", "x", lambda nd, of: lambda x: x * 0.5, lambda torch, of: lambda x: x * 0.5),
    ("maximum", "x y", lambda nd, of: nd.maximum, lambda torch, of: torch.maximum),
    ("add row", "x one_row", lambda nd, of: nd.broadcast_add, lambda torch, of: torch.add),
    ("exp", "x", lambda nd, of: nd.exp, lambda torch, of: torch.exp),
    ("log", "positive", lambda nd, of: nd.log, lambda torch, of: torch.log),
    ("sqrt", "positive", lambda nd, of: nd.sqrt, lambda torch, of: torch.sqrt),
    ("square", "x", lambda nd, of: nd.square, lambda torch, of: torch.square),
    ("abs", "x", lambda nd, of: nd.abs, lambda torch, of: torch.abs),
    ("tanh", "x", lambda nd, of: nd.tanh, lambda torch, of: torch.tanh),
    ("sigmoid", "x", lambda nd, of: nd.sigmoid, lambda torch, of: torch.sigmoid),
    ("relu", "x", lambda nd, of: nd.relu, lambda torch, of: torch.relu),
    ("gelu", "x", lambda nd, of: lambda x: nd.LeakyReLU(x, act_type="gelu"),
     lambda torch, of: torch.nn.functional.gelu),
    ("clip", "x", lambda nd, of: lambda x: nd.clip(x, -1, 1), lambda torch, of: lambda x: torch.clamp(x, -1, 1)),
    ("sum", "x", lambda nd, of: lambda x: nd.sum(x, axis=1), lambda torch, of: lambda x: torch.sum(x, 1)),
    ("mean", "x", lambda nd, of: nd.mean, lambda torch, of: torch.mean),
    ("max", "x", lambda nd, of: lambda x: nd.max(x, axis=1), lambda torch, of: lambda x: torch.amax(x, 1)),
    ("norm", "x", lambda nd, of: nd.norm, lambda torch, of: torch.linalg.norm),
    ("softmax", "x", lambda nd, of: nd.softmax, lambda torch, of: lambda x: torch.softmax(x, -1)),
    ("log softmax", "x", lambda nd, of: nd.log_softmax, lambda torch, of: lambda x: torch.log_softmax(x, -1)),
    ("layer norm", "x row row", lambda nd, of: nd.LayerNorm,
     lambda torch, of: lambda x, g, b: torch.nn.functional.layer_norm(x, (20,), g, b)),
    ("product", "a b", lambda nd, of: nd.dot, lambda torch, of: torch.matmul),
    ("batched product", "stack turned", lambda nd, of: nd.batch_dot, lambda torch, of: torch.bmm),
    ("dense", "a b bias", lambda nd, of: lambda a, b, c: nd.FullyConnected(a, b, c, num_hidden=c.shape[0]),
     lambda torch, of: torch.nn.functional.linear),
    ("convolution", "image filters filter_bias",
     lambda nd, of: lambda x, w, b: nd.Convolution(x, w, b, kernel=(3, 3), pad=(1, 1), num_filter=4),
     lambda torch, of: lambda x, w, b: torch.nn.functional.conv2d(x, w, b, padding=1)),
    ("max pooling", "image", lambda nd, of: lambda x: nd.Pooling(x, kernel=(2, 2), stride=(2, 2)),
     lambda torch, of: lambda x: torch.nn.functional.max_pool2d(x, 2)),
    ("transpose", "stack", lambda nd, of: lambda x: nd.transpose(x, axes=(0, 2, 1)),
     lambda torch, of: lambda x: x.transpose(1, 2).contiguous()),
    ("concat", "x y", lambda nd, of: lambda x, y: nd.concat(x, y, dim=1),
     lambda torch, of: lambda x, y: torch.cat([x, y], 1)),
    ("take", "x", lambda nd, of: lambda x: nd.take(x, of["indices"]),
     lambda torch, of: lambda x: torch.index_select(x, 0, of["indices"])),
    ("pick", "x", lambda nd, of: lambda x: nd.pick(x, of["columns"]),
     lambda torch, of: lambda x: torch.gather(x, 1, of["columns"][:, None])[:, 0]),
]
# fmt: on


def best_us(call: Callable[[], Any], wait: Callable[[], Any], block: int) -> float:
    """Return the least microseconds of a call, with ``block`` calls before each wait."""
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
    """Measure all with flowmx or MXNet, by the same code."""
    figures: dict[str, float] = {}
    for size in SIZES:
        of = {name: mx.nd.array(each) for name, each in arrays(size).items()}
        for name, names, make, _ in CASES:
            function, operands = make(mx.nd, of), [of[each] for each in names.split()]
            figures[f"{name} {size}"] = best_us(lambda: function(*operands), mx.nd.waitall, BLOCK)  # noqa: B023
            leaves = [each.copy() for each in operands]
            for leaf in leaves:
                leaf.attach_grad()
            head = mx.nd.ones_like(function(*operands))

            def call() -> None:
                with mx.autograd.record():
                    out = function(*leaves)  # noqa: B023
                out.backward(head)  # noqa: B023

            figures[f"{name} + {size}"] = best_us(call, mx.nd.waitall, 1)
    return figures


def pytorch() -> dict[str, float]:
    """Measure all with PyTorch."""
    torch = import_module("torch")
    figures: dict[str, float] = {}
    for size in SIZES:
        of = {name: torch.from_numpy(each) for name, each in arrays(size).items()}
        for name, names, _, make in CASES:
            function, operands = make(torch, of), [of[each] for each in names.split()]
            figures[f"{name} {size}"] = best_us(lambda: function(*operands), lambda: None, BLOCK)  # noqa: B023
            leaves = [each.clone().requires_grad_() for each in operands]
            head = torch.ones_like(function(*operands))

            def call() -> None:
                for leaf in leaves:  # noqa: B023
                    leaf.grad = None
                function(*leaves).backward(head)  # noqa: B023

            figures[f"{name} + {size}"] = best_us(call, lambda: None, 1)
    return figures


def main() -> None:
    """Measure, and print the figures as JSON."""
    measure(mxnet_like, pytorch)


if __name__ == "__main__":
    main()
