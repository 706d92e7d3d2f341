"""Processor seconds to bind a large graph for training, and the ratio of its memory to the lower bound.

    python planning.py SYSTEM [NODES [SHAPE]]
    python planning.py profile NODES SHAPE

Graphs have NODES nodes as the user counts them (variables and operators of the forward pass); binding differentiates
them too. Shapes: a ``chain`` of elementwise operators, ``residual`` blocks of convolutions and BatchNorms, ``wide``
blocks of concatenated branches, and an unrolled ``lstm``. ``profile`` prints where flowmx spends its time.
"""

from __future__ import annotations

import cProfile
import gc
import importlib
import json
import pstats
import sys
import time
from collections.abc import Callable
from typing import Any

import symbols  # a module of this folder: the peers cannot import the package


def chain(mx: Any, nodes: int) -> symbols.Model:
    """One operator after another; every tenth adds an earlier value."""
    x = early = mx.sym.Variable("data")
    for number in range(nodes - 1):
        if number % 10 == 9:
            x, early = x + early, x
        else:
            x = (mx.sym.tanh, mx.sym.sigmoid, mx.sym.sqrt)[number % 3](x)
    return symbols.Model(x, {"data": (64, 16)})


def residual(mx: Any, nodes: int) -> symbols.Model:
    """Blocks of two convolutions with BatchNorm and ReLU, 17 nodes each."""
    x, shape = mx.sym.Variable("data"), {"num_filter": 8, "kernel": (3, 3), "pad": (1, 1), "no_bias": True}
    for block in range(nodes // 17):
        y = x
        for half in range(2):
            y = mx.sym.Convolution(y, name=f"b{block}_conv{half}", **shape)
            y = mx.sym.BatchNorm(y, name=f"b{block}_norm{half}", fix_gamma=False)
            y = mx.sym.Activation(y, act_type="relu", name=f"b{block}_relu{half}") if half == 0 else y
        x = mx.sym.Activation(x + y, act_type="relu", name=f"b{block}_relu")
    return symbols.Model(x, {"data": (1, 8, 4, 4)})


def wide(mx: Any, nodes: int) -> symbols.Model:
    """Blocks of eight branches of a convolution and ReLU, joined along the channels, 33 nodes each."""
    x = mx.sym.Variable("data")
    for block in range(nodes // 33):
        branches = []
        for branch in range(8):
            name = f"b{block}_{branch}"
            y = mx.sym.Convolution(x, num_filter=2 + branch % 3, kernel=(1, 1), name=f"{name}_conv")
            branches.append(mx.sym.Activation(y, act_type="relu", name=f"{name}_relu"))
        x = mx.sym.Concat(*branches, dim=1, name=f"b{block}_join")
    return symbols.Model(x, {"data": (1, 8, 4, 4)})


def lstm(mx: Any, nodes: int) -> symbols.Model:
    """A language model with as many steps as ``nodes`` needs."""
    return symbols.language_model(mx, 2, steps=nodes // 28, hidden=8, words=16)


SHAPES: dict[str, Callable[[Any, int], symbols.Model]] = {
    "chain": chain, "residual": residual, "wide": wide, "lstm": lstm,
}  # fmt: skip


def bind(mx: Any, model: symbols.Model) -> Any:
    """Bind a model for training."""
    return model.symbol.simple_bind(mx.cpu(), grad_req=model.requests("write"), **model.inputs)


def seconds(mx: Any, shape: str, nodes: int) -> dict[str, float]:
    """Return the time to bind one graph, the shorter of two."""
    model, times = SHAPES[shape](mx, nodes), []
    for _ in range(2):
        gc.collect()
        start = time.process_time()
        bound = bind(mx, model)
        times.append(time.process_time() - start)
    figures = {f"{shape}_{nodes}_s": min(times)}
    if mx.__name__ == "flowmx":
        figures[f"{shape}_{nodes}_of_bound"] = ratio_to_bound(bound.plan)
    return figures


def ratio_to_bound(plan: Any) -> float:
    """Return the ratio of the arena's size to its lower bound: the peak of aligned bytes alive at one step."""
    from flowmx.graph.planning.arena_packing import Life, align, lower_bound

    bound = lower_bound([Life(align(life.size), life.first, life.last) for life in plan.lives])
    return float(plan.arena.size / bound) if bound else 1.0


def profile(shape: str, nodes: int) -> None:
    """Print a profile of binding."""
    mx = importlib.import_module("flowmx")
    model = SHAPES[shape](mx, nodes)
    profiler = cProfile.Profile()
    profiler.runcall(bind, mx, model)
    pstats.Stats(profiler).sort_stats("cumulative").print_stats("graph|executor|ops/|symbol|numpy|built-in", 45)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> None:
    """Measure, and print the figures as JSON."""
    system, nodes = sys.argv[1], [int(each) for each in sys.argv[2:3]] or [10_000, 40_000]
    if system == "profile":
        profile(sys.argv[3], nodes[0])
        return
    mx = importlib.import_module(system)
    figures: dict[str, float] = {}
    for shape in sys.argv[3:] or SHAPES:
        for count in nodes:
            figures |= seconds(mx, shape, count)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
