"""``python -m flowmx plan SCRIPT [arguments]``: run a script on simulated devices, and tell what it takes.

The exit status is 0 where it fits, 3 where a device's memory is not enough, and what the script gives where it fails:
1 with its traceback for an error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Sequence

from flowmx.devices.sim import PRESETS
from flowmx.devices.sim.description import fleet, memory_of
from flowmx.tools import script, usage
from flowmx.tools.plan.report import Plan
from flowmx.tools.plan.running import run

DOES_NOT_FIT = 3
_STEPS = 5


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    options, words = split(argv)
    arguments = _parser().parse_args(options)
    if not words:
        _parser().error("SCRIPT is missing, such as: plan train.py --device h100x8")
    try:
        found = _plan(words, arguments)
    except script.Ended as ended:
        return ended.status
    sys.stdout.write((json.dumps(found.as_dict(), indent=2) if arguments.json else found.text()) + "\n")
    return 0 if found.fits else DOES_NOT_FIT


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command's own options, which may stand before the script and after it, and the script with its arguments.

    All that comes after ``--`` is the script's.
    """
    options: list[str] = []
    words: list[str] = []
    left = list(argv)
    while left:
        word = left.pop(0)
        name = word.partition("=")[0]
        if word == "--":
            return options, [*words, *left]
        if name in _TAKES:
            options.append(word)
            if _TAKES[name] and "=" not in word and left:
                options.append(left.pop(0))
        elif words or not word.startswith("-"):
            words.append(word)
        else:
            options.append(word)  # the parser says that there is no such option
    return options, words


def _plan(words: Sequence[str], arguments: argparse.Namespace) -> Plan:
    def go() -> None:
        with contextlib.redirect_stdout(sys.stderr if arguments.json else sys.stdout):
            script.run(words)

    found = run(go, arguments.device, steps=arguments.steps or None, memory=arguments.memory, graphs=arguments.graphs)
    if found.is_empty:
        raise ValueError(
            f"plan: {words[0]} put nothing on mx.gpu(0) or another GPU, so there is nothing to tell: choose "
            "devices by mx.num_gpus(), or by an argument of the script"
        )
    return found


def _checked(convert: Callable[[str], object]) -> Callable[[str], str]:
    """A type for argparse that gives the text back where it can be converted."""

    def check(text: str) -> str:
        try:
            convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return check


def _parser() -> argparse.ArgumentParser:
    parser = usage.parser(
        "plan",
        "Run a training script on simulated GPUs that compute nothing, and tell what it takes: memory, "
        "time a step, what it is bound by. Values that the script asks for are 0.",
        ["train.py --device h100x8", "train.py --device a10 --memory 16GB --json -- --epochs 1"],
        exits={DOES_NOT_FIT: "a device's memory is not enough", 1: "it failed; the script's own status, if it has one"},
        usage="flowmx plan SCRIPT [arguments] [--device h100x8] [--steps N] [--memory 40GB] [--json]",
    )  # fmt: skip
    parser.add_argument(
        "--device", default="h100", type=_checked(fleet), help=f"{', '.join(PRESETS)}, and how many (h100x8)"
    )
    parser.add_argument(
        "--steps", type=int, default=_STEPS, help=f"end after so many (default {_STEPS}; 0: run it all)"
    )
    parser.add_argument("--memory", type=_checked(memory_of), help="of each device, where it is another: 40GB")
    parser.add_argument("--graphs", action="store_true", help="launch bound graphs as one, as CUDA graphs would be")
    parser.add_argument("--json", action="store_true", help="print one JSON object; the script prints to stderr")
    return parser


_TAKES = {
    "--device": True,
    "--steps": True,
    "--memory": True,
    "--graphs": False,
    "--json": False,
    "--help": False,
    "-h": False,
}
"""The command's options, and whether they take a value."""
