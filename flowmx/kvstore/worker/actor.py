"""The network to a job's servers, as an actor of the engine.

Its operations start on the session's event loop, many at a time, and end when their responses have arrived. That loop
is separate from the engine's: heartbeats must continue while the engine is stopped, for a fork or a change of settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

from flowmx.engine import BatchActor, Operation
from flowmx.engine.bookkeeping import inherited_failure
from flowmx.engine.failure import Failure, failure_of
from flowmx.engine.running import call_layered
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import DONE

__all__ = ["Deferred", "NetworkActor"]


class Deferred:
    """The future result of a running operation. It belongs to the session's loop.

    Args:
        cancel: called to cancel the operation, if that is possible. A push cannot be cancelled: the servers wait for
            every number.
    """

    def __init__(self, cancel: Callable[[], object] | None = None) -> None:
        self.cancel = cancel
        self.ended = False
        self.error: BaseException | None = None
        self._callback: Callable[[Deferred], object] | None = None

    def end(self, error: BaseException | None = None) -> None:
        """End the operation, with an error if given; later calls do nothing."""
        if self.ended:
            return
        self.ended, self.error = True, error
        if self._callback is not None:
            self._callback(self)

    def on_end(self, callback: Callable[[Deferred], object]) -> None:
        """Call a function when the operation ends, or now if it has ended."""
        self._callback = callback
        if self.ended:
            callback(self)


class NetworkActor(BatchActor):
    """Starts operations on a loop; completes all operations together that end in the same turn of it.

    Args:
        name: its name in messages.
        loop: the loop on which functions are called; a function that returns a :class:`Deferred` ends with that.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name)
        self.external_loop: asyncio.AbstractEventLoop = loop
        self.on_start_failure: Callable[[Operation, BaseException], object] = lambda op, error: None
        """Called with an operation that could not start, because it raised or its inputs have failed."""
        self._running: dict[Operation, Deferred] = {}
        self._ended: list[tuple[Operation, Failure | None]] = []

    async def begin(self, batch: Sequence[Operation]) -> None:
        for op in batch:
            self._begin(op)

    def _begin(self, op: Operation) -> None:
        op.began = monotonic()
        failure = inherited_failure(op) if engine.poisoned else None
        deferred: Deferred | None = None
        if failure is None:
            try:
                result = call_layered(op) if op.layers else op.function(*op.arguments)
                deferred = result if isinstance(result, Deferred) else None
            except Exception as error:  # it becomes the failure of the operation
                failure = failure_of(error, op)
        if failure is not None:
            self.on_start_failure(op, failure.exception)
        if deferred is None:
            self._end(op, failure)
        else:
            self._running[op] = deferred
            deferred.on_end(lambda ended: self._end(op, None if ended.error is None else Failure(ended.error, op)))

    def cancel_running(self, op: Operation) -> bool:
        deferred = self._running.get(op)
        if deferred is None or deferred.cancel is None:
            return False
        self.external_loop.call_soon_threadsafe(deferred.cancel)
        return True

    def _end(self, op: Operation, failure: Failure | None) -> None:
        self._running.pop(op, None)
        self._ended.append((op, failure))
        if len(self._ended) == 1:
            self.external_loop.call_soon(self.flush)

    def flush(self) -> None:
        """Complete the operations that have ended."""
        ended, self._ended = self._ended, []
        engine.end_all([(op, failure) for op, failure in ended if op.state != DONE])
