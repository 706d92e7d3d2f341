"""Predictors as an ASGI application, for FastAPI, Starlette, uvicorn and others. Needs none of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableMapping
from typing import Any

from flowmx.serve.access import Access
from flowmx.serve.front import MAX_TEXT, Front, Pending, Served
from flowmx.serve.replies import Reply

__all__ = ["Gateway", "asgi"]

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class _Disconnected(Exception):
    """The client has disconnected."""


def asgi(
    predictors: Served, *, max_body: int | None = None, max_text: int = MAX_TEXT, hosts: Collection[str] | None = None,
    access: Access | None = None,
) -> Gateway:  # fmt: skip
    """An ASGI application that answers as :func:`app` does.

    Args:
        predictors: one, or a dict of some by name, of which the first answers ``/predict``, or a repository.
        max_body: most bytes of a body (default: those of ``FLOWMX_SERVE_LIMITS``).
        max_text: most bytes of a JSON body.
        hosts: the names that it may be asked for by, besides addresses; None: any.
        access: the tokens of those who may ask (default: everybody may).

    Example:
        >>> api = fastapi.FastAPI()
        >>> api.mount("/ml", mx.serve.asgi(predictor))
    """
    return Gateway(Front(predictors, max_body, max_text, hosts, access=access))


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
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                self.front.start()
            else:
                await self.front.drain()
            await send({"type": f"{event['type']}.complete"})
            if event["type"] == "lifespan.shutdown":
                return

    async def _answer(self, scope: Event, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        asked = scope["method"], _path(scope), headers
        with self.front.traced(*asked) as answered:
            found = self.front.begin(*asked)
            try:
                reply = found if isinstance(found, Reply) else await _predict(self.front, found, receive)
            except _Disconnected:
                return
            answered(reply.status)
        if seconds := self.front.wait_of(reply, asyncio.get_running_loop().time()):
            await asyncio.sleep(seconds)
        await _send(reply, scope["method"] == "HEAD", send)


def _path(scope: Event) -> str:
    """The path below where the application is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(root) else path


async def _predict(front: Front, call: Pending, receive: Receive) -> Reply:
    with front.budget.enter() as entry:
        body = await call.receive(_chunks(receive), entry)
        return body if isinstance(body, Reply) else await _unless_disconnected(call, body, receive)


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _Disconnected
        yield event.get("body", b"")
        more = event.get("more_body", False)


async def _unless_disconnected(call: Pending, body: bytes, receive: Receive) -> Reply:
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
