"""A request with the inputs of a whole session, answered by a stream of results."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any, NamedTuple

from flowmx.comm.admission import AdmittedRequest
from flowmx.comm.limits import Limits
from flowmx.comm.logs import requests_log
from flowmx.comm.offload import LARGE, offload
from flowmx.serve.bodies import receive_body, too_large, unavailable
from flowmx.serve.errors import InvalidInput, Overloaded, SessionClosed, Unavailable
from flowmx.serve.formats import Format
from flowmx.serve.predictor import Predictor
from flowmx.serve.replies import Refusal, Reply, Stream
from flowmx.serve.sessions.messages import error_message, result_message, steps_of
from flowmx.serve.sessions.session import Session

__all__ = ["StreamCall"]


class StreamCall(NamedTuple):
    """A request whose inputs are the calls of a new session. Its results are sent as they come.

    Attributes:
        predictor: the model's predictor.
        form: the format of the body.
        answer: the format of the results: events with JSON, or msgpack values one after another.
        limit: the maximum size of the body in bytes.
        limits: limits on the speed and memory of the transfer.
    """

    predictor: Predictor
    form: Format
    answer: Format
    limit: int
    limits: Limits

    async def receive(self, chunks: AsyncIterable[bytes], entry: AdmittedRequest) -> bytes | Reply:
        """Return the body, or its refusal."""
        try:
            return await receive_body(chunks, entry, self.limits, self.check_size, self.form.scan)
        except InvalidInput as error:
            return Refusal(400, str(error)).reply

    def check_size(self, size: int) -> None:
        """Refuse a body that is too large."""
        if size > self.limit:
            raise too_large(size, self.limit)

    async def reply(self, body: bytes) -> Reply | Stream:
        """Return the stream of the results, once the first is there; or the refusal of the request."""
        try:
            inputs = await offload(0 if self.form.is_quick(body) else LARGE, self._steps, body)
            session = self.predictor.session()
        except InvalidInput as error:
            return Refusal(400, str(error)).reply
        except (Overloaded, Unavailable) as error:
            return unavailable(error).reply
        results = session.stream(inputs)
        try:
            first = [await anext(results)]
        except StopAsyncIteration:
            first = []
        except Exception as error:  # the user's model may raise anything
            session.close()
            return self._refusal(error)
        except BaseException:  # the client has disconnected
            session.close()
            raise
        media_type = "text/event-stream" if self.answer.is_text else self.answer.type
        return Stream(self._chunks(session, first, results), type=media_type)

    def _steps(self, body: bytes) -> list[Any]:
        """Return the inputs in a body."""
        return list(steps_of(self.form.read(body)))

    def _refusal(self, error: Exception) -> Reply:
        if isinstance(error, (Overloaded, Unavailable)):
            return unavailable(error).reply
        if isinstance(error, InvalidInput):
            return Refusal(400, str(error)).reply
        if isinstance(error, SessionClosed):
            return Refusal(503, str(error), {"Retry-After": "1"}).reply
        requests_log.error("a stream of %s failed", self.predictor.name, exc_info=error)
        return Refusal(500, f"the model failed: {type(error).__name__}").reply

    async def _chunks(
        self, session: Session, first: list[Any], results: AsyncGenerator[Any, None]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of the response; closing it ends the session."""
        try:
            async with contextlib.aclosing(results):
                for result in first:
                    yield self._chunk(result_message(self.answer, self.predictor.outputs, result))
                async for result in results:
                    yield self._chunk(result_message(self.answer, self.predictor.outputs, result))
        except Exception as error:  # the user's model may raise anything, and the status has been sent
            self._refusal(error)
            yield self._chunk(error_message(self.answer, error))
        finally:
            session.close()

    def _chunk(self, message: bytes) -> bytes:
        return b"data: " + message + b"\n\n" if self.answer.is_text else message
