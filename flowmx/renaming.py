"""Former names of flowmx, which work as before and warn. Former names of MXNet are not among them; they do not warn."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = ["renamed", "warn_renamed"]

P = ParamSpec("P")
R = TypeVar("R")


def renamed(function: Callable[P, R], old: str, new: str) -> Callable[P, R]:
    """Return a function or method under its former name, which warns when it is called.

    Args:
        function: the function.
        old: the former name, for the warning.
        new: the present name.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        warn_renamed(old, new)
        return function(*args, **kwargs)

    call.__doc__ = f"Call :meth:`{new.rpartition('.')[2]}`, the present name."
    return call


def warn_renamed(old: str, new: str) -> None:
    """Warn the caller of the calling function of a former name.

    Args:
        old: the former name.
        new: the present name.
    """
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)
