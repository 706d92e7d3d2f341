"""``python -m flowmx bench``: what this machine does with an installed flowmx; no repository and no peer is needed."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flowmx import settings
from flowmx.progress import Bar
from flowmx.tools import usage
from flowmx.tools.commands.bench_measurements import MEASURES, Figure, Options
from flowmx.tools.commands.info import cores

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Measure, and print a table; returns the exit status."""
    parser = _parser()
    given = parser.parse_args(argv)
    if unknown := [name for name in given.what if name not in MEASURES]:
        parser.error(f"there is no measure {unknown[0]!r}, only {', '.join(MEASURES)}")
    options = Options(given.model, given.shape, given.batch, given.hybridize, given.seconds)
    names = given.what or (["model", "memory"] if given.model else list(MEASURES))
    rows: list[Figure] = []
    with Bar(len(names), "measuring", unit="measurements") as bar:
        for name in names:
            bar.step(0, name)
            rows += MEASURES[name](options)
            bar.step()
    found = {"machine": machine(), "results": [row._asdict() for row in rows]}
    sys.stdout.write((json.dumps(found, indent=2) if given.json else _as_text(found)) + "\n")
    return usage.FINE


def machine() -> dict[str, Any]:
    """The environment that figures depend on: processor, cores, versions, settings other than the defaults."""
    from flowmx import __version__

    changed = {
        row.variable: getattr(settings.get(), name)
        for name, row in settings.TABLE.items() if getattr(settings.get(), name) != row.default
    }  # fmt: skip
    return {
        "processor": _processor(), "cores": cores(), "platform": platform.platform(),
        "python": platform.python_version(), "flowmx": __version__, "settings": changed,
    }  # fmt: skip


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _as_text(found: dict[str, Any]) -> str:
    facts = dict(found["machine"])
    changed = facts.pop("settings")
    lines = [f"{name:<10} {value}" for name, value in facts.items()]
    lines += [f"{'settings':<10} {' '.join(f'{name}={value}' for name, value in changed.items())}"] if changed else []
    rows = [Figure(**row) for row in found["results"]]
    wide = max(len(row.what) for row in rows)
    lines += ["", *(f"{row.what:<{wide}}  {_number(row.value):>10} {row.unit}" for row in rows)]
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _parser() -> argparse.ArgumentParser:
    parser = usage.parser(
        "bench", "Measure this machine: what an operation costs, how fast a model trains and predicts, what memory it "
        "takes. Each figure is the best of several runs.",
        ["", "tiny wait", "--model resnet18_v1 --batch 1 32 --hybridize --json"],
    )  # fmt: skip
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"of {', '.join(MEASURES)}")
    parser.add_argument("--model", help="lenet, mlp, or a name of the model zoo (default: lenet, after all others)")
    parser.add_argument("--shape", type=usage.fixed_sizes, help="of a row (default: what the model is made for)")
    parser.add_argument("--batch", type=int, nargs="+", default=[32], help="rows of a batch (default: 32)")
    parser.add_argument("--hybridize", action="store_true", help="compile the model; else operator by operator")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
