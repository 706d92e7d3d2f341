"""``python -m flowmx doctor PID_OR_URL [...]``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from flowmx.engine.loops import run
from flowmx.observability.doctor.asking import ask_all
from flowmx.observability.doctor.picture import draw
from flowmx.observability.doctor.rules import diagnose
from flowmx.tools import usage

__all__ = ["main"]

FOUND = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Diagnose processes and print the findings; returns 0 where nothing is wrong, else 3."""
    given = _parser().parse_args(argv)
    snapshots = run(ask_all(given.targets, given.seconds, not given.no_values))
    findings = diagnose(snapshots)
    found = {"findings": [each._asdict() for each in findings], "snapshots": snapshots}
    sys.stdout.write((json.dumps(found, indent=1) if given.json else draw(snapshots, findings)) + "\n")
    return FOUND if findings else 0


def _parser() -> argparse.ArgumentParser:
    parser = usage.parser(
        "doctor", "Say what running processes do, what waits for what, and who is to blame.",
        ["4711", "http://10.0.0.7:8080 4711 --json", "4711.report.json"],
        exits={0: "nothing is wrong", FOUND: "something is wrong, and was named"},
    )  # fmt: skip
    about = "number of a process, address of a service (http://host:port), or file that the flight recorder wrote"
    parser.add_argument("targets", nargs="+", metavar="PID_OR_URL", help=about)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to look (default: %(default)s)")
    parser.add_argument("--no-values", action="store_true", help="do not look for NaN: costs the process less")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
