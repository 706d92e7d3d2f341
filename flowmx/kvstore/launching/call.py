"""``python -m flowmx call module:function``: a worker's program that is a function."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from operator import attrgetter
from typing import Any

from flowmx.engine.loops import run
from flowmx.tools import usage

__all__ = ["find", "main", "name_of"]


def name_of(function: Callable[..., Any]) -> str:
    """The name by which another process imports a function.

    Raises:
        ValueError: there is none: it is of the main program, or defined inside another function.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__") or not name or "<" in name:
        raise ValueError(
            f"{function!r} can not be imported by other processes: put it at the top of a module that they have, "
            'or launch a command, such as ["python", "train.py"]'
        )
    return f"{module}:{name}"


def find(name: str) -> Callable[..., Any]:
    """The function of a name, ``module:function``.

    Raises:
        ValueError: there is no such module, or it has no such function.
    """
    module, _, path = name.partition(":")
    try:
        function = attrgetter(path)(import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name!r} names no function, as in 'module:function': {error}") from error
    if not callable(function):
        raise ValueError(f"{name!r} is {function!r}, which is no function")
    found: Callable[..., Any] = function
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Call a function with the arguments that follow, as text; a coroutine function is run."""
    parser = usage.parser("call", "Call a function of a module; a coroutine function is run.", ["jobs.train:main 10"])
    parser.add_argument("function", metavar="MODULE:FUNCTION")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments, as text")
    given = parser.parse_args(argv)
    sys.path.insert(0, "")  # as `python -m` has it: modules of the working folder
    result = find(given.function)(*given.arguments)
    if inspect.isawaitable(result):
        run(_of(result))
    return 0


async def _of(awaitable: Any) -> Any:
    return await awaitable
