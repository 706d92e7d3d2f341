"""``python -m flowmx call module:function``: run a function as a worker's program."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from operator import attrgetter
from typing import Any, cast

from flowmx.engine.loops import run
from flowmx.tools import usage

__all__ = ["find", "main", "name_of"]


def name_of(function: Callable[..., object]) -> str:
    """Return the name by which another process imports a function.

    Raises:
        ValueError: the function belongs to the main program, or is defined inside another function.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__") or not name or "<" in name:
        raise ValueError(
            f"{function!r} cannot be imported by other processes: define it at the top level of a module that they "
            'can import, or launch a command, such as ["python", "train.py"]'
        )
    return f"{module}:{name}"


def find(name: str) -> Callable[..., object]:
    """Import the function that ``module:function`` names.

    Raises:
        ValueError: the module does not exist, or has no such function.
    """
    module, _, path = name.partition(":")
    try:
        function = attrgetter(path)(import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name!r} is not the name of a function, such as 'module:function': {error}") from error
    if not callable(function):
        raise ValueError(f"{name!r} is {function!r}, expected a function")
    return cast("Callable[..., Any]", function)


def main(argv: Sequence[str] | None = None) -> int:
    """Call a function with the arguments that follow, as strings; a coroutine function is run."""
    parser = usage.parser(
        "call", "Call a function of a module. A coroutine function is run in an event loop.", ["jobs.train:main 10"]
    )
    parser.add_argument("function", metavar="MODULE:FUNCTION")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the function, as strings")
    options = parser.parse_args(argv)
    sys.path.insert(0, "")  # import from the working folder, as `python -m` does
    result = find(options.function)(*options.arguments)
    if inspect.isawaitable(result):
        run(_await(result))
    return 0


async def _await(awaitable: Any) -> Any:
    return await awaitable
