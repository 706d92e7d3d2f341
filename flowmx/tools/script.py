"""Runs a user's script in this process, as ``python script.py`` does."""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from flowmx import tracebacks

__all__ = ["ScriptExit", "run", "run_module"]


_GLOBALS = {"__builtins__": builtins}
"""Globals of a main module, whose `__builtins__` is a module instead of a dict."""


class ScriptExit(Exception):
    """A script ended with an error, whose traceback was printed, or with a non-zero ``sys.exit``.

    Attributes:
        status: the exit status.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"the script ended with status {status}")
        self.status = status


def run(script: Sequence[str]) -> None:
    """Run a script. An error's traceback is printed, and begins in the script.

    Args:
        script: its path and its arguments.

    Raises:
        OSError: the file does not exist.
        ScriptExit: the script raised, or exited with a status other than 0.
    """
    path = script[0]
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no script {path!r}")
    with _as_main(script, Path(path).resolve().parent), _exit_errors(path):
        runpy.run_path(path, _GLOBALS, "__main__")


def run_module(name: str, arguments: Sequence[str] = ()) -> None:
    """Run a module as ``python -m`` does. An error's traceback is printed, and begins in the module.

    Args:
        name: its name; for a package, its ``__main__`` is run.
        arguments: its arguments.

    Raises:
        ImportError: the module does not exist.
        ScriptExit: the module raised, or exited with a status other than 0.
    """
    with _as_main(["-m", *arguments], Path.cwd()):
        path = _file_of(name)
        with _exit_errors(path):
            runpy.run_module(name, _GLOBALS, "__main__", alter_sys=True)


def _file_of(name: str) -> str:
    """Return the file of an executable module."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"there is no executable module {name!r}", name=name)
    return spec.origin


@contextlib.contextmanager
def _exit_errors(path: str) -> Iterator[None]:
    """Convert errors and non-zero exits of a program into :class:`ScriptExit`."""
    try:
        yield
    except SystemExit as error:
        _raise_exit(error.code)
    except Exception as error:  # the user's script may raise anything
        tracebacks.show(type(error), error, _from_script(error.__traceback__, path))
        raise ScriptExit(1) from None


def _raise_exit(code: object) -> None:
    if code is None or code == 0:
        return
    if not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
    raise ScriptExit(code if isinstance(code, int) else 1) from None


def _from_script(trace: TracebackType | None, path: str) -> TracebackType | None:
    """Return the traceback without the frames outside the script."""
    entry = trace
    while entry is not None and entry.tb_frame.f_code.co_filename != path:
        entry = entry.tb_next
    return entry or trace


@contextlib.contextmanager
def _as_main(script: Sequence[str], folder: Path) -> Iterator[None]:
    """Set ``sys.argv`` to the script's arguments and prepend a folder to ``sys.path`` in the context."""
    argv, path = sys.argv, sys.path
    sys.argv, sys.path = list(script), [str(folder), *path]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path
