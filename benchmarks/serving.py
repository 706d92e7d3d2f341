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
"""From a service to whose interpreter runs it."""
ENVIRONMENT = {"FLOWMX_CPU_WORKER_NTHREADS": str(len(os.sched_getaffinity(0)))}
"""A batch a core: kernels that share one wait for each other wherever something else runs on a core."""
CLIENTS, MANY = 64, 640
SECONDS = float(os.environ.get("SECONDS", "8"))
Figures = dict[str, float]


class Service:
    """A running service.

    Args:
        system: which.
    """

    def __init__(self, system: str) -> None:
        interpreter = turns.python_of(SYSTEMS[system])
        assert interpreter is not None
        import aiohttp

        script = str(turns.WORKERS / "serving.py")
        lent = [str(Path(aiohttp.__file__).parent.parent)] if SYSTEMS[system] != "flowmx" else []
        self.process = subprocess.Popen(
            [interpreter, script, system, *lent], env={**os.environ, **ENVIRONMENT}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.address = f"http://127.0.0.1:{json.loads(self.process.stdout.readline())['port']}"

    def lag(self) -> Figures:
        """The delays of the server's event loop since the previous call, and its memory."""
        with urllib.request.urlopen(f"{self.address}/lag") as reply:
            found: Figures = json.load(reply)
        return found

    def load(self, clients: int, seconds: float, leaving: float = 0.0, stubborn: bool = False) -> dict[str, Any]:
        """Run so many concurrent clients for so many seconds; return their latencies and throughput."""
        script = str(turns.WORKERS / "serving_load.py")
        command = [sys.executable, script, f"{self.address}/ml/predict", str(clients), str(seconds), str(leaving)]
        command += ["stubborn"] if stubborn else []
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 300, check=False)
        if done.returncode:
            raise RuntimeError(f"the clients ended with {done.returncode}:\n{done.stderr}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def stop(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def running(system: str) -> Iterator[Service]:
    """A service while the block runs."""
    service = Service(system)
    try:
        yield service
    finally:
        service.stop()


def turn(system: str) -> Figures:
    """One turn of a service: the first requests, 64 clients, and ten times as many."""
    with running(system) as service:
        service.load(4, 2.0)
        first = service.lag()
        usual = service.load(CLIENTS, SECONDS)
        during = service.lag()
        crowd = service.load(MANY, SECONDS)
        after = service.lag()
    strange = {kind: n for kind, n in {**usual["outcomes"], **crowd["outcomes"]}.items() if kind not in ("200", "503")}
    return {
        "ms_a_request": 1e3 / max(usual["per_s"], 1e-3), "p99_ms": usual["p99_ms"], "crowd_p99_ms": crowd["p99_ms"],
        "crowd_ms_a_request": 1e3 / max(crowd["per_s"], 1e-3), "first_lag_p99_ms": first["p99_ms"],
        "cpu_ms_a_request": 1e3 * (during["cpu_s"] - first["cpu_s"]) / max(usual["outcomes"].get("200", 0), 1),
        "lag_p99_ms": during["p99_ms"], "crowd_lag_p99_ms": after["p99_ms"], "resident_mb": during["resident_mb"],
        "crowd_resident_mb": after["resident_mb"], "crowd_refused": float(crowd["outcomes"].get("503", 0)),
        "strange": float(sum(strange.values())),
    }  # fmt: skip


def compare(rounds: int) -> None:
    """Measure all in turns, and print the medians."""
    systems = [name for name, whose in SYSTEMS.items() if turns.python_of(whose) and name != "flowmx_gated"]
    taken: dict[str, list[Figures]] = {system: [] for system in systems}
    for _ in range(rounds):
        for system in systems:
            taken[system].append(turn(system))
    figures = {s: {name: statistics.median(t[name] for t in each) for name in each[0]} for s, each in taken.items()}
    peers = [system for system in systems if system != "flowmx"]
    best = min(peers, key=lambda peer: figures[peer]["ms_a_request"], default="")
    bars: turns.Bars = {
        "ms_a_request": [(best, 1 / 1.2)], "p99_ms": [(best, 1.0)], "crowd_p99_ms": [("p99_ms", 2.0)],
        **{f"{phase}lag_p99_ms": [("ten", 1.0)] for phase in ("first_", "", "crowd_")},
        "crowd_resident_mb": [("resident_mb", 1.1)],
    }  # fmt: skip
    figures["ten"] = dict.fromkeys(("first_lag_p99_ms", "lag_p99_ms", "crowd_lag_p99_ms"), 10.0)
    turns.report(f"Serving ResNet-18, 32x32, {CLIENTS} and {MANY} clients (milliseconds)", figures, bars)
