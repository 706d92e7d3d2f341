"""Sessions of a predictor: awaitable calls in order, and streams of them."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Hashable, Iterable
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flowmx.event_loops import AsyncContext, running_loop
from flowmx.serve.errors import InvalidInput, Unavailable
from flowmx.serve.host_arrays import ModelInput, on_host
from flowmx.serve.inputs import Array, Inputs, Rows, Shape
from flowmx.serve.runner import Runner
from flowmx.serve.sessions.core import Call, SessionEntry
from flowmx.serve.sessions.run_ahead import RunAhead
from flowmx.serve.sessions.runner import SessionRunner

__all__ = ["Session"]

_AHEAD = 8
"""Default number of calls of a stream whose results have not been read."""


class Session(AsyncContext):
    """A session: its calls run in order, and each begins with the states that the one before has left.

    :meth:`Predictor.session` creates one. Calls of different sessions share batches. If a call fails, is cancelled, or
    is refused, the states are those before it. A session that is deleted, or has no call for too long, is closed.

    Args:
        runner: the runner of the predictor.
        sessions: the runner of its sessions.
        entry: the session in the table.
        owner: the predictor, which lives as long as its sessions.
        is_lasting: whether the session stays open when this object is deleted.

    Example:
        >>> async with predictor.session() as session:
        ...     y = await session(x)
        ...     async for y in session.stream(microphone):
        ...         print(y)
    """

    def __init__(
        self, runner: Runner, sessions: SessionRunner, entry: SessionEntry, owner: object, is_lasting: bool = False
    ) -> None:
        self._runner, self._sessions, self._entry, self._owner = runner, sessions, entry, owner
        self._loop: asyncio.AbstractEventLoop | None = None
        self._finalizer = None if is_lasting else weakref.finalize(self, sessions.delete, entry)
        if self._finalizer is not None:
            self._finalizer.atexit = False

    # -- calls -----------------------------------------------------------------------------------------

    async def __call__(self, x: ModelInput) -> npt.NDArray[Any]:
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
        call = self._submit(x if type(x) is np.ndarray else await on_host(x))
        try:
            result: npt.NDArray[Any] = await call.answer[1]
        except asyncio.CancelledError:
            self._abandon(call)
            raise
        return result

    async def stream(
        self, xs: AsyncIterable[ModelInput] | Iterable[ModelInput], *, ahead: int = _AHEAD
    ) -> AsyncGenerator[npt.NDArray[Any], None]:
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
        calls = RunAhead[Call](ahead)
        feeding = asyncio.create_task(self._feed(xs, calls))
        try:
            while (call := await calls.get()) is not None:
                yield await self._result(call)
                calls.record_read()
            await feeding
        finally:
            feeding.cancel()
            self._abandon_all(calls)
            try:
                await asyncio.wait([feeding])
            finally:  # even if the reader is cancelled again
                self._abandon_all(calls)
                if feeding.done() and not feeding.cancelled():
                    feeding.exception()  # the reader has got it, or wants no more

    async def _feed(self, xs: AsyncIterable[Any] | Iterable[Any], calls: RunAhead[Call]) -> None:
        """Queue a call for each input."""
        try:
            await calls.wait_for_room()
            if isinstance(xs, AsyncIterable):
                async for x in xs:
                    calls.put(self._submit(await _row_of(x), calls))
                    await calls.wait_for_room()
            else:
                for x in xs:
                    calls.put(self._submit(await _row_of(x), calls))
                    await calls.wait_for_room()
        finally:
            calls.end()

    def _submit(self, x: Any, group: object = None) -> Call:
        return self._queue(*self._row(x), group)

    def _queue(self, arrays: tuple[Array, ...], shapes: tuple[Shape, ...], group: object = None) -> Call:
        runner, loop = self._runner, asyncio._get_running_loop()
        if loop is None or loop is not self._loop:
            self._loop = loop = running_loop()
        trace = runner.tracing.current() if runner.tracing else None
        call = Call(self._entry, arrays, shapes, time.perf_counter(), (loop, loop.create_future()), group, trace)
        try:
            self._sessions.submit(call)
        except Exception as error:
            runner.instruments.requests.add(runner.name, "unavailable" if isinstance(error, Unavailable) else "refused")
            raise
        return call

    async def predict(self, rows: Rows) -> Any:
        """Predict for a validated input of one row, as for a call.

        Returns:
            the result, with the batch axis if ``rows`` has it.

        Raises:
            Exception: as for a call.
        """
        call = self._queue(*self._checked(rows))
        result = await self._result(call)
        if rows.single:
            return result
        return [output[None] for output in result] if isinstance(result, list) else result[None]

    def begin(self, x: Any) -> asyncio.Future[Any]:
        """Queue a call at once; return the future of its result. Cancelling the future withdraws the call.

        Args:
            x: as for a call, except flowmx's arrays.

        Raises:
            Exception: as for a call.
        """
        call = self._submit(x)
        future: asyncio.Future[Any] = call.answer[1]
        future.add_done_callback(lambda done: self._abandon(call) if done.cancelled() else None)
        return future

    async def _result(self, call: Call) -> Any:
        try:
            return await call.answer[1]
        except asyncio.CancelledError:
            self._abandon(call)
            raise

    def _abandon_all(self, calls: RunAhead[Call]) -> None:
        for call in calls.clear():
            self._abandon(call)

    def _abandon(self, call: Call) -> None:
        """Withdraw a call whose result is not read."""
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
        except InvalidInput as error:
            raise self._invalid(str(error)) from None
        return self._checked(rows)

    def _checked(self, rows: Rows) -> tuple[tuple[Array, ...], tuple[Shape, ...]]:
        """Return the arrays and shapes of an input, which must be one row of a length that needs no padding."""
        if rows.rows != 1:
            raise self._invalid(f"the input has {rows.rows} samples, expected one: a call is one step of the session")
        shapes = tuple(array.shape[1:] for array in rows.arrays)
        if shapes != rows.shapes:
            listing = ", ".join(map(str, rows.shapes))
            raise self._invalid(f"the input has the shape {shapes[0]}, expected {listing}: padding would change states")
        return rows.arrays, shapes

    def _invalid(self, text: str) -> InvalidInput:
        self._runner.instruments.requests.add(self._runner.name, "invalid")
        return InvalidInput(f"session {self.name!r}: {text}")

    # -- lifecycle -------------------------------------------------------------------------------------

    def watch(self, function: Callable[[], object]) -> None:
        """Call a function, on any thread, when the session is closed; at once if it is."""
        self._sessions.watch(self._entry, function)

    def close(self) -> None:
        """Close the session and release its memory. Its unfinished calls raise :class:`SessionClosed`."""
        self.end("is closed", "closed")

    def end(self, reason: str, kind: str) -> None:
        """Close the session for a reason.

        Args:
            reason: why, as the end of a sentence, for messages.
            kind: why, for the metrics.
        """
        if self._finalizer is not None:
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
    def reason(self) -> str | None:
        """Why it was closed, as the end of a sentence; None while it is open."""
        return self._entry.reason

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


async def _row_of(x: Any) -> Any:
    """Return an input with its NDArrays converted to NumPy arrays."""
    return x if type(x) is np.ndarray else await on_host(x)
