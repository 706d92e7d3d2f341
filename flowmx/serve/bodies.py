"""Requests with a body: the limits on its size, its reception, and the reply to it.

A prediction is received as a :class:`PredictCall`, a change of the repository as an :class:`AskCall`. Both are
independent of the HTTP server, which passes the chunks of the body.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from flowmx.comm.admission import AdmittedRequest
from flowmx.comm.errors import Busy, CommError
from flowmx.comm.limits import Limits
from flowmx.comm.logs import requests_log
from flowmx.comm.offload import LARGE, offload
from flowmx.comm.transfer import TransferWatchdog
from flowmx.serve.errors import InvalidInput, Overloaded, SessionClosed, Unavailable
from flowmx.serve.formats import FORMATS, JSON, Format, NotAcceptable, parsed
from flowmx.serve.hooks import Decode, Hooks, call_hook, encoded
from flowmx.serve.images import IMAGE_TYPES
from flowmx.serve.inputs import Array, Rows
from flowmx.serve.predictor import Predictor
from flowmx.serve.replies import Refusal, Reply, Stream, json_reply
from flowmx.serve.request_head import Head, media_type_of
from flowmx.serve.sessions.sequences import SequenceStep

__all__ = [
    "MAX_TEXT", "AskCall", "Exchange", "PendingCall", "PlainExchange", "PredictCall", "receive_body",
    "refusal_of", "too_large", "unavailable", "unparsed", "unsupported",
]  # fmt: skip

MAX_TEXT = 1 << 20
"""Default limit of a JSON body, in bytes. Parsing JSON blocks the interpreter for about 10 ms per megabyte."""

_DEFAULT_TYPES = ("", "application/octet-stream", "application/x-www-form-urlencoded")
"""The types that clients send if the user names none."""
_MAX_OPTIONS = 1 << 16
"""Limit of the body of a repository request, in bytes."""
_BYTES_PER_NUMBER = 64
"""Bytes of an array that are copied in the time that writing one number as text takes."""


class PendingCall(Protocol):
    """A request whose body has not been received."""

    async def receive(self, chunks: AsyncIterable[bytes], entry: AdmittedRequest) -> bytes | Reply:
        """Return the body, or the refusal of one that is too large, comes too slowly, or exceeds the memory budget."""

    async def reply(self, body: bytes) -> Reply | Stream:
        """Return the reply to the body."""


class Exchange(Protocol):
    """The formats of one request and its reply.

    Attributes:
        hint: a way to send larger bodies.
    """

    @property
    def hint(self) -> str: ...

    @property
    def sequence(self) -> SequenceStep | None:
        """The sequence that the request is a step of, once it is read."""

    def scan(self, chunk: bytes) -> None:
        """Check the first bytes of a body against the limits on what may be built; raises InvalidInput."""

    def is_quick(self, body: bytes) -> bool:
        """Return whether parsing a body takes no longer than handing it to another thread."""

    def read(self, body: bytes) -> Any:
        """Parse the inputs; raises InvalidInput."""

    def is_text(self, name: str) -> bool:
        """Return whether an output is written as text."""

    def write(self, outputs: Mapping[str, Array]) -> Reply:
        """Return the reply with these outputs; raises InvalidInput or NotAcceptable."""


class PlainExchange(NamedTuple):
    """A request and a reply that hold only arrays.

    Attributes:
        form: the format of the body.
        answer: the format of the reply.
    """

    form: Format
    answer: Format

    @property
    def sequence(self) -> SequenceStep | None:
        """None: the request belongs to no sequence."""
        return None

    @property
    def hint(self) -> str:
        """A way to send larger bodies."""
        return ": send large arrays as application/x-npy or application/msgpack" if self.form.is_text else ""

    def scan(self, chunk: bytes) -> None:
        """Check the first bytes of a body against the limits on what may be built."""
        self.form.scan(chunk)

    def is_quick(self, body: bytes) -> bool:
        """Return whether parsing a body takes no longer than handing it to another thread."""
        return self.form.is_quick(body)

    def read(self, body: bytes) -> Any:
        """Parse the inputs."""
        return self.form.read(body)

    def is_text(self, name: str) -> bool:
        """Return whether an output is written as text."""
        return self.answer.is_text

    def write(self, outputs: Mapping[str, Array]) -> Reply:
        """Return the reply with these outputs."""
        return Reply(200, self.answer.write(outputs), self.answer.type)


class PredictCall(NamedTuple):
    """A request for a prediction.

    Attributes:
        predictor: the model's predictor when the request began.
        find: looks the predictor up again, in case another version has replaced it.
        exchange: the formats of request and reply.
        limit: maximum size of the body in bytes.
        limits: limits on the speed and memory of the transfer.
        head: the head of the request, if the predictor's hooks apply to it.
    """

    predictor: Predictor
    find: Callable[[], Predictor]
    exchange: Exchange
    limit: int
    limits: Limits
    head: Head | None = None

    async def receive(self, chunks: AsyncIterable[bytes], entry: AdmittedRequest) -> bytes | Reply:
        """Return the body, or its refusal."""
        try:
            return await receive_body(chunks, entry, self.limits, self.check_size, self.exchange.scan)
        except InvalidInput as error:
            return self._invalid(error)

    def check_size(self, size: int) -> None:
        """Refuse a body that is too large."""
        if size > self.limit:
            raise too_large(size, self.limit, self.exchange.hint)

    async def reply(self, body: bytes) -> Reply:
        """Return the reply to the body; cancelling withdraws the rows that have not started."""
        predictor = self.predictor
        try:
            rows = await self._rows(body)
            if self.exchange.sequence is not None:
                return await self._encoded(await self._step(self.exchange.sequence, rows))
            reply: Reply = await predictor.predict(rows, self._encoded)
            return reply
        except InvalidInput as error:
            return self._invalid(error)
        except NotAcceptable as error:
            return Refusal(406, str(error)).reply
        except Refusal as refusal:
            return refusal.reply
        except SessionClosed as error:
            return Refusal(410, str(error)).reply
        except Overloaded as error:
            return unavailable(error).reply
        except Unavailable as error:
            return await self._retry(body, error)
        except Exception as error:  # the user's model may raise anything
            requests_log.exception("a prediction of %s failed", predictor.name)
            return Refusal(500, f"the model failed: {type(error).__name__}").reply

    async def _step(self, step: SequenceStep, rows: Rows) -> Any:
        """Return the result of a step of a sequence, whose states are those of a session.

        Raises:
            InvalidInput: the model has no states, or the sequence is not open.
        """
        predictor = self.predictor
        if not predictor.has_sessions:
            raise InvalidInput(f"{predictor.name} has no states, expected no sequence_id: omit it")
        session = predictor.lasting_session(step.name, step.is_start)
        try:
            result = await session.predict(rows)
        except BaseException:
            if step.is_start or step.is_end:
                session.close()  # the client cannot know that it is open
            raise
        if step.is_end:
            session.close()
        return result

    async def _encoded(self, result: Any) -> Reply:
        """Return the reply with the result, through the predictor's hook if it has one."""
        predictor, exchange = self.predictor, self.exchange
        if self.head is not None and predictor.hooks.encode is not None:
            return await encoded(predictor.name, predictor.hooks.encode, result)
        arrays = result if isinstance(result, list) else [result]
        outputs = dict(zip(predictor.outputs, map(np.asarray, arrays), strict=True))
        sizes = (
            array.size * _BYTES_PER_NUMBER if exchange.is_text(name) else array.nbytes
            for name, array in outputs.items()
        )  # fmt: skip
        return await offload(sum(sizes), exchange.write, outputs)

    async def _rows(self, body: bytes) -> Rows:
        """Return the input in a body, through the predictor's hook if it has one."""
        predictor, head = self.predictor, self.head
        content_type = "" if head is None else head.headers.get("content-type", "")
        media_type = media_type_of(content_type)
        decode = None if head is None else predictor.hooks.decoder(media_type)
        if decode is None:
            return await offload(0 if self.exchange.is_quick(body) else LARGE, self._read, body)
        with predictor.decoding():
            return await predictor.read_decoded(await self._decoded(decode, body, media_type, content_type))

    async def _decoded(self, decode: Decode, body: bytes, media_type: str, content_type: str) -> Any:
        """Return what a hook makes of a body."""
        predictor, is_quick = self.predictor, self.exchange.is_quick(body)
        try:
            is_parsed = media_type == JSON.type and predictor.hooks.parses_json
            value = await offload(0 if is_quick else LARGE, parsed, body) if is_parsed else body
            return await call_hook(
                "image" if decode is predictor.hooks.image else "decode", predictor.name, decode, value,
                self.head if predictor.hooks.reads_head else content_type,
            )  # fmt: skip
        except (InvalidInput, Refusal) as error:
            is_server_error = isinstance(error, Refusal) and error.reply.status >= 500
            predictor.count_refused_body(not is_server_error)
            raise

    async def _retry(self, body: bytes, error: Unavailable) -> Reply:
        """Reply with the predictor that has replaced this one since the request began, if any."""
        try:
            predictor = self.find()
        except Refusal as refusal:
            return refusal.reply
        if predictor is self.predictor:
            return unavailable(error).reply
        return await self._replace(predictor=predictor).reply(body)

    def _invalid(self, error: InvalidInput) -> Reply:
        return Refusal(400, str(error), expected=self.predictor.inputs.describe()).reply

    def _read(self, body: bytes) -> Rows:
        return self.predictor.read(self.exchange.read(body))


