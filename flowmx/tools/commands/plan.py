"""``python -m flowmx plan SCRIPT`` or ``MODEL``: runs it on simulated devices and reports memory and time.

The exit status is 0 if it fits, 3 if a device's memory is too small, and the script's status if it fails: 1 with its
traceback for an error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from flowmx.devices.sim import PRESETS
from flowmx.devices.sim.description import fleet, memory_of
from flowmx.tools import script, usage
from flowmx.tools.commands.plan_predictions import predictions
from flowmx.tools.plan.report import Plan
from flowmx.tools.plan.simulation import run

DOES_NOT_FIT = 3
_HEAD = 512
_STEPS = 5


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    options, words = split(argv)
    arguments = _parser().parse_args(options)
    if not words:
        _parser().error("SCRIPT or MODEL is missing, such as: plan train.py --device h100x8")
    try:
        plan = _plan(words, arguments)
    except script.ScriptExit as error:
        return error.status
    sys.stdout.write((json.dumps(plan.as_dict(), indent=2) if arguments.json else plan.text()) + "\n")
    return 0 if plan.fits else DOES_NOT_FIT


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the command's options, which may precede or follow the script, and the script with its arguments.

    Everything after ``--`` belongs to the script. The options of models belong to a script, too.
    """
    paths = (word for word in argv if Path(word).exists() or Path(f"{word}-symbol.json").exists())
    first = next(paths, None)
    is_model = first is not None and not _is_script(first)
    takes_value = {**_OPTIONS, **(_OF_MODELS if is_model else {})}
    options: list[str] = []
    words: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name = word.partition("=")[0]
        if word == "--":
            return options, [*words, *rest]
        if name in takes_value:
            options.append(word)
            if takes_value[name] and "=" not in word and rest:
                options.append(rest.pop(0))
        elif words or not word.startswith("-"):
            words.append(word)
        else:
            options.append(word)  # the parser reports the unknown option
    return options, words


def _plan(words: Sequence[str], arguments: argparse.Namespace) -> Plan:
    def run_script() -> None:
        with contextlib.redirect_stdout(sys.stderr if arguments.json else sys.stdout):
            script.run(words)

    program = run_script
    if not _is_script(words[0]):
        if len(words) > 1:
            raise ValueError(f"plan: {words[0]} is a model, which takes no arguments such as {words[1]}")
        program = predictions(Path(words[0]), usage.shapes(arguments.shape), arguments.batch, arguments.steps or _STEPS)
    plan = run(
        program, arguments.device, steps=arguments.steps or None, memory=arguments.memory, graphs=arguments.graphs
    )
    if plan.is_empty:
        raise ValueError(
            f"plan: {words[0]} did not use mx.gpu(0) or another GPU: choose devices by mx.num_gpus(), or by an "
            "argument of the script"
        )
    return plan


def _is_script(path: str) -> bool:
    """Return whether a path is a program, and not the folder, file or prefix of a model."""
    if Path(path).is_dir() or Path(f"{path}-symbol.json").exists():
        return False
    return not Path(path).is_file() or Path(path).suffix == ".py" or not _is_artifact(Path(path))


def _is_artifact(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(_HEAD)
    return b"\0" in start or start.lstrip()[:1] == b"{"  # archives and ONNX files are binary, symbols are JSON


def _checked(convert: Callable[[str], object]) -> Callable[[str], str]:
    """Return a type for argparse that checks that the text can be converted, and returns it."""

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
        "Run a training script, or predictions of a model, on simulated GPUs that compute nothing, and report memory, "
        "time per step and the bottleneck. Values that the script reads are 0.",
        [
            "train.py --device h100x8", "train.py --device a10 --memory 16GB --json -- --epochs 1",
            "model.tar.gz --device a10 --batch 64 --shape 3,224,224",
        ],
        exits={DOES_NOT_FIT: "a device's memory is too small", 1: "failure, or the exit status of the script"},
        usage="flowmx plan SCRIPT [arguments] | MODEL [--device h100x8] [--steps N] [--memory 40GB] [--json]",
    )  # fmt: skip
    parser.add_argument(
        "--device",
        default="h100",
        type=_checked(fleet),
        help=f"the kind of device, {', '.join(PRESETS)}, optionally with a count, such as h100x8",
    )
    parser.add_argument(
        "--steps", type=int, default=_STEPS, help=f"number of steps to run; 0 runs the whole script (default: {_STEPS})"
    )
    parser.add_argument(
        "--memory", type=_checked(memory_of), help="memory of each device, such as 40GB (default: that of the device)"
    )
    parser.add_argument(
        "--shape", action="append", metavar="[NAME=]SIZES",
        help="shape of one sample of a model, such as 3,224,224; repeat the option for each input",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, default=1, help="batch size of a model's predictions (default: 1)")
    parser.add_argument("--graphs", action="store_true", help="launch bound graphs as CUDA graphs")
    parser.add_argument("--json", action="store_true", help="print one JSON object; the script's output goes to stderr")
    return parser


_OPTIONS = {
    "--device": True,
    "--steps": True,
    "--memory": True,
    "--graphs": False,
    "--json": False,
    "--help": False,
    "-h": False,
}
"""The command's options, and whether they have a value."""

_OF_MODELS = {"--shape": True, "--batch": True}
"""The same for models."""
