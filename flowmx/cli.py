"""The command line of flowmx: ``python -m flowmx COMMAND``.

A command is a module with a function ``main``, which receives the arguments and returns the exit status: 0 for success,
1 for a failure, 2 for invalid arguments, or a status that the command's help describes. An error is printed in one
line, or with its traceback if ``--traceback`` precedes the command.
"""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path

from flowmx import process_hooks, settings
from flowmx.errors import MXNetError
from flowmx.suggestions import did_you_mean
from flowmx.tools.usage import EXITS, FAILED, INTERRUPTED, USAGE
from flowmx.version import __version__

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "models": {
        "train": (
            "flowmx.tools.commands.train",
            "run a training script with extra settings, or train a model on a data file",
        ),
        "serve": ("flowmx.serve.command", "serve a model over HTTP"),
        "chat": ("flowmx.tools.commands.chat", "chat with a language model"),
        "inspect": ("flowmx.tools.commands.inspect", "say what a file or folder is, and which command opens it"),
        "convert": (
            "flowmx.tools.commands.convert",
            "convert models and parameters to other formats, such as ONNX and safetensors",
        ),
        "run": ("flowmx.tools.commands.run", "run a program written for MXNet"),
        "im2rec": ("flowmx.tools.im2rec", "write lists of images and RecordIO files"),
    },
    "diagnostics": {
        "info": ("flowmx.tools.commands.info", "print versions, devices and settings"),
        "doctor": (
            "flowmx.observability.doctor.command",
            "show what running processes do, what they wait for, and why they hang",
        ),
        "dashboard": ("flowmx.tools.commands.dashboard", "show the dashboards of several processes on one page"),
        "plan": (
            "flowmx.tools.commands.plan",
            "predict memory and time of a training script or a model on GPUs that are not present",
        ),
        "bench": ("flowmx.tools.commands.bench", "benchmark this machine: operators, models, memory"),
    },
    "distributed jobs": {
        "launch": ("flowmx.tools.commands.launch", "run a distributed job: locally, over ssh, or on a Dask cluster"),
        "node": ("flowmx.kvstore.launching.node_command", "run a node of a job that Slurm, Kubernetes or MPI started"),
        "call": ("flowmx.kvstore.launching.call", "call a function of a module"),
        "scheduler": ("flowmx.comm.launch.scheduler", "run the scheduler of a distributed job"),
        "server": ("flowmx.kvstore.server.main", "run a server of a distributed job"),
    },
}
"""The commands by group, with their modules and purposes."""

_MODULES = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}
_NOTE = "flowmx: "
_FILES = ("--tls-cert", "--tls-key", "--tls-ca")
"""Options whose files are read by a library that does not name them in its errors."""
_EXPECTED = (settings.SettingError, MXNetError, ValueError, TypeError, OSError, ImportError)
"""Errors with self-explanatory messages; for other errors the type is shown too."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status (argparse exits with status 2).

    Args:
        argv: the arguments (default: those of the process).
    """
    process_hooks.ensure_installed()
    words = list(sys.argv[1:] if argv is None else argv)
    if shows_traceback := words[:1] == ["--traceback"]:
        del words[0]
    if not words or words[0] not in _MODULES:
        return _top(words)
    try:
        return _command(words[0], words[1:])
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has exited
        sys.stdout = None
        return FAILED
    except Exception as error:  # commands run user code
        if shows_traceback:
            traceback.print_exception(error)
        else:
            sys.stderr.write(f"flowmx: error: {_message(error, words)}\n")
        return FAILED


def _command(name: str, arguments: Sequence[str]) -> int:
    _log_to_stderr()
    status: int = import_module(_MODULES[name]).main(arguments)
    return status


def _log_to_stderr() -> None:
    """Log messages from INFO on to stderr, unless the user's program configures logging, also later."""
    root = logging.getLogger()
    if not root.handlers:
        root.setLevel(logging.INFO)
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        logging.lastResort = handler  # used while the root logger has no handlers, so that basicConfig adds its own


def _message(error: Exception, words: Sequence[str]) -> str:
    """Return the message of an error: with its notes, and the option that named a missing file."""
    command = words[0]
    if isinstance(error, _EXPECTED) and str(error):
        notes = [note.removeprefix(_NOTE) for note in getattr(error, "__notes__", ()) if note.startswith(_NOTE)]
        text = str(getattr(error, "on_command_line", error))
        if isinstance(error, FileNotFoundError):
            option = _option_of(words, error.filename)
            text = f"{option}: {text}" if option else text
        return "; ".join([text, *notes])
    return f"{type(error).__name__}: {error} (traceback: flowmx --traceback {command} ...)"


def _option_of(words: Sequence[str], filename: str | None) -> str:
    """Return the option whose value is a file; without a file name, the first option whose file is missing."""
    options = [(word, value) for word, value in pairwise(words) if word.startswith("--")]
    options += [(name, value) for name, _, value in (word.partition("=") for word in words) if name.startswith("--")]
    for option, value in options:
        is_missing = option in _FILES and not Path(value).exists()
        if value == filename or (filename is None and is_missing):
            return option if filename is not None else f"{option} {value}"
    return ""


def _top(words: Sequence[str]) -> int:
    """Handle a command line without a command: print the help or the version, or refuse an unknown command."""
    parser = _parser()
    if words and not words[0].startswith("-"):
        hint = did_you_mean(words[0], _MODULES) or f"; expected one of {', '.join(_MODULES)}"
        parser.error(f"unknown command {words[0]!r}{hint}")
    parser.parse_args(words)
    parser.print_usage(sys.stderr)
    sys.stderr.write("flowmx: error: expected a command; flowmx --help lists them\n")
    raise SystemExit(USAGE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flowmx", usage="flowmx [--version] [--traceback] COMMAND ...", epilog=_command_list(), allow_abbrev=False,
        description="The MXNet programming model on asyncio.", formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"flowmx {__version__}")
    parser.add_argument("--traceback", action="store_true", help="print the traceback of an error")
    return parser


def _command_list() -> str:
    lines = []
    for group, commands in COMMANDS.items():
        lines += [f"{group}:", *(f"  {name:<10} {about}" for name, (_, about) in commands.items()), ""]
    lines += ["flowmx COMMAND --help describes the arguments of a command, with examples.", "", "exit status:"]
    return "\n".join([*lines, *(f"  {status:<4} {meaning}" for status, meaning in EXITS.items())])
