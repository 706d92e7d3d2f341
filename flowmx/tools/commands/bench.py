"""``python -m flowmx bench``: benchmarks of the installed flowmx on this machine."""

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
from flowmx.version import __version__

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Measure and print a table; return the exit status."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.what if name not in MEASURES]:
        parser.error(f"unknown measurement {unknown[0]!r}, expected some of {', '.join(MEASURES)}")
    options = Options(arguments.model, arguments.shape, arguments.batch, arguments.hybridize, arguments.seconds)
    names = arguments.what or (["model", "memory"] if arguments.model else list(MEASURES))
    rows: list[Figure] = []
    with Bar(len(names), "measuring", unit="measurements") as bar:
        for name in names:
            bar.step(0, name)
            rows += MEASURES[name](options)
            bar.step()
    result = {"machine": machine(), "results": [row._asdict() for row in rows]}
    sys.stdout.write((json.dumps(result, indent=2) if arguments.json else _as_text(result)) + "\n")
    return usage.SUCCESS


def machine() -> dict[str, object]:
    """Return the environment of the measurements: processor, cores, versions, settings other than the defaults."""
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
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine()


def _as_text(result: dict[str, Any]) -> str:
    facts = dict(result["machine"])
    changed = facts.pop("settings")
    lines = [f"{name:<10} {value}" for name, value in facts.items()]
    lines += [f"{'settings':<10} {' '.join(f'{name}={value}' for name, value in changed.items())}"] if changed else []
    rows = [Figure(**row) for row in result["results"]]
    width = max(len(row.what) for row in rows)
    lines += ["", *(f"{row.what:<{width}}  {_number(row.value):>10} {row.unit}" for row in rows)]
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _parser() -> argparse.ArgumentParser:
    parser = usage.parser(
        "bench", "Measure this machine: the cost of an operation, the speed of training and prediction, the memory "
        "of a model. Each figure is the best of several runs.",
        ["", "tiny wait", "--model resnet18_v1 --batch 1 32 --hybridize --json"],
    )  # fmt: skip
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"measurements: {', '.join(MEASURES)} (default: all)")
    parser.add_argument(
        "--model", help="lenet, mlp, or a name of the model zoo (default: lenet, after the other measurements)"
    )
    parser.add_argument(
        "--shape", type=usage.fixed_sizes, help="shape of a sample (default: the usual shape for the model)"
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[32], help="batch sizes (default: 32)")
    parser.add_argument(
        "--hybridize", action="store_true", help="compile the model instead of running it operator by operator"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of a measurement (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
