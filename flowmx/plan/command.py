"""``python -m flowmx plan SCRIPT [arguments]``: run a script on simulated devices, and tell what it takes.

The exit status is 0 where it fits, 3 where a device's memory is not enough, and what the script gives where it fails:
1 with its traceback for an error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from flowmx.devices.sim import PRESETS
from flowmx.devices.sim.description import fleet, memory_of
from flowmx.plan.report import Plan
from flowmx.plan.running import run

DOES_NOT_FIT = 3
_STEPS = 5


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    options, script = split(argv)
    arguments = _parser().parse_args(options)
    if not script:
        _parser().error("SCRIPT is missing, such as: plan train.py --device h100x8")
    try:
        found = _plan(script, arguments)
    except _Stopped as stopped:
        return stopped.status
    except _Failed as failed:
        traceback.print_exception(failed.error)
        return 1
    print(json.dumps(found.as_dict(), indent=2) if arguments.json else found.text())
    return 0 if found.fits else DOES_NOT_FIT


class _Stopped(Exception):
    """The script ended itself, with a status that is no success."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _Failed(Exception):
    """The script raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command's own options, which may stand before the script and after it, and the script with its arguments.

    All that comes after ``--`` is the script's.
    """
    options: list[str] = []
    script: list[str] = []
    left = list(argv)
    while left:
        word = left.pop(0)
        name = word.partition("=")[0]
        if word == "--":
            return options, [*script, *left]
        if name in _TAKES:
            options.append(word)
            if _TAKES[name] and "=" not in word and left:
                options.append(left.pop(0))
        elif script or not word.startswith("-"):
            script.append(word)
        else:
            options.append(word)  # the parser says that there is no such option
    return options, script


def _plan(script: Sequence[str], arguments: argparse.Namespace) -> Plan:
    path = Path(script[0])
    if not path.is_file():
        raise OSError(f"plan: there is no script {script[0]!r}")

    def go() -> None:
        with _as_main(script), contextlib.redirect_stdout(sys.stderr if arguments.json else sys.stdout):
            _run(str(path))

    found = run(go, arguments.device, steps=arguments.steps or None, memory=arguments.memory, graphs=arguments.graphs)
    if found.is_empty:
        raise ValueError(
            f"plan: {script[0]} put nothing on mx.gpu(0) or another GPU, so there is nothing to tell: choose "
            "devices by mx.num_gpus(), or by an argument of the script"
        )
    return found


def _run(path: str) -> None:
    """Run a script as Python would.

    Raises:
        _Failed: it raised; its traceback begins in it.
        _Stopped: it exited, and not with success.
    """
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            if isinstance(ended.code, int):
                raise _Stopped(ended.code) from None
            print(ended.code, file=sys.stderr)
            raise _Stopped(1) from None
    except Exception as error:
        raise _Failed(error.with_traceback(_from_script(error.__traceback__, path))) from None


def _from_script(trace: TracebackType | None, path: str) -> TracebackType | None:
    """A traceback without what stands above the script."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename != path:
        found = found.tb_next
    return found or trace


@contextlib.contextmanager
def _as_main(script: Sequence[str]) -> Iterator[None]:
    """What a script finds when it is started: its arguments, and its folder first among those of modules."""
    argv, path = sys.argv, sys.path
    sys.argv, sys.path = list(script), [str(Path(script[0]).resolve().parent), *path]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path


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
    parser = argparse.ArgumentParser(
        prog="flowmx plan",
        usage="flowmx plan SCRIPT [arguments] [--device h100x8] [--steps N] [--memory 40GB] [--json]",
        description="Run a training script on simulated GPUs that compute nothing, and tell what it takes: memory, "
        "time a step, what it is bound by. Values that the script asks for are 0.",
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
