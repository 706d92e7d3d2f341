"""A service under hostile load beside 16 honest clients, and under ten times the clients that never back off."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

from benchmarks import turns
from benchmarks.serving import Figures, Service, running

HONEST, HOSTILE, CLIENTS, MANY = 16, 200, 64, 640
SECONDS = float(os.environ.get("SECONDS", "60"))


def attack(service: Service, seconds: float) -> subprocess.Popen[str]:
    """Begin an attack."""
    script, address = str(turns.WORKERS / "hostile_load.py"), service.address.removeprefix("http://")
    command = [sys.executable, script, address, "/ml/predict", str(seconds), str(HOSTILE)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def turn(seconds: float = SECONDS) -> Figures:
    """The figures of one service: undisturbed, attacked, and with many stubborn clients."""
    with running("flowmx_gated") as service:
        calm = service.load(HONEST, seconds)
        before = service.lag()
        with attack(service, seconds) as hostile:
            under = service.load(HONEST, seconds)
            said, _ = hostile.communicate(timeout=seconds + 60)
        during = service.lag()
        usual = service.load(CLIENTS, seconds, stubborn=True)
        crowd = service.load(MANY, seconds, stubborn=True)
        after = service.lag()
    print("hostile clients:", json.loads(said))
    wrong = sum(n for kind, n in under["outcomes"].items() if kind not in ("200", "503"))
    return {
        "p99_ms": under["p99_ms"], "calm_p99_ms": calm["p99_ms"], "lag_p99_ms": during["p99_ms"], "wrong": float(wrong),
        "resident_mb": during["resident_mb"], "calm_resident_mb": before["resident_mb"],
        "ms_a_request": 1e3 / max(usual["per_s"], 1e-3), "crowd_ms_a_request": 1e3 / max(crowd["per_s"], 1e-3),
        "crowd_lag_p99_ms": after["p99_ms"],
    }  # fmt: skip


def compare(rounds: int) -> None:
    """Measure, and print the medians beside the bars."""
    taken = [turn() for _ in range(rounds)]
    figures = {"flowmx": {name: statistics.median(each[name] for each in taken) for name in taken[0]}}
    bars: turns.Bars = {
        "p99_ms": [("calm_p99_ms", 3.0)], "resident_mb": [("calm_resident_mb", 1.1)],
        "crowd_ms_a_request": [("ms_a_request", 1 / 0.9)], "lag_p99_ms": [("twenty", 1.0)],
    }  # fmt: skip
    figures["twenty"] = {"lag_p99_ms": 20.0}
    turns.report(f"Hostile load beside {HONEST} clients; {CLIENTS} and {MANY} that never back off", figures, bars)
