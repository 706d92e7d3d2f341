"""Requests that wait for the state machine: a call for each part, and one wake-up for all of them.

A joined request is one call; its handles in the state machine are pairs of the call and the position of a part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import numpy as np

from flowmx.comm.buffers import allocate
from flowmx.comm.errors import Refused
from flowmx.comm.frames import Message, Tensor
from flowmx.kvstore.server import protocol as p
from flowmx.kvstore.server.coalescing import Layout
from flowmx.kvstore.server.store import Array, Value

__all__ = ["Call", "JoinedCall", "Read", "ResponseCounter", "start_time"]

Read = Callable[[Value], Any]


class Call:
    """A request's call for one part of a key, which waits for its response.

    Args:
        responses: counts the responses of the request.
        read: extracts the response from a value.
    """

    __slots__ = ("_read", "done", "response", "responses")

    def __init__(self, responses: ResponseCounter, read: Read = Value.content) -> None:
        self.responses = responses
        self._read = read
        self.response: tuple[int, Any] = (0, None)
        self.done = False

    def set_response(self, response: p.Response) -> None:
        """Set the response. The value is read at once, since it may change later."""
        if self.done:
            return
        self.done = True
        try:
            if isinstance(response, p.Content):
                self.response = (response.round, self._read(response.value))
            elif isinstance(response, p.Acknowledged):
                self.response = (response.number, None)
            else:
                raise Refused(response.text, response.kind)
            self.responses.count()
        except Exception as error:  # it becomes the response of the request
            self.responses.fail(error)


class ResponseCounter:
    """Counts the responses of calls until all have one, or one was refused; wakes the request once.

    Attributes:
        begun: the start time of the request, in seconds of :func:`time.monotonic`.
    """

    def __init__(self, calls: int) -> None:
        self.begun = monotonic()
        self._left = calls
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def count(self, by: int = 1) -> None:
        self._left -= by
        self._wake()

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._wake()

    @property
    def _is_complete(self) -> bool:
        return self._left <= 0 or self._error is not None

    def _wake(self) -> None:
        if self._waiter is not None and self._is_complete and not self._waiter.done():
            self._waiter.set_result(None)

    def make_calls(
        self, begin: Callable[[], object], response: Callable[[], Message], end: Callable[[], object]
    ) -> Message | Awaitable[Message]:
        """Make the calls; return the response if all calls are answered at once, else an awaitable for it.

        Args:
            begin: a function that makes the calls.
            response: a function that combines the responses of the calls into the response to the request.
            end: cancels the calls without a response.

        Raises:
            Refused: a call was refused; raised at once or by the awaitable.
        """
        try:
            begin()
            if self._is_complete:
                return self._make_response(response)
        except BaseException:  # cancelled too, the call has ended
            end()
            raise
        return self._wait(response, end)

    async def _wait(self, response: Callable[[], Message], end: Callable[[], object]) -> Message:
        try:
            if not self._is_complete:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            return self._make_response(response)
        finally:
            end()

    def _make_response(self, response: Callable[[], Message]) -> Message:
        if self._error is not None:
            raise self._error
        return response()


class JoinedCall:
    """A joined request that waits for its responses; values are copied into one tensor as they arrive.

    Args:
        layout: the layout of that tensor.
        values: whether the request asks for values.

    Attributes:
        requests: the handle of each part in the state machine.
        responses: counts the responses of the parts.
    """

    __slots__ = ("_at", "_copied", "_done", "_from", "_layout", "_numbers", "_tensor", "_to", "requests", "responses")

    def __init__(self, layout: Layout, values: bool) -> None:
        parts = len(layout.starts)
        self.requests = [(self, position) for position in range(parts)]
        self.responses = ResponseCounter(parts)
        self._layout = layout
        self._tensor = _memory(layout) if values else None
        self._numbers = [0] * parts
        self._done = bytearray(parts)
        self._from: Array | None = None  # the pending copy: its source and positions
        self._at = self._copied = self._to = 0

    def put(self, position: int, response: p.Response) -> None:
        """Set the response for one part; :meth:`flush` must be called before its value changes.

        Values that are adjacent in source and target are copied together.
        """
        if self._done[position]:
            return
        self._done[position] = 1
        if isinstance(response, p.Refused):
            self.responses.fail(Refused(response.text, response.kind))
            return
        if isinstance(response, p.Content):
            if response.value.failure:
                self.responses.fail(Refused(response.value.failure, "round_failed"))
                return
            self._numbers[position] = response.round
            self._copy(position, response.value)
        else:
            self._numbers[position] = response.number
        self.responses.count()

    def flush(self) -> None:
        """Copy the collected values into the tensor."""
        base, self._from = self._from, None
        if base is not None and self._tensor is not None:
            length = self._to - self._copied
            self._tensor[self._copied : self._to] = base[self._at : self._at + length]

    def response(self) -> Message:
        """Return the response of the request, once all parts are answered."""
        return Message({"numbers": self._numbers}, [] if self._tensor is None else [Tensor.of(self._tensor)])

    def unanswered(self) -> list[int]:
        """Return the positions of parts without a response."""
        return [position for position, done in enumerate(self._done) if not done]

    def _copy(self, position: int, value: Value) -> None:
        base, begin = value.place()
        start = self._layout.starts[position]
        if base is not self._from or start != self._to or begin - self._at != start - self._copied:
            self.flush()
            self._from, self._at, self._copied = base, begin, start
        self._to = self._layout.stops[position]


def start_time(request: p.Request) -> float | None:
    """Return the start time of a waiting request, in seconds of :func:`time.monotonic`; None if it is unknown."""
    call = request[0] if isinstance(request, tuple) else request
    return call.responses.begun if isinstance(call, Call | JoinedCall) else None


def _memory(layout: Layout) -> Array:
    return np.frombuffer(allocate(layout.size * layout.dtype.itemsize), np.uint8).view(layout.dtype)
