"""Time each step of a training plan, with the parameters that it reads or whose gradients it computes.

``figure8_layers.py flowmx <network> <batch>`` prints a profile for flowmx.kvstore.simulation as JSON. The plan is the
one that training runs; its steps are timed separately, and the fastest of several runs counts.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from networks import NETWORKS, symbol

import flowmx as mx
from flowmx.graph.running import steps as running

RUNS = 5


def timed(times: dict[Any, list[float]]) -> Any:
    """Return a replacement of run_steps that records how long the step of each node takes."""

    def run(context: Any, steps: Any, where: str, again: bool = False) -> None:
        for step in steps:
            start = time.perf_counter()
            step.forward(context, step.inputs, step.outputs)
            times.setdefault(step.node, []).append(time.perf_counter() - start)

    return run


def passes(plan: Any, times: dict[Any, list[float]], names: list[str]) -> dict[str, Any]:
    """Return forward's and backward's steps: seconds, and the parameters they read or whose gradients they complete."""

    def reads(node: Any) -> list[str]:
        roots = [plan.root.get(entry, entry).node for entry in node.inputs]
        return [root.name for root in roots if root.is_variable and root.name in names]

    def fastest(node: Any) -> float:
        return round(min(times[node][1:]), 7)

    makes: dict[Any, list[str]] = {}
    for variable, entry in plan.gradients.items():
        makes.setdefault(plan.root.get(entry, entry).node, []).append(variable.name)
    forward, needed = [], set[str]()
    for node in plan.forward:
        if node in times:
            new = [name for name in dict.fromkeys(reads(node)) if name not in needed]
            needed.update(new)
            forward.append([fastest(node), new])
    backward = [[fastest(node), makes.pop(node, [])] for node in plan.backward if node in times]
    backward.append([0.0, [name for rest in makes.values() for name in rest]])
    return {"forward": forward, "backward": backward}


def main(network: str, batch: int) -> None:
    """Measure a network, and print its profile."""
    net = symbol(mx, NETWORKS[network])
    names = [name for name in net.list_arguments() if name not in ("data", "softmax_label")]
    requests = dict.fromkeys(names, "write") | {"data": "null", "softmax_label": "null"}
    executor = net.simple_bind(mx.cpu(), data=(batch, 3, 224, 224), grad_req=requests)
    random = np.random.default_rng(0)
    for name in names:
        executor.arg_dict[name][:] = random.normal(0, 0.05, executor.arg_dict[name].shape)
    times: dict[Any, list[float]] = {}
    running.run_steps = timed(times)
    steps = []
    for _ in range(RUNS):
        start = time.perf_counter()
        executor.forward_backward()
        mx.nd.waitall()
        steps.append(time.perf_counter() - start)
    shapes = {name: list(executor.arg_dict[name].shape) for name in names}
    profile = {"batch": batch, "step": min(steps), "shapes": shapes, **passes(executor.plan, times, names)}
    assert {name for _, new in profile["forward"] for name in new} == set(names)
    assert {name for _, new in profile["backward"] for name in new} == set(names)
    print(json.dumps(profile))


if __name__ == "__main__":
    main(sys.argv[2], int(sys.argv[3]))
