"""Predictors as an ASGI application, for FastAPI, Starlette, uvicorn and others. Imports none of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, MutableMapping
from typing import Any

from flowmx.comm.offload import LARGE
from flowmx.serve.access import Access
from flowmx.serve.bodies import MAX_TEXT, PendingCall
from flowmx.serve.large_bodies import chunks_of
from flowmx.serve.replies import Reply, Stream
from flowmx.serve.service import DRAIN_SECONDS, Service
from flowmx.serve.sessions.asgi_socket import answer_socket, headers_of
from flowmx.serve.sessions.socket_call import SocketCall
from flowmx.serve.sessions.stream_call import StreamCall
from flowmx.serve.sources import ModelSource
from flowmx.serve.streams import Disconnected, SlowReader
from flowmx.serve.streams import send as send_stream
from flowmx.serve.tasks import cancel_and_wait

__all__ = ["AsgiApp", "asgi"]

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


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
            body = _Body(receive)
            try:
                reply = result if isinstance(result, Reply) else await self._reply(result, body)
            except Disconnected:
                return
            set_status(reply.status)
        if seconds := self.service.delay_of(reply, asyncio.get_running_loop().time()):
            await asyncio.sleep(seconds)
        response_headers = self.service.response_headers(reply, headers)
        if isinstance(reply, Stream):
            await _stream(reply, response_headers, self.service.limits.idle, body, send)
        else:
            await _send(reply, response_headers, scope["method"] == "HEAD", send)

    async def _reply(self, call: PendingCall | StreamCall, body: _Body) -> Reply | Stream:
        if isinstance(call, StreamCall):
            return await _unless_disconnected(call.run(body.chunks(), self._closing), body)
        with self.service.budget.enter() as entry:
            content = await call.receive(body.chunks(), entry)
            return content if isinstance(content, Reply) else await _unless_disconnected(call.reply(content), body)


def _path(scope: Event) -> str:
    """Return the path below the application's mount point."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(root) else path


class _Body:
    """The events of a request: its body, then the end of the connection."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_complete = asyncio.Event()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body.

        Raises:
            Disconnected: the client has disconnected.
        """
        while not self._is_complete.is_set():
            event = await self._receive()
            if not event.get("more_body", False):
                self._is_complete.set()
            if event["type"] == "http.disconnect":
                raise Disconnected
            yield event.get("body", b"")

    async def disconnected(self) -> None:
        """Wait until the client has disconnected; while its body is incomplete, only a reader notices that."""
        await self._is_complete.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _unless_disconnected(reply: Coroutine[Any, Any, Reply | Stream], body: _Body) -> Reply | Stream:
    """Return the reply; if the client disconnects first, withdraw its rows."""
    answer, disconnected = asyncio.ensure_future(reply), asyncio.ensure_future(body.disconnected())
    try:
        await asyncio.wait({answer, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise Disconnected
    finally:
        await cancel_and_wait([answer, disconnected])


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


async def _stream(stream: Stream, headers: Mapping[str, str], seconds: float, body: _Body, send: Send) -> None:
    """Send a stream; a client that disconnects or reads too slowly ends it."""

    async def write(chunk: bytes) -> None:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})

    async with contextlib.aclosing(stream.chunks):
        await send(_start(stream.status, headers))
        sending = asyncio.ensure_future(send_stream(stream, write, seconds))
        disconnected = asyncio.ensure_future(body.disconnected())
        try:
            await asyncio.wait({sending, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                with contextlib.suppress(SlowReader):  # the server closes the connection of an unfinished response
                    sending.result()
                    await send({"type": "http.response.body", "body": b""})
        finally:
            await cancel_and_wait([sending, disconnected])
