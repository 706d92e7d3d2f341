"""A request with the inputs of a session, answered by a stream of results."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable
from functools import partial
from typing import Any, NamedTuple

from flowmx.comm.admission import Budget
from flowmx.comm.errors import CommError
from flowmx.comm.limits import Limits
from flowmx.comm.logs import requests_log
from flowmx.serve.bodies import refusal_of, too_large, unavailable
from flowmx.serve.errors import InvalidInput, Overloaded, SessionClosed, Unavailable
from flowmx.serve.formats import Format
from flowmx.serve.predictor import Predictor
from flowmx.serve.replies import Refusal, Reply, Stream
from flowmx.serve.sessions.body_values import BodyValues
from flowmx.serve.sessions.messages import error_message, result_message, steps_of
from flowmx.serve.sessions.session import Session
from flowmx.serve.streams import Disconnected, begun
from flowmx.serve.tasks import call_in

__all__ = ["StreamCall"]


class StreamCall(NamedTuple):
    """A request whose inputs are the calls of a new session. Its results are sent as they come.

    Attributes:
        predictor: the model's predictor.
        form: the format of the body.
        answer: the format of the results: events with JSON, or msgpack values one after another.
        limit: the maximum size in bytes of the body, or of each of its msgpack values.
        limits: limits on the speed of the transfer.
        budget: the bytes of requests in flight.
    """

    predictor: Predictor
    form: Format
    answer: Format
    limit: int
    limits: Limits
    budget: Budget

    def check_size(self, size: int) -> None:
        """Refuse a body that is too large."""
        if size > self.limit:
            raise too_large(size, self.limit)

    async def run(self, chunks: AsyncIterable[bytes], closing: asyncio.Event) -> Reply | Stream:
        """Return the stream of the results, once the first is there; or the refusal of the request.

        Args:
            chunks: the body, which the stream reads while it sends results.
            closing: set when the service shuts down: received inputs are answered.
        """
        media_type = "text/event-stream" if self.answer.is_text else self.answer.type
        try:
            return Stream(await begun(self._messages(chunks, closing)), type=media_type)
        except Exception as error:  # the user's model may raise anything
            return self._refusal(error)

    def _refusal(self, error: Exception) -> Reply:
        if isinstance(error, Refusal):
            return error.reply
        if isinstance(error, CommError):
            return refusal_of(error).reply
        if isinstance(error, (Overloaded, Unavailable)):
            return unavailable(error).reply
        if isinstance(error, InvalidInput):
            return Refusal(400, str(error)).reply
        if isinstance(error, SessionClosed):
            return Refusal(503, str(error), {"Retry-After": "1"}).reply
        requests_log.error("a stream of %s failed", self.predictor.name, exc_info=error)
        return Refusal(500, f"the model failed: {type(error).__name__}").reply

    async def _messages(self, chunks: AsyncIterable[bytes], closing: asyncio.Event) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of the response; closing it ends the session."""
        has_begun = False
        try:
            async with contextlib.aclosing(self._results(chunks, closing)) as results:
                async for result in results:
                    yield self._chunk(result_message(self.answer, self.predictor.outputs, result))
                    has_begun = True
        except Disconnected:
            return
        except Exception as error:  # the user's model may raise anything
            if not has_begun:
                raise
            self._refusal(error)
            yield self._chunk(error_message(self.answer, error))

    async def _results(self, chunks: AsyncIterable[bytes], closing: asyncio.Event) -> AsyncGenerator[Any, None]:
        """Yield the results of a new session."""
        with self.budget.enter() as entry:
            values = BodyValues(chunks, self.form, self.limit, self.limits, entry)
            async with (
                self.predictor.session() as session,
                contextlib.aclosing(session.stream(_steps(values))) as results,
            ):
                watching = asyncio.create_task(_stop_reading(values, session, closing))
                try:
                    async for result in results:
                        yield result
                finally:
                    watching.cancel()

    def _chunk(self, message: bytes) -> bytes:
        return b"data: " + message + b"\n\n" if self.answer.is_text else message


async def _steps(values: BodyValues) -> AsyncGenerator[Any, None]:
    async for value in values:
        for step in steps_of(value):
            yield step


async def _stop_reading(values: BodyValues, session: Session, closing: asyncio.Event) -> None:
    """Read no further values once the session is closed, or the service shuts down."""
    loop, closed = asyncio.get_running_loop(), asyncio.Event()
    session.watch(partial(call_in, loop, closed.set))
    events = [asyncio.create_task(event.wait()) for event in (closed, closing)]
    try:
        await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for event in events:
            event.cancel()
    if session.is_closed:
        values.stop(SessionClosed(f"session {session.name!r} {session.reason}: open a new session"))
    else:
        values.stop(Unavailable("the service is stopping"))
