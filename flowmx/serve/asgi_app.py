"""Predictors as an ASGI application, for FastAPI, Starlette, uvicorn and others. Imports none of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any

from flowmx.comm.offload import LARGE
from flowmx.serve.access import Access
from flowmx.serve.bodies import MAX_TEXT, PendingCall
from flowmx.serve.large_bodies import chunks_of
from flowmx.serve.replies import Reply, Stream
from flowmx.serve.service import DRAIN_SECONDS, Service
from flowmx.serve.sessions.asgi_socket import answer_socket, headers_of
from flowmx.serve.sessions.socket_call import SocketCall
from flowmx.serve.sources import ModelSource
from flowmx.serve.streams import SlowReader
from flowmx.serve.streams import send as send_stream
from flowmx.serve.tasks import cancel_and_wait

__all__ = ["AsgiApp", "asgi"]

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class _Disconnected(Exception):
    """The client has disconnected."""


def asgi(
    predictors: ModelSource, *, max_body: int | None = None, max_text: int = MAX_TEXT,
    hosts: Collection[str] | None = None, access: Access | None = None, origins: Collection[str] = (),
    default: str | None = None, drain_timeout: float = DRAIN_SECONDS,
) -> AsgiApp:  # fmt: skip
    """Return an ASGI application with the routes of :func:`app`.

    Args:
        predictors: a predictor, a generator of text, a dict of them by name, or a repository.
        max_body: maximum size of a body in bytes (default: that of ``FLOWMX_SERVE_LIMITS``).
        max_text: maximum size of a JSON body in bytes.
        hosts: host names to accept besides IP addresses; None accepts any.
        access: the tokens of users and admins (default: no token is needed).
        origins: other sites whose pages may send requests from a browser, such as ``"https://app.example"``.
        default: name of the model that answers ``/predict`` and ``/invocations`` if the request names none (default:
            the only model).
        drain_timeout: seconds that requests have to finish when the lifespan ends.

    Example:
        >>> api = fastapi.FastAPI()
        >>> api.mount("/ml", mx.serve.asgi(predictor))
    """
    return AsgiApp(
        Service(
            predictors, max_body, max_text, hosts, access=access, origins=origins, default=default,
            drain_timeout=drain_timeout,
        )
    )  # fmt: skip


class AsgiApp:
    """A :class:`Service` as an ASGI 3 application."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._closing = asyncio.Event()

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Handle one event stream: a request, or the server's lifespan."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "websocket":
            await answer_socket(self.service, scope, _path(scope), receive, send, self._closing)
        else:
            raise ValueError(f"unsupported scope type {scope['type']!r}, expected http, websocket or lifespan")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                self.service.start()
            else:
                self._closing.set()
                await self.service.drain()
            await send({"type": f"{event['type']}.complete"})
            if event["type"] == "lifespan.shutdown":
                return

    async def _answer(self, scope: Event, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        headers.pop("upgrade", None)
        head = scope["method"], _path(scope), headers
        with self.service.trace(*head) as set_status:
            result = self.service.begin(*head, scope.get("query_string", b"").decode("latin-1"))
            assert not isinstance(result, SocketCall)  # the server gives WebSockets another type of scope
            try:
                reply = result if isinstance(result, Reply) else await _predict(self.service, result, receive)
            except _Disconnected:
                return
            set_status(reply.status)
        if seconds := self.service.delay_of(reply, asyncio.get_running_loop().time()):
            await asyncio.sleep(seconds)
        response_headers = self.service.response_headers(reply, headers)
        if isinstance(reply, Stream):
            await _stream(reply, response_headers, self.service.limits.idle, receive, send)
        else:
            await _send(reply, response_headers, scope["method"] == "HEAD", send)


def _path(scope: Event) -> str:
    """Return the path below the application's mount point."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(root) else path


async def _predict(service: Service, call: PendingCall, receive: Receive) -> Reply | Stream:
    with service.budget.enter() as entry:
        body = await call.receive(_chunks(receive), entry)
        return body if isinstance(body, Reply) else await _unless_disconnected(call, body, receive)


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    has_more = True
    while has_more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _Disconnected
        yield event.get("body", b"")
        has_more = event.get("more_body", False)


async def _unless_disconnected(call: PendingCall, body: bytes, receive: Receive) -> Reply | Stream:
    """Return the reply; if the client disconnects first, withdraw its rows."""
    answer, disconnected = asyncio.ensure_future(call.reply(body)), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({answer, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise _Disconnected
    finally:
        await cancel_and_wait([answer, disconnected])


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(reply: Reply, headers: Mapping[str, str], is_head: bool, send: Send) -> None:
    await send(_start(reply.status, {**headers, "Content-Length": str(len(reply.body))}))
    if is_head or len(reply.body) < LARGE:
        await send({"type": "http.response.body", "body": b"" if is_head else reply.body})
        return
    for chunk in chunks_of(reply.body):
        await send({"type": "http.response.body", "body": bytes(chunk), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _start(status: int, headers: Mapping[str, str]) -> Event:
    """Return the event that begins a response."""
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": raw}


async def _stream(stream: Stream, headers: Mapping[str, str], seconds: float, receive: Receive, send: Send) -> None:
    """Send a stream; a client that disconnects or reads too slowly ends it."""

    async def write(chunk: bytes) -> None:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})

    await send(_start(stream.status, headers))
    sending = asyncio.ensure_future(send_stream(stream, write, seconds))
    disconnected = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({sending, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            with contextlib.suppress(SlowReader):  # the server closes the connection of an unfinished response
                sending.result()
                await send({"type": "http.response.body", "body": b""})
    finally:
        await cancel_and_wait([sending, disconnected])
