"""The routes of sessions: a WebSocket, and a stream of results."""

from __future__ import annotations

from typing import Protocol

from flowmx.comm.admission import Budget
from flowmx.comm.limits import Limits
from flowmx.serve.formats import FORMATS, JSON, Format
from flowmx.serve.model_registry import ModelRegistry
from flowmx.serve.predictor import Predictor
from flowmx.serve.replies import Refusal
from flowmx.serve.request_head import Head, media_type_of
from flowmx.serve.route import Route
from flowmx.serve.sessions.messages import MSGPACK
from flowmx.serve.sessions.socket_call import SocketCall
from flowmx.serve.sessions.stream_call import StreamCall

__all__ = ["SESSION_ROUTES", "SessionService", "is_upgrade"]

_EVENTS = "text/event-stream"


class SessionService(Protocol):
    """A service with models that have states."""

    @property
    def models(self) -> ModelRegistry: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def budget(self) -> Budget: ...

    @property
    def max_text(self) -> int: ...

    @property
    def max_body(self) -> int: ...


def is_upgrade(head: Head) -> bool:
    """Return whether a request asks for a WebSocket."""
    return head.headers.get("upgrade", "").lower() == "websocket"


def _predictor(service: SessionService, head: Head, name: str) -> Predictor:
    name = name or head.parameters.get("model_name", "")
    predictor = service.models.find(name) if name else service.models.default()
    if not predictor.has_sessions:
        raise Refusal(400, f"{predictor.name} has no states, expected a model with states for a session")
    return predictor


def _socket(service: SessionService, head: Head, name: str = "") -> SocketCall:
    predictor = _predictor(service, head, name)
    if not is_upgrade(head):
        raise Refusal(426, "expected a WebSocket, whose messages are the calls of a session", {"Upgrade": "websocket"})
    return SocketCall(predictor, service.max_text, service.limits)


def _stream(service: SessionService, head: Head, name: str = "") -> StreamCall:
    predictor = _predictor(service, head, name)
    media_type = media_type_of(head.headers.get("content-type", ""))
    form = FORMATS.get(media_type)
    if form is None:
        raise Refusal(415, f"Content-Type is {media_type[:80]!r}, expected one of {', '.join(FORMATS)}")
    call = StreamCall(
        predictor, form, _answer(head.headers.get("accept", ""), form),
        service.max_text if form.is_text else service.max_body, service.limits,
        service.budget,
    )  # fmt: skip
    length = head.headers.get("content-length", "")
    if length.isdecimal():
        call.check_size(int(length))
    return call


def _answer(accept: str, form: Format) -> Format:
    """Return the format of the results: the first supported type of the Accept header, else that of the request."""
    for part in accept.split(","):
        media_type = part.partition(";")[0].strip().lower()
        if media_type == _EVENTS:
            return JSON
        if FORMATS.get(media_type) is MSGPACK:
            return MSGPACK
    if not accept or "*/*" in accept or "application/*" in accept:
        return JSON if form.is_text else MSGPACK
    raise Refusal(406, f"Accept is {accept[:80]!r}, expected {_EVENTS} or {MSGPACK.type}")


SESSION_ROUTES = [
    Route("session", _socket, "a WebSocket: a session of the only or default model"),
    Route("models/{name}/session", _socket, "a WebSocket: a session of that model"),
    Route("stream", _stream, "the results of a session of the only or default model, as a stream", is_post=True),
    Route("models/{name}/stream", _stream, "the results of a session of that model, as a stream", is_post=True),
]
