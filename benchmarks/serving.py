"""Serving ResNet-18 for 32x32 images, compared with PyTorch on a thread pool, and with batching by hand."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import turns

SYSTEMS = {"flowmx": "flowmx", "torch_pool": "torch", "torch_batch": "torch", "flowmx_gated": "flowmx"}
"""The system whose interpreter runs each service."""
ENVIRONMENT = {"FLOWMX_CPU_WORKER_NTHREADS": str(len(os.sched_getaffinity(0)))}
"""One batch per core: kernels that share a batch wait for each other when other work takes a core."""
CLIENTS, MANY = 64, 640
SECONDS = float(os.environ.get("SECONDS", "8"))
Figures = dict[str, float]


class Service:
    """A running service.

    Args:
        system: the worker's name for it.
    """

    def __init__(self, system: str) -> None:
        interpreter = turns.python_of(SYSTEMS[system])
        assert interpreter is not None
        import aiohttp

        script = str(turns.WORKERS / "serving.py")
        peer_packages = [str(Path(aiohttp.__file__).parent.parent)] if SYSTEMS[system] != "flowmx" else []
        self.process = subprocess.Popen(
            [interpreter, script, system, *peer_packages], env={**os.environ, **ENVIRONMENT}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.address = f"http://127.0.0.1:{json.loads(self.process.stdout.readline())['port']}"

    def lag(self) -> Figures:
        """Return the delays of the server's event loop since the previous call, and its memory."""
        with urllib.request.urlopen(f"{self.address}/lag") as reply:
            figures: Figures = json.load(reply)
        return figures

    def load(self, clients: int, seconds: float, leaving: float = 0.0, stubborn: bool = False) -> dict[str, Any]:
        """Run concurrent clients for some seconds; return their latencies and throughput."""
        script = str(turns.WORKERS / "serving_load.py")
        command = [sys.executable, script, f"{self.address}/ml/predict", str(clients), str(seconds), str(leaving)]
        command += ["stubborn"] if stubborn else []
        process = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 300, check=False)
        if process.returncode:
            raise RuntimeError(f"the clients ended with {process.returncode}:\n{process.stderr}")
        figures: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
        return figures

    def stop(self) -> None:
        """Stop the service."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def running(system: str) -> Iterator[Service]:
    """Run a service while the block runs."""
    service = Service(system)
    try:
        yield service
    finally:
        service.stop()


def turn(system: str) -> Figures:
    """Measure one turn of a service: the first requests, 64 clients, and ten times as many."""
    with running(system) as service:
        service.load(4, 2.0)
        first = service.lag()
        normal_load = service.load(CLIENTS, SECONDS)
        during = service.lag()
        overload = service.load(MANY, SECONDS)
        after = service.lag()
    unexpected = {
        kind: n for kind, n in {**normal_load["outcomes"], **overload["outcomes"]}.items() if kind not in ("200", "503")
    }
    return {
        "ms_a_request": 1e3 / max(normal_load["per_s"], 1e-3),
        "crowd_ms_a_request": 1e3 / max(overload["per_s"], 1e-3),
        "p99_ms": normal_load["p99_ms"], "crowd_p99_ms": overload["p99_ms"], "first_lag_p99_ms": first["p99_ms"],
        "cpu_ms_a_request": 1e3 * (during["cpu_s"] - first["cpu_s"]) / max(normal_load["outcomes"].get("200", 0), 1),
        "lag_p99_ms": during["p99_ms"], "crowd_lag_p99_ms": after["p99_ms"], "resident_mb": during["resident_mb"],
        "crowd_resident_mb": after["resident_mb"], "crowd_refused": float(overload["outcomes"].get("503", 0)),
        "unexpected": float(sum(unexpected.values())),
    }  # fmt: skip


def compare(rounds: int) -> None:
    """Measure all in turns, and print the medians."""
    systems = [name for name, interpreter in SYSTEMS.items() if turns.python_of(interpreter) and name != "flowmx_gated"]
    figures_by_system: dict[str, list[Figures]] = {system: [] for system in systems}
    for _ in range(rounds):
        for system in systems:
            figures_by_system[system].append(turn(system))
    figures = {
        s: {name: statistics.median(t[name] for t in each) for name in each[0]} for s, each in figures_by_system.items()
    }
    peers = [system for system in systems if system != "flowmx"]
    best = min(peers, key=lambda peer: figures[peer]["ms_a_request"], default="")
    bars: turns.Bars = {
        "ms_a_request": [(best, 1 / 1.2)], "p99_ms": [(best, 1.0)], "crowd_p99_ms": [("p99_ms", 2.0)],
        **{f"{phase}lag_p99_ms": [("ten", 1.0)] for phase in ("first_", "", "crowd_")},
        "crowd_resident_mb": [("resident_mb", 1.1)],
    }  # fmt: skip
    figures["ten"] = dict.fromkeys(("first_lag_p99_ms", "lag_p99_ms", "crowd_lag_p99_ms"), 10.0)
    turns.report(f"Serving ResNet-18, 32x32, {CLIENTS} and {MANY} clients (milliseconds)", figures, bars)
