"""Run one benchmark script under several systems, in turns, and compare the ratios.

Absolute times depend on the machine and its load; the ratio of two systems measured in turns does not.
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
    """Return the interpreter of a system, or None if it is not installed."""
    if system == "flowmx":
        return sys.executable
    path = PEERS / system / "bin" / "python"
    if path.exists():
        return str(path)
    return sys.executable if importlib.util.find_spec(system) is not None else None


def run(
    script: str, system: str, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> dict[str, float]:  # fmt: skip
    """Run one turn of one system; return figures by name, in the unit that ends the name.

    Args:
        script: the worker.
        system: the system that runs it.
        arguments: further arguments of the worker.
        environment: variables in addition to those of this process.
    """
    interpreter = python_of(system)
    assert interpreter is not None
    command = [interpreter, str(WORKERS / f"{script}.py"), system, *arguments]
    variables = {**os.environ, **(environment or {})}
    process = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=variables)
    if process.returncode != 0:
        raise RuntimeError(f"{script} under {system} ended with {process.returncode}:\n{process.stderr}")
    figures: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return figures


def compare(
    script: str,
    peers: Sequence[str],
    rounds: int = 5,
    arguments: Sequence[str] = (),
    pick: Callable[[Iterable[float]], float] = statistics.median,
) -> dict[str, dict[str, float]]:
    """Return the median figures of flowmx and of the installed peers, after ``rounds`` turns of each.

    Use ``pick=min`` for figures of microseconds: the least is closest to the time on an idle machine.
    """
    systems = ["flowmx", *(peer for peer in peers if python_of(peer))]
    for peer in peers:
        if peer not in systems:
            print(f"{peer} is not installed under {PEERS}: measured without it")
    turns: dict[str, list[dict[str, float]]] = {system: [] for system in systems}
    for _ in range(rounds):
        for system in systems:
            turns[system].append(run(script, system, arguments))
    return {
        system: {name: pick(turn[name] for turn in figures_by_turn) for name in figures_by_turn[0]}
        for system, figures_by_turn in turns.items()
    }


def report(title: str, figures: dict[str, dict[str, float]], bars: Bars | None = None) -> None:
    """Print a table: the figures of flowmx and of its peers, the ratios, and the bars.

    Args:
        title: what was measured.
        figures: from :func:`compare`.
        bars: for a figure, the systems (or other figures of flowmx) it is compared with, and the largest permitted
            ratio to each.
    """
    print(f"\n{title}")
    peers = [system for system in figures if system != "flowmx"]
    flowmx = figures["flowmx"]
    print(f"  {'':34} {'flowmx':>10} " + " ".join(f"{peer:>10} {'ratio':>6}" for peer in peers) + "  bar")
    for name, value in flowmx.items():
        cells = []
        for peer in peers:
            other = figures[peer].get(name)
            cells.append(f"{other:10.2f} {value / other:6.2f}" if other else f"{'':10} {'':6}")
        line = f"  {name:34} {value:10.2f} " + " ".join(cells)
        for peer, limit in (bars or {}).get(name, ()):
            base = figures.get(peer, {}).get(name) or flowmx.get(peer)
            if base:
                ratio = value / base
                line += f"  {ratio:.2f} of {peer}, at most {limit:g}: {'met' if ratio <= limit else 'MISSED'}"
        print(line)
