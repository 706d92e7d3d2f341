"""Predictors as an ASGI application, for FastAPI, Starlette, uvicorn and others. Needs none of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from flowmx.serve.front import MAX_BODY, MAX_TEXT, Call, Front, Predictors, Reply

__all__ = ["Gateway", "asgi"]

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class _Disconnected(Exception):
    """The client has disconnected."""


def asgi(predictors: Predictors, *, max_body: int = MAX_BODY, max_text: int = MAX_TEXT) -> Gateway:
    """An ASGI application that answers as :func:`app` does.

    Args:
        predictors: one, or a dict of some by name; the first answers ``/predict``.
        max_body: most bytes of a body.
        max_text: most bytes of a JSON body.

    Example:
        >>> api = fastapi.FastAPI()
        >>> api.mount("/ml", mx.serve.asgi(predictor))
    """
    return Gateway(Front(predictors, max_body, max_text))


class Gateway:
    """A :class:`Front` behind ASGI 3."""

    def __init__(self, front: Front) -> None:
        self.front = front

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Answer one connection's event stream: a request, or the server's life."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            raise ValueError(f"flowmx.serve answers http, and was given {scope['type']}")

    async def _live(self, receive: Receive, send: Send) -> None:
        predictors = self.front.predictors.values()
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                for each in predictors:
                    each.start()
            else:
                await asyncio.gather(*(each.drain() for each in predictors))
            await send({"type": f"{event['type']}.complete"})
            if event["type"] == "lifespan.shutdown":
                return

    async def _answer(self, scope: Event, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        found = self.front.begin(scope["method"], _path(scope), headers)
        try:
            reply = await _predict(found, receive) if isinstance(found, Call) else found
        except _Disconnected:
            return
        await _send(reply, scope["method"] == "HEAD", send)


def _path(scope: Event) -> str:
    """The path below where the application is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(root) else path


async def _predict(call: Call, receive: Receive) -> Reply:
    body = bytearray()
    more = True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _Disconnected
        body += event.get("body", b"")
        if (refused := call.too_large(len(body))) is not None:
            return refused
        more = event.get("more_body", False)
    return await _unless_disconnected(call, bytes(body), receive)


async def _unless_disconnected(call: Call, body: bytes, receive: Receive) -> Reply:
    """The answer; if the client disconnects before, its rows are withdrawn."""
    answer, disconnected = asyncio.ensure_future(call.reply(body)), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({answer, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise _Disconnected
    finally:
        answer.cancel()
        disconnected.cancel()
        await asyncio.gather(answer, disconnected, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(reply: Reply, is_head: bool, send: Send) -> None:
    headers = {"Content-Type": reply.type, "Content-Length": str(len(reply.body)), **reply.headers}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": raw})
    await send({"type": "http.response.body", "body": b"" if is_head else reply.body})
