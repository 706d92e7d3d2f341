"""The command line of flowmx: ``python -m flowmx COMMAND``.

Each command is a module of its own, with a ``main`` that takes its arguments and returns the exit status: 0 where it
was done, 1 where it failed, 2 where the arguments are wrong, and what its own help says. Errors are a line; with
``--traceback`` before the command, they show where they come from.
"""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from flowmx import settings
from flowmx.errors import MXNetError
from flowmx.suggestions import did_you_mean
from flowmx.tools.usage import EXITS, FAILED, INTERRUPTED, USAGE

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "models": {
        "train": (
            "flowmx.tools.commands.train",
            "run a training script with settings, or train a model on a file of data",
        ),
        "serve": ("flowmx.serve.command", "serve a model over HTTP"),
        "convert": (
            "flowmx.tools.commands.convert",
            "turn models and parameters into other formats: ONNX, safetensors, ...",
        ),
        "run": ("flowmx.tools.commands.run", "run a program that was written for MXNet"),
        "im2rec": ("flowmx.tools.im2rec", "make lists of images, and RecordIO files of them"),
    },
    "looking": {
        "info": ("flowmx.tools.commands.info", "print versions, devices and every setting with its value"),
        "doctor": (
            "flowmx.observability.doctor.command",
            "say what running processes do, what waits for what, who is to blame",
        ),
        "dashboard": ("flowmx.tools.commands.dashboard", "show the dashboards of several processes on one page"),
        "plan": ("flowmx.tools.plan.command", "tell what a training script would take on GPUs that are not here"),
        "bench": ("flowmx.tools.commands.bench", "measure this machine: operators, models, memory"),
    },
    "jobs on several machines": {
        "launch": ("flowmx.tools.commands.launch", "run a distributed job: here, over ssh, or on a Dask cluster"),
        "node": ("flowmx.kvstore.launching.slot_main", "be the node of a job that Slurm, Kubernetes or MPI started"),
        "call": ("flowmx.kvstore.launching.call", "call a function of a module: call module:function"),
        "scheduler": ("flowmx.comm.launch.scheduler", "be the scheduler of a distributed job"),
        "server": ("flowmx.kvstore.server.main", "be a server of a distributed job"),
    },
}
"""By group, each command with its module and what it is for."""

_MODULES = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}
_EXPECTED = (settings.SettingError, MXNetError, ValueError, TypeError, OSError, ImportError)
"""Errors whose messages say all; of others the type is shown too."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status (argparse exits with 2 itself).

    Args:
        argv: the arguments (default: those of the process).
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if shows := given[:1] == ["--traceback"]:
        del given[0]
    if not given or given[0] not in _MODULES:
        return _top(given)
    try:
        return _command(given[0], given[1:])
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # who reads the output has seen enough
        sys.stdout = None
        return FAILED
    except Exception as error:
        if shows:
            traceback.print_exception(error)
        else:
            sys.stderr.write(f"flowmx: error: {_message(error, given[0])}\n")
        return FAILED


def _command(name: str, arguments: Sequence[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    status: int = import_module(_MODULES[name]).main(arguments)
    return status


def _message(error: Exception, command: str) -> str:
    if isinstance(error, _EXPECTED) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error} (where: flowmx --traceback {command} ...)"


def _top(given: Sequence[str]) -> int:
    """Handle a command line without a command: print the help or the version, or refuse an unknown command."""
    parser = _parser()
    if given and not given[0].startswith("-"):
        hint = did_you_mean(given[0], _MODULES) or f"; there are {', '.join(_MODULES)}"
        parser.error(f"there is no command {given[0]!r}{hint}")
    parser.parse_args(given)
    parser.print_usage(sys.stderr)
    sys.stderr.write("flowmx: error: which command? flowmx --help lists them\n")
    raise SystemExit(USAGE)


def _parser() -> argparse.ArgumentParser:
    from flowmx import __version__

    parser = argparse.ArgumentParser(
        prog="flowmx", usage="flowmx [--version] [--traceback] COMMAND ...", epilog=_listed(), allow_abbrev=False,
        description="The MXNet programming model on asyncio.", formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"flowmx {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error comes from")
    return parser


def _listed() -> str:
    lines = []
    for group, commands in COMMANDS.items():
        lines += [f"{group}:", *(f"  {name:<10} {about}" for name, (_, about) in commands.items()), ""]
    lines += ["flowmx COMMAND --help says what a command takes, with examples.", "", "exit status:"]
    return "\n".join([*lines, *(f"  {status:<4} {meaning}" for status, meaning in EXITS.items())])
