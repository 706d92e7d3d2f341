"""The network to a job's servers, as an actor of the engine.

Its operations are begun on the session's own loop, many at a time, and end when their answers are there. That loop is
not the engine's: signs of life must go on while the engine is stopped, for a fork or between two settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from flowmx.engine import Actor, Operation
from flowmx.engine.failure import Failure
from flowmx.engine.runtime import carried, engine
from flowmx.engine.scheduler import DONE, RUNNING

__all__ = ["Deferred", "NetworkActor"]


class Deferred:
    """What an operation's function returns that is not over yet. Belongs to the session's loop.

    Args:
        cancel: is called to end it early, where it can be ended. A push can not: the servers count on every number.
    """

    def __init__(self, cancel: Callable[[], object] | None = None) -> None:
        self.cancel = cancel
        self.ended = False
        self.error: BaseException | None = None
        self._tell: Callable[[Deferred], object] | None = None

    def end(self, error: BaseException | None = None) -> None:
        """It is over, well or with an error; what comes later changes nothing."""
        if self.ended:
            return
        self.ended, self.error = True, error
        if self._tell is not None:
            self._tell(self)

    def whenever(self, tell: Callable[[Deferred], object]) -> None:
        """Have a function called when it is over, or now if it is."""
        self._tell = tell
        if self.ended:
            tell(self)


class NetworkActor(Actor):
    """Begins operations on a loop; completes those together that end in one turn of it.

    Args:
        name: as in messages.
        loop: where functions are called; one that returns a :class:`Deferred` is over when that is.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name)
        self._loop = loop
        self._signalled = False
        self._running: dict[Operation, Deferred] = {}
        self._over: list[tuple[Operation, Failure | None]] = []
        self._stopping: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._stopped = False

    def is_idle(self) -> bool:
        return not len(self.mailbox)

    def accept(self, op: Operation) -> None:
        self.mailbox.put(op)
        if not self._signalled:
            self._signalled = True
            self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        """Begin everything that is ready."""
        with engine.lock:
            self._signalled = False
            ready = []
            while (op := self.mailbox.take()) is not None:
                op.state = RUNNING
                ready.append(op)
        for op in ready:
            self._begin(op)

    def _begin(self, op: Operation) -> None:
        op.began = monotonic()
        failure = carried(op)
        deferred: Deferred | None = None
        if failure is None:
            try:
                found = op.function(*op.arguments)
                deferred = found if isinstance(found, Deferred) else None
            except Exception as error:
                failure = Failure(error, op)
        if deferred is None:
            self._end(op, failure)
        else:
            self._running[op] = deferred
            deferred.whenever(lambda ended: self._end(op, None if ended.error is None else Failure(ended.error, op)))

    def cancel_running(self, op: Operation) -> bool:
        deferred = self._running.get(op)
        if deferred is None or deferred.cancel is None:
            return False
        self._loop.call_soon_threadsafe(deferred.cancel)
        return True

    def _end(self, op: Operation, failure: Failure | None) -> None:
        self._running.pop(op, None)
        self._over.append((op, failure))
        if len(self._over) == 1:
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Complete what is over."""
        over, self._over = self._over, []
        engine.end([(op, failure) for op, failure in over if op.state != DONE])

    async def run(self) -> None:
        stopping = asyncio.Event()
        with engine.lock:
            if self._stopped:
                return
            self._stopping = (asyncio.get_running_loop(), stopping)
        await stopping.wait()

    def stop(self) -> None:
        self._stopped = True
        if self._stopping is not None:
            loop, stopping = self._stopping
            self._stopping = None
            loop.call_soon_threadsafe(stopping.set)

    def rest(self) -> None:
        super().rest()
        self._signalled = self._stopped = False
        self._stopping = None

    def mend(self, running: int) -> None:
        super().mend(running)
        self._signalled = False