def unparsed(media_type: str) -> Format:
    """Return the format of bodies that only a ``decode`` hook can read."""

    def refuse(body: bytes) -> Any:
        raise unsupported(media_type, Hooks())

    return Format(media_type, refuse, JSON.write)


def unsupported(media_type: str, hooks: Hooks) -> Refusal:
    """Return the refusal, 415, of a body of an unsupported media type.

    Args:
        media_type: the type.
        hooks: the hooks of the predictor, which may read more types.
    """
    types = [*FORMATS, *(() if hooks.image is None else IMAGE_TYPES)]
    is_image = media_type.startswith("image/") and hooks.image is None
    hint = ": start the service with --image, or image=..., to accept images" if is_image else ""
    if media_type in _DEFAULT_TYPES:
        hint = ": send the header, such as -H 'Content-Type: application/json' with curl"
    return Refusal(415, f"Content-Type is {media_type[:80]!r}, expected one of {', '.join(types)}{hint}")


class AskCall(NamedTuple):
    """A request to the repository or to a pool of workers. Its body is received and ignored.

    Attributes:
        carry_out: carries the request out; returns the content of the reply.
        limits: limits on the speed and memory of the transfer.
        write: returns the reply with the content.
    """

    carry_out: Callable[[], Coroutine[object, object, Any]]
    limits: Limits
    write: Callable[[Any], Reply] = lambda content: json_reply(200, content or {})

    async def receive(self, chunks: AsyncIterable[bytes], entry: AdmittedRequest) -> bytes | Reply:
        """Return the body, or its refusal."""
        return await receive_body(chunks, entry, self.limits, self.check_size, lambda chunk: None)

    def check_size(self, size: int) -> None:
        """Refuse a body that is too large."""
        if size > _MAX_OPTIONS:
            raise too_large(size, _MAX_OPTIONS)

    async def reply(self, body: bytes) -> Reply:
        """Return the reply. The change continues if the client disconnects."""
        try:
            return self.write(await asyncio.shield(asyncio.ensure_future(self.carry_out())))
        except Refusal as refusal:
            return refusal.reply


