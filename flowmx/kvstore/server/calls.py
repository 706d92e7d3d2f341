"""Requests that wait for the state machine: a call for each part, and one wake-up for all of them.

A joined request is one call: what the machine knows its parts by are pairs of it and their positions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import numpy as np

from flowmx.comm.buffers import fresh
from flowmx.comm.errors import Refused
from flowmx.comm.frames import Message, Tensor
from flowmx.kvstore.server import protocol as p
from flowmx.kvstore.server.coalesced import Layout
from flowmx.kvstore.server.store import Array, Value

__all__ = ["Answers", "Call", "JoinedCall", "Read", "begun"]

Read = Callable[[Value], Any]


class Call:
    """A part's share of a request that waits for its answer.

    Args:
        answers: counts it.
        read: what is taken of a value.
    """

    __slots__ = ("_read", "answer", "answers", "done")

    def __init__(self, answers: Answers, read: Read = Value.lease) -> None:
        self.answers = answers
        self._read = read
        self.answer: tuple[int, Any] = (0, None)
        self.done = False

    def take(self, answer: p.Answer) -> None:
        """Take the answer. A value is read at once: later it may be another."""
        if self.done:
            return
        self.done = True
        try:
            if isinstance(answer, p.Content):
                self.answer = (answer.round, self._read(answer.value))
            elif isinstance(answer, p.Acknowledged):
                self.answer = (answer.number, None)
            else:
                raise Refused(answer.text, answer.kind)
            self.answers.count()
        except Exception as error:
            self.answers.fail(error)


class Answers:
    """Counts the answers of some calls until each has one, or one of them a refusal: one wake-up for all.

    Attributes:
        begun: when that was, in seconds of :func:`time.monotonic`.
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
    def _is_over(self) -> bool:
        return self._left <= 0 or self._error is not None

    def _wake(self) -> None:
        if self._waiter is not None and self._is_over and not self._waiter.done():
            self._waiter.set_result(None)

    def give(
        self, begin: Callable[[], object], answer: Callable[[], Message], end: Callable[[], object]
    ) -> Message | Awaitable[Message]:
        """The answer to the request, at once where each call has its own as soon as it was begun.

        Args:
            begin: makes the calls.
            answer: makes the answer of theirs.
            end: ends those that have none.

        Raises:
            Refused: one of them is a refusal; at once or later.
        """
        try:
            begin()
            if self._is_over:
                return self._given(answer)
        except BaseException:
            end()
            raise
        return self._wait(answer, end)

    async def _wait(self, answer: Callable[[], Message], end: Callable[[], object]) -> Message:
        try:
            if not self._is_over:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            return self._given(answer)
        finally:
            end()

    def _given(self, answer: Callable[[], Message]) -> Message:
        if self._error is not None:
            raise self._error
        return answer()


class JoinedCall:
    """A joined request that waits for its answers; values are copied into one tensor as they come.

    Args:
        layout: of that tensor.
        values: whether values are asked for.

    Attributes:
        requests: what the machine knows each of its parts by.
        answers: counts theirs.
    """

    __slots__ = ("_at", "_copied", "_done", "_from", "_layout", "_numbers", "_tensor", "_to", "answers", "requests")

    def __init__(self, layout: Layout, values: bool) -> None:
        parts = len(layout.starts)
        self.requests = [(self, position) for position in range(parts)]
        self.answers = Answers(parts)
        self._layout = layout
        self._tensor = _memory(layout) if values else None
        self._numbers = [0] * parts
        self._done = bytearray(parts)
        self._from: Array | None = None  # what is to be copied: from where, the first of it and the end of it
        self._at = self._copied = self._to = 0

    def put(self, position: int, answer: p.Answer) -> None:
        """Take the answer for one part; :meth:`flush` is called before its value changes.

        Values that lie side by side, here and there, are copied at once.
        """
        if self._done[position]:
            return
        self._done[position] = 1
        if isinstance(answer, p.Refused):
            self.answers.fail(Refused(answer.text, answer.kind))
            return
        if isinstance(answer, p.Content):
            self._numbers[position] = answer.round
            self._copy(position, answer.value)
        else:
            self._numbers[position] = answer.number
        self.answers.count()

    def flush(self) -> None:
        """Copy the collected values into the tensor."""
        base, self._from = self._from, None
        if base is not None and self._tensor is not None:
            length = self._to - self._copied
            self._tensor[self._copied : self._to] = base[self._at : self._at + length]

    def answer(self) -> Message:
        """The answer, once that of each part is there."""
        return Message({"numbers": self._numbers}, [] if self._tensor is None else [Tensor.of(self._tensor)])

    def open(self) -> list[int]:
        """The positions of parts without an answer."""
        return [position for position, done in enumerate(self._done) if not done]

    def _copy(self, position: int, value: Value) -> None:
        base, begin = value.place()
        start = self._layout.starts[position]
        if base is not self._from or start != self._to or begin - self._at != start - self._copied:
            self.flush()
            self._from, self._at, self._copied = base, begin, start
        self._to = self._layout.stops[position]


def begun(request: p.Request) -> float | None:
    """The time when a request came that waits, in seconds of :func:`time.monotonic`; None of one from elsewhere."""
    call = request[0] if isinstance(request, tuple) else request
    return call.answers.begun if isinstance(call, Call | JoinedCall) else None


def _memory(layout: Layout) -> Array:
    return np.frombuffer(fresh(layout.size * layout.dtype.itemsize), np.uint8).view(layout.dtype)
