"""The network to a job's servers, as an actor of the engine.

Its operations are begun on the session's own loop, many at a time, and end when their answers are there. That loop is
not the engine's: signs of life must go on while the engine is stopped, for a fork or between two settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

from flowmx.engine import BatchActor, Operation
from flowmx.engine.bookkeeping import carried
from flowmx.engine.failure import Failure, failure_of
from flowmx.engine.running import layered
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import DONE

__all__ = ["Deferred", "NetworkActor"]


class Deferred:
    """Result of an operation that has begun and ends later, as a future. Belongs to the session's loop.

    Args:
        cancel: is called to end it early, where it can be ended. A push can not: the servers count on every number.
    """

    def __init__(self, cancel: Callable[[], object] | None = None) -> None:
        self.cancel = cancel
        self.ended = False
        self.error: BaseException | None = None
        self._tell: Callable[[Deferred], object] | None = None

    def end(self, error: BaseException | None = None) -> None:
        """End it, with an error if given; later calls change nothing."""
        if self.ended:
            return
        self.ended, self.error = True, error
        if self._tell is not None:
            self._tell(self)

    def whenever(self, tell: Callable[[Deferred], object]) -> None:
        """Call a function when it has ended, or now if it has."""
        self._tell = tell
        if self.ended:
            tell(self)


class NetworkActor(BatchActor):
    """Begins operations on a loop; completes those together that end in one turn of it.

    Args:
        name: as in messages.
        loop: where functions are called; one that returns a :class:`Deferred` is over when that is.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name)
        self.own_loop: asyncio.AbstractEventLoop = loop
        self._running: dict[Operation, Deferred] = {}
        self._over: list[tuple[Operation, Failure | None]] = []

    async def begin(self, batch: Sequence[Operation]) -> None:
        for op in batch:
            self._begin(op)

    def _begin(self, op: Operation) -> None:
        op.began = monotonic()
        failure = carried(op) if engine.poisoned else None
        deferred: Deferred | None = None
        if failure is None:
            try:
                found = layered(op) if op.layers else op.function(*op.arguments)
                deferred = found if isinstance(found, Deferred) else None
            except Exception as error:
                failure = failure_of(error, op)
        if deferred is None:
            self._end(op, failure)
        else:
            self._running[op] = deferred
            deferred.whenever(lambda ended: self._end(op, None if ended.error is None else Failure(ended.error, op)))

    def cancel_running(self, op: Operation) -> bool:
        deferred = self._running.get(op)
        if deferred is None or deferred.cancel is None:
            return False
        self.own_loop.call_soon_threadsafe(deferred.cancel)
        return True

    def _end(self, op: Operation, failure: Failure | None) -> None:
        self._running.pop(op, None)
        self._over.append((op, failure))
        if len(self._over) == 1:
            self.own_loop.call_soon(self.flush)

    def flush(self) -> None:
        """Complete the operations that have ended."""
        over, self._over = self._over, []
        engine.end_all([(op, failure) for op, failure in over if op.state != DONE])
