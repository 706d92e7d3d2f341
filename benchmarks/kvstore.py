"""Distributed stores in turns: flowmx, MXNet's ps-lite and PyTorch's gloo, each as a job of processes on loopback.

The time of an iteration is from when the first worker begins until the last is done. Each system does it in the ways
that it has: a push and a pull, or a pushpull; an all-reduce of each array, or of one flat copy of all. The one with the
lower median counts, and all are shown.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import turns

__all__ = ["compare", "measure"]

WORKER = turns.WORKERS / "kvstore.py"
ITERATIONS, SECONDS = 12, 300

MAIN = ("25 of 4 MB", "200 of 256 B", "GoogLeNet")
ROWS = ("1000 rows of 16", "1000 rows of 64")
MORE = ("1 of 100 MB", "50 of 1 MB", "1000 of 256 B", "ResNet-50")


class Setting(NamedTuple):
    """A kind of job: its name, cases, workers, servers, their optimizer, and the systems compared with flowmx."""

    name: str
    cases: Sequence[str]
    workers: int = 2
    servers: int = 1
    optimizer: str = "none"
    peers: Sequence[str] = ("mxnet",)


SETTINGS = (
    Setting("2 workers, 1 server", (*MAIN, *MORE), peers=("mxnet", "torch")),
    Setting("2 workers, 2 servers", MAIN, servers=2),
    Setting("2 workers, 1 server with SGD and momentum", MAIN, optimizer="sgd"),
    Setting("1 worker, 2 servers", ROWS, workers=1, servers=2),
)

BARS: Mapping[str, Mapping[str, float]] = {
    "25 of 4 MB": {"mxnet": 0.8, "torch": 1.5},
    "200 of 256 B": {"mxnet": 0.5, "torch": 1.5},
    "GoogLeNet": {"mxnet": 0.8, "torch": 1.5},
    "1000 rows of 16": {"mxnet": 0.6},
    "1000 rows of 64": {"mxnet": 0.6},
}

Times = dict[str, list[float]]
"""By "case/way" the milliseconds of each iteration."""


def compare(rounds: int, settings: Iterable[Setting] = SETTINGS) -> None:
    """Measure every setting in turns, and print the best and the median of each case, and the ratios."""
    for setting in settings:
        systems = ["flowmx", *(peer for peer in setting.peers if turns.python_of(peer))]
        taken: dict[str, list[Times]] = {system: [] for system in systems}
        for _ in range(rounds):
            for system in systems:
                taken[system].append(measure(system, setting))
        report(setting, {system: joined(times) for system, times in taken.items()})


def measure(system: str, setting: Setting, iterations: int = ITERATIONS) -> Times:
    """One job of one system.

    Raises:
        RuntimeError: a process of it failed.
    """
    with tempfile.TemporaryDirectory(prefix="kvstore-") as folder:
        arguments = [str(WORKER), system, ",".join(setting.cases), str(iterations), setting.optimizer, folder]
        _run(_COMMANDS[system](setting, arguments))
        found = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    if len(found) != setting.workers:
        raise RuntimeError(f"{system}: {len(found)} of {setting.workers} workers came to the end")
    return {way: [_span(each) for each in zip(*(times[way] for times in found), strict=True)] for way in found[0]}


def joined(turns_of_one: Sequence[Times]) -> Times:
    """The times of all turns."""
    return {name: [each for taken in turns_of_one for each in taken[name]] for name in turns_of_one[0]}


def ways_of(case: str, times: Times) -> Times:
    """The ways in which a system did a case, the one with the lowest median first."""
    found = {name.partition("/")[2]: taken for name, taken in times.items() if name.partition("/")[0] == case}
    return dict(sorted(found.items(), key=lambda way: statistics.median(way[1])))


def report(setting: Setting, figures: Mapping[str, Times]) -> None:
    """Print the best and the median of each case, system and way, and flowmx's best way compared with each system's."""
    print(f"\n{setting.name} (milliseconds: best, median; ratio of flowmx's median to it)")
    for case in setting.cases:
        own = statistics.median(next(iter(ways_of(case, figures["flowmx"]).values())))
        for system, times in figures.items():
            for number, (way, taken) in enumerate(ways_of(case, times).items()):
                ratio = own / statistics.median(taken)
                best, middle = min(taken), statistics.median(taken)
                line = f"  {case:15} {system:7} {way:15} {best:8.2f} {middle:8.2f} {ratio:6.2f}"
                print(line + _verdict(setting, case, system, ratio) * (number == 0), flush=True)


def _verdict(setting: Setting, case: str, system: str, ratio: float) -> str:
    most = BARS.get(case, {}).get(system)
    if most is None or setting not in (SETTINGS[0], SETTINGS[-1]):
        return ""
    return f"  at most {most:g}: {'met' if ratio <= most else 'MISSED'}"


def _span(times: Sequence[tuple[float, float]]) -> float:
    return 1000 * (max(end for _, end in times) - min(start for start, _ in times))


Command = tuple[list[str], dict[str, str]]
"""A process: its arguments, and its environment variables in addition to this one's."""


def _run(commands: Sequence[Command]) -> None:
    """Run the processes of a job; the first that fails ends them all."""
    running = [_start(command, environment) for command, environment in commands]
    end = time.monotonic() + SECONDS
    try:
        while any(process.poll() is None for process in running):
            failed = next((process for process in running if process.poll()), None)
            if failed is not None or time.monotonic() > end:
                raise RuntimeError(f"{(failed or running[0]).args!r} failed, or took longer than {SECONDS} s")
            time.sleep(0.05)
    finally:
        for process in running:
            process.kill()
            process.wait()


def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)


def _flowmx(setting: Setting, arguments: list[str]) -> list[Command]:
    launch = ["-m", "flowmx", "launch", "--workers", str(setting.workers), "--servers", str(setting.servers), "--"]
    return [([sys.executable, *launch, sys.executable, *arguments], {})]


def _mxnet(setting: Setting, arguments: list[str]) -> list[Command]:
    python = turns.python_of("mxnet") or ""
    common = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(_free_port()),
        "DMLC_NUM_WORKER": str(setting.workers),
        "DMLC_NUM_SERVER": str(setting.servers),
    }
    others = ["scheduler", *["server"] * setting.servers]
    found: list[Command] = [([python, "-c", "import mxnet"], {**common, "DMLC_ROLE": role}) for role in others]
    return found + [([python, *arguments], {**common, "DMLC_ROLE": "worker"})] * setting.workers


def _torch(setting: Setting, arguments: list[str]) -> list[Command]:
    python = turns.python_of("torch") or ""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(setting.workers)}
    return [([python, *arguments], {**common, "RANK": str(rank)}) for rank in range(setting.workers)]


_COMMANDS = {"flowmx": _flowmx, "mxnet": _mxnet, "torch": _torch}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
