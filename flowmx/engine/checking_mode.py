"""The checking mode: an operation fails if it changes variables that it declared as only read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowmx.engine.scheduler import Operation
from flowmx.errors import UndeclaredWriteError


class _Check:
    """Fingerprints of the variables that an operation only reads, before it runs."""

    def __init__(self, op: Operation) -> None:
        self._before = {variable: variable.fingerprint() for variable in op.reads if variable not in op.writes}

    def compare(self) -> None:
        """Raise UndeclaredWriteError if one of them has changed."""
        for variable, old in self._before.items():
            if variable.fingerprint() != old:
                raise UndeclaredWriteError(
                    f"the operation changed {variable!r}, which it declared as read: name it in `writes` "
                    "(an operator's workspace, a generator's state and a running mean are written too)"
                )


def check_reads(op: Operation, proceed: Callable[[], object]) -> Any:
    """Check that the variables declared as read have not changed (a layer)."""
    if op.is_coroutine:
        return _check_reads_of_coroutine(op, proceed)
    check = _Check(op)
    result = proceed()
    check.compare()
    return result


async def _check_reads_of_coroutine(op: Operation, proceed: Callable[[], Any]) -> Any:
    check = _Check(op)
    result = await proceed()
    check.compare()
    return result
