"""The WebSockets of sessions in an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from flowmx.serve.replies import Reply
from flowmx.serve.service import Service
from flowmx.serve.sessions.messages import Message
from flowmx.serve.sessions.socket_call import SocketCall

__all__ = ["answer_socket", "headers_of"]

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
_REFUSED = 1008
"""The status code of a refused WebSocket, for servers that cannot send an HTTP response."""


def headers_of(scope: Event) -> dict[str, str]:
    """Return the headers of a request."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


async def answer_socket(
    service: Service, scope: Event, path: str, receive: Receive, send: Send, closing: asyncio.Event
) -> None:
    """Answer the messages of a WebSocket until the client or the service closes it.

    Args:
        service: the service.
        scope: the scope of the WebSocket.
        path: the path below the application's mount point.
        receive: as in ASGI.
        send: as in ASGI.
        closing: set when the service shuts down.
    """
    headers = {**headers_of(scope), "upgrade": "websocket"}  # HTTP/2 has no such header
    await receive()  # websocket.connect
    with service.trace("GET", path, headers) as set_status:
        call = service.begin("GET", path, headers, scope.get("query_string", b"").decode("latin-1"))
        if not isinstance(call, SocketCall):
            set_status(call.status if isinstance(call, Reply) else 400)
            await _refuse(call, scope, send)
            return
        set_status(101)
        await send({"type": "websocket.accept"})

        async def messages() -> AsyncIterator[Message]:
            while (event := await receive())["type"] == "websocket.receive":
                text = event.get("text")
                yield event.get("bytes") or b"" if text is None else text

        async def send_message(message: Message) -> None:
            await send({"type": "websocket.send", "text" if isinstance(message, str) else "bytes": message})

        code = await call.run(messages(), send_message, closing)
        try:
            await send({"type": "websocket.close", "code": code})
        except (OSError, RuntimeError):  # the server's error for a closed connection
            pass


async def _refuse(reply: object, scope: Event, send: Send) -> None:
    """Refuse a WebSocket: with an HTTP response if the server can send one."""
    if isinstance(reply, Reply) and "websocket.http.response" in scope.get("extensions", {}):
        headers = [(b"content-type", reply.type.encode())]
        await send({"type": "websocket.http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": bytes(reply.body)})
    else:
        await send({"type": "websocket.close", "code": _REFUSED})
