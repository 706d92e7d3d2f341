"""``python -m flowmx doctor PID_OR_URL [...]``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from flowmx.engine.loops import run
from flowmx.observability.doctor.fetch import fetch_all
from flowmx.observability.doctor.report import render
from flowmx.observability.doctor.rules import diagnose
from flowmx.tools import usage

__all__ = ["main"]

EXIT_FINDINGS = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Diagnose processes and print the findings; return 0 without findings, else 3."""
    options = _parser().parse_args(argv)
    snapshots = run(fetch_all(options.targets, options.seconds, not options.no_values))
    findings = diagnose(snapshots)
    content = {"findings": [finding._asdict() for finding in findings], "snapshots": snapshots}
    sys.stdout.write((json.dumps(content, indent=1) if options.json else render(snapshots, findings)) + "\n")
    return EXIT_FINDINGS if findings else 0


def _parser() -> argparse.ArgumentParser:
    parser = usage.parser(
        "doctor", "Diagnose running processes: their state, wait chains, and the cause of a hang.",
        ["4711", "http://10.0.0.7:8080 4711 --json", "4711.report.json"],
        exits={0: "no fault found", EXIT_FINDINGS: "there are findings"},
    )  # fmt: skip
    about = "process id, address of a service (http://host:port), or report file of the flight recorder"
    parser.add_argument("targets", nargs="+", metavar="PID_OR_URL", help=about)
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of the observation (default: %(default)s)")
    parser.add_argument(
        "--no-values", action="store_true", help="do not check values for NaN; the check makes the diagnosis slower"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
