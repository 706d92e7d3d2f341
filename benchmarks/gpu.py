"""flowmx on a GPU, compared with PyTorch: networks, a Transformer block, launches, copies and memory."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import flowmx as mx
from benchmarks import turns
from flowmx.devices.cuda import driver

NETWORKS = ("alexnet", "googlenet", "vgg_a", "resnet_50")
GRAPHS = {"FLOWMX_CUDA_GRAPHS": "1"}
_EAGER, _CAPTURED, _BLOCK = 1.05, 0.95, 1.1


def compare(rounds: int) -> None:
    """All of it; says so where there is no GPU."""
    if not mx.num_gpus():
        print("gpu: there is no GPU here, or no CuPy (pip install flowmx[cuda13]): nothing is measured")
        return
    print(f"On {driver.gpus()[0]}")
    for name in NETWORKS:
        _network(f"{name} (milliseconds, batch 32, 224x224, forward and backward)", "gpu_networks", [name], rounds)
    _network("Transformer block (milliseconds, 16x512x1024, forward and backward)", "gpu_block", [], rounds, _BLOCK)
    figures = turns.compare("gpu_device", ["torch"], rounds, pick=min)
    turns.report("The device", figures, {})
    own = figures["flowmx"]
    for name, most in (("launch_us", 15.0), ("both_of_larger", 1.1), ("peak_of_largest", 1.3)):
        print(f"  {name}: {own[name]:.2f}, at most {most:g}: {'met' if own[name] <= most else 'MISSED'}")


def _network(title: str, script: str, arguments: Sequence[str], rounds: int, eager: float = _EAGER) -> None:
    """One script under PyTorch, flowmx, and flowmx with graphs, in turns."""
    systems = {"torch": ("torch", {}), "flowmx": ("flowmx", {}), "graphs": ("flowmx", GRAPHS)}
    if turns.python_of("torch") is None:
        print("PyTorch is not installed: measured without it")
        del systems["torch"]
    taken: dict[str, list[dict[str, float]]] = {label: [] for label in systems}
    for _ in range(rounds):
        for label, (system, environment) in systems.items():
            taken[label].append(turns.run(script, system, arguments, environment))
    found = {label: {name: statistics.median(turn[name] for turn in all_) for name in all_[0]}
             for label, all_ in taken.items()}  # fmt: skip
    graphs = found.pop("graphs")
    for label, own, most in (("", found["flowmx"], eager), (", as CUDA graphs", graphs, _CAPTURED)):
        turns.report(title + label, {**found, "flowmx": own}, {name: [("torch", most)] for name in own})
