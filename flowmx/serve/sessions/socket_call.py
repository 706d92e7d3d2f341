"""A WebSocket whose messages are the calls of a session, independent of the HTTP server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from flowmx.comm.limits import Limits
from flowmx.comm.logs import requests_log
from flowmx.comm.offload import offload
from flowmx.serve.errors import InvalidInput, Overloaded, SessionClosed, Unavailable
from flowmx.serve.formats import Format
from flowmx.serve.predictor import Predictor
from flowmx.serve.sessions.messages import Message, error_message, format_of, parse, result_message
from flowmx.serve.sessions.run_ahead import RunAhead
from flowmx.serve.sessions.session import Session
from flowmx.serve.tasks import call_in, cancel_and_wait

__all__ = ["Send", "SocketCall"]

_log = logging.getLogger("flowmx.serve")
_COST = 64
"""Parsing a byte of JSON takes about as long as copying this many bytes."""
_AHEAD = 16
"""The maximum number of messages whose responses have not been sent."""
NORMAL, GOING_AWAY, TOO_SLOW, FAILED, TRY_LATER = 1000, 1001, 1008, 1011, 1013
"""Status codes with which a WebSocket is closed."""
Send = Callable[[Message], Awaitable[object]]


class _Response(NamedTuple):
    """The response to a message: its format, and its content or the future of its result."""

    form: Format
    content: bytes | asyncio.Future[Any]


class SocketCall(NamedTuple):
    """A WebSocket of a session. Each message is an input, and each response a result, in order.

    Attributes:
        predictor: the model's predictor.
        limit: the maximum size of a message in bytes.
        limits: limits on the speed of the transfer.
    """

    predictor: Predictor
    limit: int
    limits: Limits

    async def run(self, messages: AsyncIterator[Message], send: Send, closing: asyncio.Event) -> int:
        """Answer the messages, until they end or the service closes.

        Args:
            messages: the messages.
            send: sends a response; waits while the client reads slowly.
            closing: set when the service shuts down: received messages are answered.

        Returns:
            the status code to close with; TOO_SLOW if the client has not read in time.
        """
        try:
            session = self.predictor.session()
        except (Overloaded, Unavailable, TypeError) as error:
            await send(error_message(format_of(""), error).decode())
            return TRY_LATER
        loop, closed = asyncio.get_running_loop(), asyncio.Event()
        session.watch(partial(call_in, loop, closed.set))
        responses = RunAhead[_Response](_AHEAD)
        reading = asyncio.create_task(self._read(session, messages, responses))
        writing = asyncio.create_task(self._write(session, responses, send))
        tasks = [reading, writing, *(asyncio.create_task(event.wait()) for event in (closed, closing))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                reading.cancel()
                await asyncio.wait([reading, writing])
            code = writing.result()
            return GOING_AWAY if code == NORMAL and (closing.is_set() or session.is_closed) else code
        finally:
            for response in responses.clear():
                if not isinstance(response.content, bytes):
                    response.content.cancel()
            session.close()
            await cancel_and_wait(tasks)

    async def _read(self, session: Session, messages: AsyncIterator[Message], responses: RunAhead[_Response]) -> None:
        """Queue a call for each message."""
        try:
            async for message in messages:
                await responses.wait_for_room()  # until then the client is not read
                form = format_of(message)
                responses.put(_Response(form, await self._begin(session, message, form)))
        finally:
            responses.end()

    async def _begin(self, session: Session, message: Message, form: Format) -> bytes | asyncio.Future[Any]:
        """Queue the call of a message; return the future of its result, or the message of its error."""
        try:
            size = len(message)
            if size > self.limit:
                raise InvalidInput(f"the message has {size} bytes, expected at most {self.limit}")
            return session.begin(await offload(_COST * size if form.is_text else size, parse, message))
        except (InvalidInput, Overloaded, Unavailable, SessionClosed) as error:
            return error_message(form, error)

    async def _body(self, response: _Response) -> bytes:
        """Return the message of a response."""
        form, content = response
        if isinstance(content, bytes):
            return content
        try:
            value = await content
            return await offload(_size(value, form), result_message, form, self.predictor.outputs, value)
        except Exception as error:  # the user's model may raise anything
            if not isinstance(error, (SessionClosed, Overloaded, Unavailable)):
                requests_log.error("a call of %s failed", self.predictor.name, exc_info=error)
            return error_message(form, error)

    async def _write(self, session: Session, responses: RunAhead[_Response], send: Send) -> int:
        """Send the responses in order; return the status code to close with."""
        while (response := await responses.get()) is not None:
            body = await self._body(response)
            try:
                async with asyncio.timeout(self.limits.idle):
                    await send(body.decode() if response.form.is_text else body)
            except TimeoutError:
                _log.warning("a client has not read its session for %g s; the session ends", self.limits.idle)
                session.end(f"was closed because its client has not read for {self.limits.idle:g} s", "slow")
                return TOO_SLOW
            except ConnectionError:
                return GOING_AWAY
            responses.record_read()
        return NORMAL


def _size(value: Any, form: Format) -> int:
    """Return the number of bytes that are copied in the time that writing a result takes."""
    arrays = value if isinstance(value, list) else [value]
    return sum(_COST * array.size if form.is_text else array.nbytes for array in arrays)