async def receive_body(
    chunks: AsyncIterable[bytes], entry: AdmittedRequest, limits: Limits, check_size: Callable[[int], None],
    scan: Callable[[bytes], None],
) -> bytes | Reply:  # fmt: skip
    """Return the body, or the refusal of one that is too large, comes too slowly, or exceeds the memory budget."""
    parts, size = list[bytes](), 0
    try:
        async with TransferWatchdog(limits, "the client") as watchdog:
            async for chunk in chunks:
                size += len(chunk)
                check_size(size)
                entry.announce(len(chunk))
                watchdog.record(len(chunk))
                if not parts:
                    scan(chunk)  # the first bytes of most excessive bodies already exceed the bounds
                parts.append(chunk)
    except Refusal as refusal:
        return refusal.reply
    except CommError as error:
        return refusal_of(error).reply
    return parts[0] if len(parts) == 1 else await offload(size, b"".join, parts)


def too_large(size: int, limit: int, hint: str = "") -> Refusal:
    """Return the refusal, 413, of a body that is too large."""
    return Refusal(413, f"the body has {size} bytes or more, expected at most {limit}{hint}")


def refusal_of(error: CommError) -> Refusal:
    """Return the refusal of a body that comes too slowly, or exceeds the memory budget."""
    return Refusal(error.status, str(error), {"Retry-After": "1"} if isinstance(error, Busy) else {})


def unavailable(error: Overloaded | Unavailable) -> Refusal:
    """Return the refusal, 503, with the time after which the client may retry."""
    seconds = error.retry_after if isinstance(error, Overloaded) else 1.0
    return Refusal(503, str(error), {"Retry-After": str(max(1, math.ceil(seconds)))})
