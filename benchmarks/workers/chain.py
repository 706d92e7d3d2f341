"""Milliseconds of chains of ten elementwise operators, each compared with one pass over the same memory.

    python chain.py SYSTEM [ELEMENTS]

flowmx and MXNet run them bound as symbols, PyTorch eagerly. ``read and write`` is the fastest pass that reads the
inputs and writes the output: a copy split among the cores, or loops that only add the inputs. All take turns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from timing import measure, sizes  # a module of this folder: the peers cannot import the package

SECONDS = 8.0
CORES = 2


def arithmetic(f: Any, x: Any) -> Any:
    """Sums and products between limits."""
    x = (x * 1.1 + 0.3) * x - 0.5
    x = f.clip((x * 0.9 + x) * x, -8.0, 8.0)
    return f.relu(x - 0.25)


def one_function(f: Any, x: Any) -> Any:
    """The same with an exponential."""
    x = (x * 1.1 + 0.3) * 0.5
    x = f.clip(f.exp(x) + 0.1, 0.0, 8.0) * 2.0
    return f.relu((x - 0.25) * x)


def functions(f: Any, x: Any) -> Any:
    """Three functions with arithmetic between them."""
    x = f.tanh(x * 1.1 + 0.3) * 2.0
    x = f.sigmoid(x - 0.1) * x
    return f.exp(x * 0.5) + 1.0


def gate(f: Any, x: Any, y: Any, z: Any) -> Any:
    """Three inputs, one of which gates the others."""
    open = f.sigmoid(x * 0.5 + 0.1)
    return f.relu((y * open - z * 0.3) * 1.5 + y * 0.25)


def blend(f: Any, x: Any, y: Any, z: Any) -> Any:
    """Three inputs, arithmetic only."""
    return f.relu((x * y + z * 0.5) * 0.9 - x * 0.1 + (y - 0.2) * z)


CHAINS: dict[str, tuple[Callable[..., Any], int]] = {
    "arithmetic": (arithmetic, 1),
    "one function": (one_function, 1),
    "three functions": (functions, 1),
    "three inputs": (blend, 3),
    "three inputs, a function": (gate, 3),
}


def turns(cases: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the fastest run of each; cases take turns until the time is over."""
    for case in (*cases.values(), *cases.values()):
        case()
    best = dict.fromkeys(cases, float("inf"))
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for name, case in cases.items():
            for _ in range(3):
                start = time.perf_counter()
                case()
                best[name] = min(best[name], 1000 * (time.perf_counter() - start))
    return best


def passes(cases: dict[str, Callable[[], Any]], rivals: dict[int, list[Callable[[], Any]]]) -> dict[str, float]:
    """Return the figures of the chains, and of the fastest pass for each number of inputs."""
    every = {f"{count} {number}": each for count, those in rivals.items() for number, each in enumerate(those)}
    best = turns({**cases, **every})
    for count, those in rivals.items():
        best[f"read and write, {count}"] = min(best.pop(f"{count} {number}") for number in range(len(those)))
    return best


def normal(size: int, seed: int) -> Any:
    """Return random operands."""
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def copies(size: int) -> Callable[[], Any]:
    """Return NumPy's copy, split among the cores."""
    source, target, pool = normal(size, 0), np.zeros(size, np.float32), ThreadPoolExecutor(CORES)
    share = -(-size // CORES)
    parts = [slice(start, start + share) for start in range(0, size, share)]
    return lambda: list(pool.map(lambda part: np.copyto(target[part], source[part]), parts))


def loops(size: int, count: int) -> list[Callable[[], Any]]:
    """Return flowmx's loops that add the inputs, with ordinary and with streaming stores."""
    from flowmx.ops.formulas.expressions import placeholder
    from flowmx.ops.kernels.llvm.assembly import FLOAT
    from flowmx.ops.kernels.llvm.strided_loops import StridedLoop, axes_of

    def aligned(seed: int) -> Any:
        memory = np.zeros(size + 16, np.float32)
        start = -memory.ctypes.data // 4 % 16
        memory[start : start + size] = normal(size, seed)
        return memory[start : start + size]

    arrays = [aligned(seed) for seed in range(count + 1)]
    total = placeholder(0)
    for position in range(1, count):
        total = total + placeholder(position)
    axes = axes_of(arrays)
    assert axes is not None
    loops = [StridedLoop([total], FLOAT, axes.is_constant, 1, is_streaming) for is_streaming in (False, True)]
    words = loops[0].words(axes, [], CORES)
    return [lambda loop=loop: loop.run(words, arrays, CORES) for loop in loops]  # type: ignore[misc]


def mxnet_like(mx: Any, size: int) -> dict[str, float]:
    """Measure flowmx or MXNet, by the same code."""
    cases: dict[str, Callable[[], Any]] = {}
    for name, (chain, count) in CHAINS.items():
        net = chain(mx.sym, *[mx.sym.Variable(f"x{position}") for position in range(count)])
        arrays = [mx.nd.array(normal(size, seed)) for seed in range(count)]
        bound = net.bind(mx.cpu(), arrays, grad_req="null")

        def step(bound: Any = bound) -> None:
            bound.forward()
            mx.nd.waitall()

        cases[name] = step
    if mx.__name__ != "flowmx":
        return turns(cases)
    return passes(cases, {1: [copies(size), *loops(size, 1)], 3: loops(size, 3)})


def pytorch(size: int) -> dict[str, float]:
    """Measure the same chains, eagerly."""
    import torch

    torch.set_grad_enabled(False)
    inputs = [torch.from_numpy(normal(size, seed)) for seed in range(3)]
    target = torch.empty_like(inputs[0])
    cases = {
        name: lambda chain=chain, count=count: chain(torch, *inputs[:count])
        for name, (chain, count) in CHAINS.items()
    }  # fmt: skip
    return passes(cases, {1: [lambda: target.copy_(inputs[0])]})


def main() -> None:
    """Measure, and print the figures as JSON."""
    measure(mxnet_like, pytorch, *sizes(sys.argv[2:], (10_000_000,)))


if __name__ == "__main__":
    main()
