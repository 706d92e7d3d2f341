"""Hostile load of a service and of a job with honest clients; a service under ten times as many that never back off.

    SECONDS=60 PERIODS=3 python -m benchmarks hostile

Attacks take `PERIODS` times `SECONDS`. Memory is read after each period; it must be flat, so the last one counts.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import turns
from benchmarks.serving import Figures, running

HONEST, HOSTILE, CLIENTS, MANY = 16, 200, 64, 640
SECONDS = float(os.environ.get("SECONDS", "60"))
PERIODS = int(os.environ.get("PERIODS", "3"))
SETTLING_SECONDS = 5.0
PAGE = os.sysconf("SC_PAGE_SIZE")


def attack(address: str, path: str, seconds: float, clients: int = HOSTILE) -> subprocess.Popen[str]:
    """Start an attack."""
    script = str(turns.WORKERS / "hostile_load.py")
    command = [sys.executable, script, address.removeprefix("http://"), path, str(seconds), str(clients)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def print_outcomes(attacks: Sequence[subprocess.Popen[str]], seconds: float) -> None:
    """Wait until attacks end, and print their outcomes."""
    for each in attacks:
        print("hostile clients:", json.loads(each.communicate(timeout=seconds + 60)[0]))


# -- a service -----------------------------------------------------------------------------------------


def turn(seconds: float = SECONDS) -> Figures:
    """Return the figures of one service: undisturbed, attacked, and with many stubborn clients."""
    with running("flowmx_gated") as service:
        service.load(HONEST, seconds / 2)  # warm up: compile, and fill the caches
        service.lag()
        calm = service.load(HONEST, seconds)
        before = service.lag()
        for period in range(PERIODS):
            with attack(service.address, "/ml/predict", seconds) as hostile:
                attacked = service.load(HONEST, seconds)
                print_outcomes([hostile], seconds)
            during = service.lag()
            print(f"period {period}: {during['resident_mb']:.1f} MB, before {before['resident_mb']:.1f}")
        normal_load = service.load(CLIENTS, seconds, stubborn=True)
        overload = service.load(MANY, seconds, stubborn=True)
        after = service.lag()
    wrong = sum(n for kind, n in attacked["outcomes"].items() if kind not in ("200", "503"))
    return {
        "p99_ms": attacked["p99_ms"], "calm_p99_ms": calm["p99_ms"], "lag_p99_ms": during["p99_ms"],
        "wrong": float(wrong),
        "resident_mb": during["resident_mb"], "calm_resident_mb": before["resident_mb"],
        "ms_a_request": 1e3 / max(normal_load["per_s"], 1e-3), "crowd_ms_a_request": 1e3 / max(overload["per_s"], 1e-3),
        "crowd_lag_p99_ms": after["p99_ms"],
    }  # fmt: skip


# -- a job ---------------------------------------------------------------------------------------------


class Job:
    """A scheduler, a server and a worker, over TCP and with a secret.

    Args:
        folder: where the secret is written.
        stack: ends the processes.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        secret = folder / "secret"
        secret.touch(0o600)
        secret.write_text(secrets.token_hex(32))
        self._stack = stack
        self.addresses = {role: f"127.0.0.1:{_free_port()}" for role in ("scheduler", "server")}
        self._environ = {
            **os.environ, "FLOWMX_SCHEDULER": self.addresses["scheduler"], "FLOWMX_SECRET_FILE": str(secret),
            "FLOWMX_NUM_WORKERS": "1", "FLOWMX_NUM_SERVERS": "1", "FLOWMX_KVSTORE_LOCAL": "0",
        }  # fmt: skip
        port = self.addresses["server"].rpartition(":")[2]
        self.nodes = {"scheduler": self._start("-m", "flowmx", "scheduler")}
        _line(self.nodes["scheduler"])
        self.nodes["server"] = self._start("-m", "flowmx", "server", "--port", port)
        self.worker = self._start(str(turns.WORKERS / "hostile_rounds.py"), FLOWMX_ROLE="worker")
        assert _line(self.worker) == "ready"

    def _start(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments], env={**self._environ, **environ}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._stack.callback(_end, process)
        return process

    def rounds(self, seconds: float) -> Figures:
        """Return the times of the worker's rounds."""
        assert self.worker.stdin is not None
        self.worker.stdin.write(f"{seconds}\n")
        self.worker.stdin.flush()
        figures: Figures = json.loads(_line(self.worker))
        return figures

    def resident(self) -> Figures:
        """Return the resident megabytes by role."""
        pages = {role: Path(f"/proc/{each.pid}/statm").read_text().split()[1] for role, each in self.nodes.items()}
        return {role: int(count) * PAGE / 1e6 for role, count in pages.items()}


@contextmanager
def job() -> Iterator[Job]:
    """Run a job while the block runs."""
    with tempfile.TemporaryDirectory(prefix="flowmx-") as folder, ExitStack() as stack:
        yield Job(Path(folder), stack)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended with {process.wait()}")
    return line.strip()


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def job_turn(seconds: float = SECONDS) -> Figures:
    """Return the figures of one job: undisturbed, and with its scheduler and its server attacked."""
    with job() as running_job:
        running_job.rounds(seconds / 2)
        calm, before = running_job.rounds(seconds), running_job.resident()
        for period in range(PERIODS):
            addresses = running_job.addresses.values()
            attacks = [attack(each, "/v1/push", seconds, HOSTILE // 2) for each in addresses]
            attacked = running_job.rounds(seconds)
            print_outcomes(attacks, seconds)
            running_job.rounds(SETTLING_SECONDS)  # by then, requests that the attackers left half sent have timed out
            during = running_job.resident()
            print(f"period {period}: {during} MB, before {before}")
    return {
        "ms_a_round": attacked["ms_a_round"], "calm_ms_a_round": calm["ms_a_round"], "round_p99_ms": attacked["p99_ms"],
        "calm_round_p99_ms": calm["p99_ms"], **{f"{role}_mb": each for role, each in during.items()},
        **{f"calm_{role}_mb": each for role, each in before.items()},
    }  # fmt: skip


def _medians(turn_figures: list[Figures]) -> dict[str, Figures]:
    return {"flowmx": {name: statistics.median(each[name] for each in turn_figures) for name in turn_figures[0]}}


def compare(rounds: int) -> None:
    """Measure, and print the medians with the bars."""
    figures = _medians([turn() for _ in range(rounds)])
    bars: turns.Bars = {
        "p99_ms": [("calm_p99_ms", 3.0)], "resident_mb": [("calm_resident_mb", 1.1)],
        "crowd_ms_a_request": [("ms_a_request", 1 / 0.9)], "lag_p99_ms": [("twenty", 1.0)],
    }  # fmt: skip
    figures["twenty"] = {"lag_p99_ms": 20.0}
    turns.report(f"Hostile load with {HONEST} honest clients; {CLIENTS} and {MANY} that never back off", figures, bars)
    bars = {"ms_a_round": [("calm_ms_a_round", 2.0)]}
    bars |= {f"{role}_mb": [(f"calm_{role}_mb", 1.1)] for role in ("scheduler", "server")}
    turns.report(f"Hostile load of a job: {HOSTILE} clients", _medians([job_turn() for _ in range(rounds)]), bars)
