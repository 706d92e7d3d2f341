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
    """Measure all; print a message where there is no GPU."""
    if not mx.num_gpus():
        print("gpu: no GPU, or no CuPy (pip install cupy-cuda13x): nothing is measured")
        return
    print(f"On {driver.gpus()[0]}")
    for name in NETWORKS:
        _network(f"{name} (milliseconds, batch 32, 224x224, forward and backward)", "gpu_networks", [name], rounds)
    _network("Transformer block (milliseconds, 16x512x1024, forward and backward)", "gpu_block", [], rounds, _BLOCK)
    figures = turns.compare("gpu_device", ["torch"], rounds, pick=min)
    turns.report("The device", figures, {})
    measured = figures["flowmx"]
    for name, limit in (("launch_us", 15.0), ("both_of_larger", 1.1), ("peak_of_largest", 1.3)):
        print(f"  {name}: {measured[name]:.2f}, at most {limit:g}: {'met' if measured[name] <= limit else 'MISSED'}")


def _network(title: str, script: str, arguments: Sequence[str], rounds: int, eager: float = _EAGER) -> None:
    """Measure a script under PyTorch, flowmx, and flowmx with graphs, in turns."""
    systems = {"torch": ("torch", {}), "flowmx": ("flowmx", {}), "graphs": ("flowmx", GRAPHS)}
    if turns.python_of("torch") is None:
        print("PyTorch is not installed: measured without it")
        del systems["torch"]
    turns_of: dict[str, list[dict[str, float]]] = {label: [] for label in systems}
    for _ in range(rounds):
        for label, (system, environment) in systems.items():
            turns_of[label].append(turns.run(script, system, arguments, environment))
    medians = {label: {name: statistics.median(turn[name] for turn in all_) for name in all_[0]}
             for label, all_ in turns_of.items()}  # fmt: skip
    graphs = medians.pop("graphs")
    for label, measured, limit in (("", medians["flowmx"], eager), (", as CUDA graphs", graphs, _CAPTURED)):
        turns.report(title + label, {**medians, "flowmx": measured}, {name: [("torch", limit)] for name in measured})
