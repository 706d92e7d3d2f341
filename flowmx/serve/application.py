"""Predictors as an aiohttp application, on its own or mounted in another."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from aiohttp import web

from flowmx.serve.front import MAX_BODY, MAX_TEXT, Call, Front, Predictors, Reply

__all__ = ["app", "run"]

_log = logging.getLogger("flowmx.serve")
FRONT = web.AppKey("flowmx_front", Front)
CLOSING = web.AppKey("flowmx_closing", asyncio.Event)
_LEAVING = 1.0
"""Seconds in which clients with a connection are asked to close it, when a service ends."""
_LEAVING_LOOKS = 100


def app(predictors: Predictors, *, max_body: int = MAX_BODY, max_text: int = MAX_TEXT) -> web.Application:
    """An aiohttp application that answers predictions; see docs/serving.md for its routes.

    The predictors begin to warm up when it starts, and drain when it ends. Make its runner with
    ``handler_cancellation=True`` (``web.run_app`` takes it too), so that a client who goes away ends its request.

    Args:
        predictors: one, or a dict of some by name; the first answers ``/predict``.
        max_body: most bytes of a body.
        max_text: most bytes of a JSON body, which takes long to read.

    Example:
        >>> application = web.Application()
        >>> application.add_subapp("/ml", mx.serve.app(predictor))
    """
    application = web.Application()
    application[FRONT] = front = Front(predictors, max_body, max_text)
    application[CLOSING] = asyncio.Event()

    async def start(_: web.Application) -> None:
        for each in front.predictors.values():
            each.start()

    async def end(_: web.Application) -> None:
        await asyncio.gather(*(each.drain() for each in front.predictors.values()))

    application.router.add_route("*", "/{tail:.*}", _answer)
    application.on_startup.append(start)
    application.on_cleanup.append(end)
    return application


async def _answer(request: web.Request) -> web.Response:
    application = request.app
    found = application[FRONT].begin(request.method, request.match_info["tail"], request.headers)
    reply = await _predict(request, found) if isinstance(found, Call) else found
    response = web.Response(status=reply.status, body=reply.body, headers={**reply.headers, "Content-Type": reply.type})
    if application[CLOSING].is_set():
        response.force_close()
    return response


async def _predict(request: web.Request, call: Call) -> Reply:
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if (refused := call.too_large(len(body))) is not None:
            return refused
    return await call.reply(bytes(body))


async def run(
    application: web.Application, host: str = "127.0.0.1", port: int = 8080,
    started: Callable[[str], None] | None = None,
) -> None:  # fmt: skip
    """Serve an application that :func:`app` made, until SIGTERM or SIGINT; then drain.

    To drain is to take no further connections, to answer what was asked, and to close each connection with its answer.

    Args:
        application: the application.
        host: an address of this machine.
        port: 0 takes a free one.
        started: called with the address once it serves.

    Raises:
        OSError: the address is taken, or not of this machine.
    """
    runner = web.AppRunner(application, handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=1024)
        await site.start()
        if started is not None:
            started(f"http://{host}:{runner.addresses[0][1]}")
        await _signalled()
        _log.info("draining: what was asked is answered, and nothing more is taken")
        application[CLOSING].set()
        await site.stop()
        await _left(runner)
    finally:
        await runner.cleanup()


async def _signalled() -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, ended.set)
    await ended.wait()


async def _left(runner: web.AppRunner) -> None:
    """Wait until clients have closed their connections, for a little."""
    server = runner.server
    for _ in range(_LEAVING_LOOKS):
        if server is None or not server.connections:
            return
        await asyncio.sleep(_LEAVING / _LEAVING_LOOKS)
