"""The checking mode: operations must leave what they declared as read as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowmx.engine.scheduler import Variable
from flowmx.errors import UndeclaredWriteError


class _Check:
    """The content of what an operation only reads, before and after."""

    def __init__(self, reads: tuple[Variable, ...], writes: tuple[Variable, ...]) -> None:
        self._before = {each: each.fingerprint() for each in reads if each not in writes}

    def compare(self) -> None:
        """Raise UndeclaredWriteError where one of them has changed."""
        for variable, old in self._before.items():
            if variable.fingerprint() != old:
                raise UndeclaredWriteError(
                    f"the operation changed {variable!r}, which it declared as read: name it in `writes` "
                    "(an operator's workspace, a generator's state and a running mean are written too)"
                )


def checked(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    reads: tuple[Variable, ...],
    writes: tuple[Variable, ...],
) -> Any:
    """The checking mode: run an operation and see that what it declared as read has not changed."""
    check = _Check(reads, writes)
    result = function(*arguments)
    check.compare()
    return result


async def checked_coroutine(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    reads: tuple[Variable, ...],
    writes: tuple[Variable, ...],
) -> Any:
    """As :func:`checked`, for a coroutine function."""
    check = _Check(reads, writes)
    result = await function(*arguments)
    check.compare()
    return result
