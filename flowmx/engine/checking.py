"""The checking mode: operations must leave what they declared as read as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowmx.engine.scheduler import Operation
from flowmx.errors import UndeclaredWriteError


class _Check:
    """The content of what an operation only reads, before and after."""

    def __init__(self, op: Operation) -> None:
        self._before = {each: each.fingerprint() for each in op.reads if each not in op.writes}

    def compare(self) -> None:
        """Raise UndeclaredWriteError where one of them has changed."""
        for variable, old in self._before.items():
            if variable.fingerprint() != old:
                raise UndeclaredWriteError(
                    f"the operation changed {variable!r}, which it declared as read: name it in `writes` "
                    "(an operator's workspace, a generator's state and a running mean are written too)"
                )


def checked(op: Operation, proceed: Callable[[], Any]) -> Any:
    """A layer that checks that the variables declared as read have not changed."""
    if op.is_coroutine:
        return _checked_coroutine(op, proceed)
    check = _Check(op)
    result = proceed()
    check.compare()
    return result


async def _checked_coroutine(op: Operation, proceed: Callable[[], Any]) -> Any:
    check = _Check(op)
    result = await proceed()
    check.compare()
    return result
