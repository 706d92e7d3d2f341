"""``python -m flowmx inspect``: says what a file or folder is, what is missing, and which command opens it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from flowmx.tools import usage

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Print the report; return the exit status."""
    parser = usage.parser(
        "inspect",
        "Say what a file or folder is: what wrote it, its inputs, outputs and operators, what is missing, and the next "
        "command. Models, parameters, data, optimizer states and archives are recognized by their content.",
        ["model.tar.gz", "resnet-0000.params", "images.rec", "checkpoints --json"],
        exits={1: "failure, or the artifact cannot be opened"},
    )  # fmt: skip
    parser.add_argument("path", type=Path, help="the file, the folder, or the prefix of a checkpoint")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    logging.getLogger().setLevel(logging.WARNING)
    from flowmx.artifacts import inspect

    report = inspect(arguments.path)
    sys.stdout.write((json.dumps(report.as_dict(), indent=2) if arguments.json else report.as_text()) + "\n")
    return usage.FAILED if report.problem else usage.SUCCESS
