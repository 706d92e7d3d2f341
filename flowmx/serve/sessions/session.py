"""Sessions of a predictor: awaitable calls in order, and streams of them."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Hashable, Iterable
from types import TracebackType
from typing import Any, Self

import numpy as np

from flowmx.event_loops import running_loop
from flowmx.ndarray import NDArray
from flowmx.serve.errors import InvalidInput, Unavailable
from flowmx.serve.host_arrays import on_host
from flowmx.serve.inputs import Array, Inputs, Shape
from flowmx.serve.runner import Runner
from flowmx.serve.sessions.core import Call, SessionEntry
from flowmx.serve.sessions.runner import SessionRunner

__all__ = ["Session"]

_AHEAD = 8
"""Default number of calls of a stream whose results have not been read."""


class Session:
    """A session: its calls run in order, and each begins with the states that the one before has left.

    :meth:`Predictor.session` creates one. Calls of different sessions share batches. If a call fails, is cancelled, or
    is refused, the states are those before it. A session that is deleted, or has no call for too long, is closed.

    Args:
        runner: the runner of the predictor.
        sessions: the runner of its sessions.
        entry: the session in the table.
        owner: the predictor, which lives as long as its sessions.

    Example:
        >>> async with predictor.session() as session:
        ...     y = await session(x)
        ...     async for y in session.stream(microphone):
        ...         print(y)
    """

    def __init__(self, runner: Runner, sessions: SessionRunner, entry: SessionEntry, owner: object) -> None:
        self._runner, self._sessions, self._entry, self._owner = runner, sessions, entry, owner
        self._finalizer = weakref.finalize(self, sessions.delete, entry)
        self._finalizer.atexit = False

    # -- calls -----------------------------------------------------------------------------------------

    async def __call__(self, x: Any) -> Any:
        """Predict, after the earlier calls of this session.

        Cancelling withdraws the call: it has no effect unless it is already complete.

        Args:
            x: one row: an array (NumPy's or flowmx's) or nested lists; for several inputs, a dict by name. It must not
                change until the result is available.

        Returns:
            a NumPy array, or a list of arrays for several outputs.

        Raises:
            InvalidInput: ``x`` does not match the model.
            SessionClosed: the session is closed.
            Overloaded: the session has too many unfinished calls, or the inputs have too many bytes.
            Unavailable: the predictor is draining.
        """
        return await self._result(await self._submit(x))

    async def stream(self, xs: AsyncIterable[Any] | Iterable[Any], *, ahead: int = _AHEAD) -> AsyncGenerator[Any, None]:
        """Predict for each input of a stream, and yield the results in order.

        If a call fails, the calls of the stream after it have no effect. The session stays open.

        Args:
            xs: the inputs.
            ahead: the maximum number of inputs whose results have not been read.

        Raises:
            ValueError: ``ahead`` is below 1.
            Exception: as for a call, or of ``xs``; after the results before it.
        """
        if ahead < 1:
            raise ValueError(f"ahead is {ahead}, expected at least 1 call")
        calls: asyncio.Queue[Call | None] = asyncio.Queue()
        room = asyncio.Semaphore(ahead)
        feeding = asyncio.create_task(self._feed(xs, calls, room))
        try:
            while (call := await calls.get()) is not None:
                yield await self._result(call)
                room.release()
            await feeding
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
            if not feeding.cancelled():
                feeding.exception()
            while not calls.empty():
                self._abandon(calls.get_nowait())

    async def _feed(
        self, xs: AsyncIterable[Any] | Iterable[Any], calls: asyncio.Queue[Call | None], room: asyncio.Semaphore
    ) -> None:
        """Queue a call for each input, and None after the last."""
        try:
            await room.acquire()
            async for x in _iterated(xs):
                calls.put_nowait(await self._submit(x, calls))
                await room.acquire()
        finally:
            calls.put_nowait(None)

    async def _submit(self, x: Any, group: object = None) -> Call:
        runner, loop = self._runner, running_loop()
        arrays, shapes = self._row(await on_host(x) if isinstance(x, (NDArray, dict)) else x)
        trace = runner.tracing.current() if runner.tracing else None
        call = Call(self._entry, arrays, shapes, time.perf_counter(), (loop, loop.create_future()), group, trace)
        try:
            self._sessions.submit(call)
        except Exception as error:
            runner.instruments.requests.add(runner.name, "unavailable" if isinstance(error, Unavailable) else "refused")
            raise
        return call

    async def _result(self, call: Call) -> Any:
        try:
            return await call.answer[1]
        except asyncio.CancelledError:
            self._abandon(call)
            raise

    def _abandon(self, call: Call | None) -> None:
        """Withdraw a call whose result is not read."""
        if call is None:
            return
        future: asyncio.Future[Any] = call.answer[1]
        if not future.done() or future.cancelled():
            self._sessions.drop(call)
            self._runner.instruments.requests.add(self._runner.name, "cancelled")
            future.cancel()
        elif future.exception() is not None:
            pass  # it has been retrieved now

    def _row(self, x: Any) -> tuple[tuple[Array, ...], tuple[Shape, ...]]:
        """Validate an input."""
        inputs = self._runner.model.inputs
        assert isinstance(inputs, Inputs)
        spec = inputs.specs[0]
        if type(x) is np.ndarray and x.shape == spec.shape and x.dtype == spec.dtype and inputs.takes_any_values:
            return (x[None],), (x.shape,)
        try:
            rows = inputs.read(x)
            if not rows.single:
                raise InvalidInput(f"the input has {rows.rows} samples with a batch axis, expected one without it")
            shapes = tuple(array.shape[1:] for array in rows.arrays)
            if shapes != rows.shapes:
                raise InvalidInput(
                    f"the input has the shapes {shapes}, expected lengths of {inputs.lengths}: padding would change "
                    "the states"
                )
        except InvalidInput as error:
            self._runner.instruments.requests.add(self._runner.name, "invalid")
            raise InvalidInput(f"session {self.name!r}: {error}") from None
        return rows.arrays, shapes

    # -- lifecycle -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the session and release its memory. Its unfinished calls raise :class:`SessionClosed`."""
        self.end("is closed", "closed")

    def end(self, reason: str, kind: str) -> None:
        """Close the session for a reason.

        Args:
            reason: why, as the end of a sentence, for messages.
            kind: why, for the metrics.
        """
        self._finalizer.detach()
        self._sessions.close(self._entry, reason, kind)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> Hashable:
        """Its name in messages."""
        return self._entry.name

    @property
    def is_closed(self) -> bool:
        """Whether it accepts no further calls."""
        return self._entry.reason is not None

    @property
    def steps(self) -> int:
        """The number of calls that have taken effect."""
        return self._entry.steps

    def __repr__(self) -> str:
        state = f"{self._entry.reason}" if self.is_closed else f"open, after {self.steps} calls"
        return f"<Session {self.name!r} of {self._runner.name!r}: {state}>"


async def _iterated(xs: AsyncIterable[Any] | Iterable[Any]) -> AsyncIterator[Any]:
    """Yield the items of an iterable of either kind."""
    if isinstance(xs, AsyncIterable):
        async for x in xs:
            yield x
    else:
        for x in xs:
            yield x
