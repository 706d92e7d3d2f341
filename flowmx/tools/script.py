"""Running a user's script inside this process, as ``python script.py`` would run it."""

from __future__ import annotations

import contextlib
import importlib.util
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from flowmx import tracebacks

__all__ = ["Ended", "run", "run_module"]


class Ended(Exception):
    """A script came to its end by an error, which was shown, or by ``sys.exit`` with a status that is no success.

    Attributes:
        status: the exit status that Python would give.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"the script ended with status {status}")
        self.status = status


def run(script: Sequence[str]) -> None:
    """Run a script; the traceback of its error is printed, and begins in it.

    Args:
        script: its path, and its arguments.

    Raises:
        OSError: there is no such file.
        Ended: it raised, or exited with another status than 0.
    """
    path = script[0]
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no script {path!r}")
    with _as_main(script, Path(path).resolve().parent), _ending(path):
        runpy.run_path(path, run_name="__main__")


def run_module(name: str, arguments: Sequence[str] = ()) -> None:
    """Run a module, as ``python -m`` does; the traceback of its error is printed, and begins in it.

    Args:
        name: its name; of a package, its ``__main__`` is run.
        arguments: its arguments.

    Raises:
        ImportError: there is no such module.
        Ended: it raised, or exited with another status than 0.
    """
    with _as_main(["-m", *arguments], Path.cwd()):
        path = _file_of(name)
        with _ending(path):
            runpy.run_module(name, run_name="__main__", alter_sys=True)


def _file_of(name: str) -> str:
    """The file of a module that can be run."""
    found = importlib.util.find_spec(name)
    if found is not None and found.submodule_search_locations is not None:
        found = importlib.util.find_spec(f"{name}.__main__")
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"there is no module {name!r} that can be run", name=name)
    return found.origin


@contextlib.contextmanager
def _ending(path: str) -> Iterator[None]:
    """Turn how a program ends into :class:`Ended`, where it is no success."""
    try:
        yield
    except SystemExit as ended:
        _exited(ended.code)
    except Exception as error:
        tracebacks.show(type(error), error, _from_script(error.__traceback__, path))
        raise Ended(1) from None


def _exited(code: object) -> None:
    if code is None or code == 0:
        return
    if not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
    raise Ended(code if isinstance(code, int) else 1) from None


def _from_script(trace: TracebackType | None, path: str) -> TracebackType | None:
    """A traceback without what stands above the script."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename != path:
        found = found.tb_next
    return found or trace


@contextlib.contextmanager
def _as_main(script: Sequence[str], folder: Path) -> Iterator[None]:
    """Set ``sys.argv`` to a script's arguments, and put a folder first on ``sys.path``, for the time of a ``with``."""
    argv, path = sys.argv, sys.path
    sys.argv, sys.path = list(script), [str(folder), *path]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path
