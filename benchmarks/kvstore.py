"""Distributed stores in turns: flowmx, MXNet's ps-lite and PyTorch's gloo, each as a job of processes on loopback.

An iteration lasts from the first worker's start to the last worker's end. Each system is measured in each way it
offers: a push and a pull, or a pushpull; an all-reduce of each array, or of one flat copy of all. The way with the
lowest median counts; all are printed.
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
"""The milliseconds of each iteration, by "case/way"."""


def compare(rounds: int, settings: Iterable[Setting] = SETTINGS) -> None:
    """Measure every setting in turns, and print the best and the median of each case, and the ratios."""
    for setting in settings:
        systems = ["flowmx", *(peer for peer in setting.peers if turns.python_of(peer))]
        spans: dict[str, list[Times]] = {system: [] for system in systems}
        for _ in range(rounds):
            for system in systems:
                spans[system].append(measure(system, setting))
        report(setting, {system: join_turns(times) for system, times in spans.items()})


def measure(system: str, setting: Setting, iterations: int = ITERATIONS) -> Times:
    """Run one job of one system.

    Raises:
        RuntimeError: a process of the job failed.
    """
    with tempfile.TemporaryDirectory(prefix="kvstore-") as folder:
        arguments = [str(WORKER), system, ",".join(setting.cases), str(iterations), setting.optimizer, folder]
        _run(_COMMANDS[system](setting, arguments))
        workers = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    if len(workers) != setting.workers:
        raise RuntimeError(f"{system}: {len(workers)} of {setting.workers} workers finished")
    return {way: [_span(each) for each in zip(*(times[way] for times in workers), strict=True)] for way in workers[0]}


def join_turns(times_by_turn: Sequence[Times]) -> Times:
    """Join the times of all turns."""
    return {name: [each for spans in times_by_turn for each in spans[name]] for name in times_by_turn[0]}


def sorted_ways(case: str, times: Times) -> Times:
    """Return the ways in which a system ran a case, the lowest median first."""
    ways = {name.partition("/")[2]: spans for name, spans in times.items() if name.partition("/")[0] == case}
    return dict(sorted(ways.items(), key=lambda way: statistics.median(way[1])))


def report(setting: Setting, figures: Mapping[str, Times]) -> None:
    """Print the best and the median of each case, system and way, and flowmx's best way compared with each system's."""
    print(f"\n{setting.name} (milliseconds: best, median; ratio of flowmx's median to it)")
    for case in setting.cases:
        flowmx_median = statistics.median(next(iter(sorted_ways(case, figures["flowmx"]).values())))
        for system, times in figures.items():
            for number, (way, spans) in enumerate(sorted_ways(case, times).items()):
                ratio = flowmx_median / statistics.median(spans)
                best, middle = min(spans), statistics.median(spans)
                line = f"  {case:15} {system:7} {way:15} {best:8.2f} {middle:8.2f} {ratio:6.2f}"
                print(line + _verdict(setting, case, system, ratio) * (number == 0), flush=True)


def _verdict(setting: Setting, case: str, system: str, ratio: float) -> str:
    limit = BARS.get(case, {}).get(system)
    if limit is None or setting not in (SETTINGS[0], SETTINGS[-1]):
        return ""
    return f"  at most {limit:g}: {'met' if ratio <= limit else 'MISSED'}"


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
    commands: list[Command] = [([python, "-c", "import mxnet"], {**common, "DMLC_ROLE": role}) for role in others]
    return commands + [([python, *arguments], {**common, "DMLC_ROLE": "worker"})] * setting.workers


def _torch(setting: Setting, arguments: list[str]) -> list[Command]:
    python = turns.python_of("torch") or ""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(setting.workers)}
    return [([python, *arguments], {**common, "RANK": str(rank)}) for rank in range(setting.workers)]


_COMMANDS = {"flowmx": _flowmx, "mxnet": _mxnet, "torch": _torch}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
