"""Run one benchmark script under several systems, in turns, and compare the ratios.

Absolute times change with the machine and the minute; the ratio of two systems that took turns does not.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

WORKERS = Path(__file__).parent / "workers"
PEERS = Path(os.environ.get("PEERS", Path.home() / ".cache" / "flowmx-peers"))


Bars = dict[str, list[tuple[str, float]]]


def python_of(system: str) -> str | None:
    """The interpreter of a system, or None where it is not installed."""
    if system == "flowmx":
        return sys.executable
    path = PEERS / system / "bin" / "python"
    if path.exists():
        return str(path)
    return sys.executable if importlib.util.find_spec(system) is not None else None


def run(
    script: str, system: str, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> dict[str, float]:  # fmt: skip
    """One turn of one system: figures by name, all in the unit that their name ends with.

    Args:
        script: the worker.
        system: what runs it.
        arguments: further ones for it.
        environment: variables for it, in addition to those of this process.
    """
    interpreter = python_of(system)
    assert interpreter is not None
    command = [interpreter, str(WORKERS / f"{script}.py"), system, *arguments]
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=variables)
    if done.returncode != 0:
        raise RuntimeError(f"{script} under {system} ended with {done.returncode}:\n{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare(
    script: str,
    peers: Sequence[str],
    rounds: int = 5,
    arguments: Sequence[str] = (),
    pick: Callable[[Iterable[float]], float] = statistics.median,
) -> dict[str, dict[str, float]]:
    """The median figures of flowmx and of those peers that are installed, after ``rounds`` turns of each.

    Another ``pick`` is ``min``: what the code takes where nothing else runs, for figures of microseconds.
    """
    systems = ["flowmx", *(peer for peer in peers if python_of(peer))]
    for peer in peers:
        if peer not in systems:
            print(f"{peer} is not installed under {PEERS}: measured without it")
    turns: dict[str, list[dict[str, float]]] = {system: [] for system in systems}
    for _ in range(rounds):
        for system in systems:
            turns[system].append(run(script, system, arguments))
    return {system: {name: pick(turn[name] for turn in taken) for name in taken[0]} for system, taken in turns.items()}


def report(title: str, figures: dict[str, dict[str, float]], bars: Bars | None = None) -> None:
    """Print a table: every figure of flowmx, of its peers, the ratio, and the bar where there is one.

    Args:
        title: what was measured.
        figures: from :func:`compare`.
        bars: for a figure, the systems (or other figures of flowmx) it is compared with, each with the most its
            ratio may be.
    """
    print(f"\n{title}")
    peers = [system for system in figures if system != "flowmx"]
    own = figures["flowmx"]
    print(f"  {'':34} {'flowmx':>10} " + " ".join(f"{peer:>10} {'ratio':>6}" for peer in peers) + "  bar")
    for name, value in own.items():
        cells = []
        for peer in peers:
            other = figures[peer].get(name)
            cells.append(f"{other:10.2f} {value / other:6.2f}" if other else f"{'':10} {'':6}")
        line = f"  {name:34} {value:10.2f} " + " ".join(cells)
        for against, most in (bars or {}).get(name, ()):
            base = figures.get(against, {}).get(name) or own.get(against)
            if base:
                ratio = value / base
                line += f"  {ratio:.2f} of {against}, at most {most:g}: {'met' if ratio <= most else 'MISSED'}"
        print(line)
