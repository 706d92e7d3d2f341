"""Requests that wait for the state machine: a call for each part, and one wake-up for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from flowmx.comm.errors import Refused
from flowmx.kvstore.server import protocol as p
from flowmx.kvstore.server.store import Value

__all__ = ["Answers", "Call", "Read"]

Read = Callable[[Value], Any]


class Call:
    """A part's share of a request that waits for its answer."""

    __slots__ = ("_answers", "_read", "answer", "done")

    def __init__(self, answers: Answers, read: Read = Value.lease) -> None:
        self._answers = answers
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
            self._answers.count()
        except Exception as error:
            self._answers.fail(error)


class Answers:
    """Waits until each of some calls has an answer, or one of them a refusal: one wake-up for all."""

    def __init__(self, calls: int) -> None:
        self._left = calls
        self._all: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.count(0)

    def count(self, by: int = 1) -> None:
        self._left -= by
        if not self._left and not self._all.done():
            self._all.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self._all.done():
            self._all.set_exception(error)

    async def all(self) -> None:
        await self._all

    def end(self) -> None:
        """Nobody waits any more: a refusal that came as well is not told."""
        if self._all.done() and not self._all.cancelled():
            self._all.exception()
