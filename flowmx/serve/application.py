"""Predictors as an aiohttp application, on its own or mounted in another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import ssl
from collections.abc import Callable, Collection
from typing import Any

from aiohttp import web

from flowmx.comm.door import Doorman
from flowmx.comm.gate import Gate, Phase
from flowmx.comm.listening import Listener, listen
from flowmx.comm.logs import http_log
from flowmx.serve.access import Access
from flowmx.serve.front import MAX_TEXT, Front, Pending, Served
from flowmx.serve.replies import Refusal, Reply

__all__ = ["app", "run"]

_log = logging.getLogger("flowmx.serve")
FRONT = web.AppKey("flowmx_front", Front)
CLOSING = web.AppKey("flowmx_closing", asyncio.Event)
RECEIVING = web.AppKey("flowmx_receiving", set[Any])
GATE = web.AppKey("flowmx_gate", Gate)
_LEAVING = 1.0
"""Seconds in which clients with a connection are asked to close it, or send the rest, when a service ends."""
_ENDING = 20.0
"""Seconds that requests under way have to end then."""
_LEAVING_LOOKS = 100


def app(
    predictors: Served, *, max_body: int | None = None, max_text: int = MAX_TEXT, hosts: Collection[str] | None = None,
    access: Access | None = None,
) -> web.Application:  # fmt: skip
    """An aiohttp application that answers predictions; see docs/serving.md for its routes.

    The predictors begin to warm up when it starts, and drain when it ends. Make its runner with
    ``handler_cancellation=True`` (``web.run_app`` takes it too), so that a client who goes away ends its request.

    Args:
        predictors: one, or a dict of some by name, of which the first answers ``/predict``, or a repository.
        max_body: most bytes of a body (default: those of ``FLOWMX_SERVE_LIMITS``).
        max_text: most bytes of a JSON body, which takes long to read.
        hosts: the names that it may be asked for by, besides addresses; None: any.
        access: the tokens of those who may ask (default: everybody may).

    Example:
        >>> application = web.Application()
        >>> application.add_subapp("/ml", mx.serve.app(predictor))
    """
    application = web.Application()
    application[FRONT] = front = Front(predictors, max_body, max_text, hosts, access=access)
    application[GATE], application[CLOSING], application[RECEIVING] = Gate(front.limits), asyncio.Event(), set()

    async def start(_: web.Application) -> None:
        front.start()

    async def end(_: web.Application) -> None:
        await front.drain()

    application.router.add_route("*", "/{tail:.*}", _answer)
    application.on_startup.append(start)
    application.on_cleanup.append(end)
    return application


async def _answer(request: web.Request) -> web.Response:
    application = request.app
    front, gate, closing = application[FRONT], application[GATE], application[CLOSING]
    asked = request.method, request.match_info["tail"], request.headers
    with front.traced(*asked) as answered, gate.request(request.transport) as note:
        found = front.begin(*asked)
        reply = found if isinstance(found, Reply) else await _predict(request, found, note)
        answered(reply.status)
        seconds = front.wait_of(reply, asyncio.get_running_loop().time())
        if not seconds and reply.status >= 400:
            seconds = gate.wait_of(request.transport)
        if seconds:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(closing.wait(), seconds)
        response = web.Response(
            status=reply.status, body=reply.body, headers={**reply.headers, "Content-Type": reply.type}
        )
        if closing.is_set() or not request.content.is_eof():
            response.force_close()
        if reply.status < 400:
            gate.prove(request.transport)
        return response


async def _predict(request: web.Request, call: Pending, note: Callable[[Phase], None]) -> Reply:
    receiving, task = request.app[RECEIVING], asyncio.current_task()
    with request.app[FRONT].budget.enter() as entry:
        receiving.add(task)
        try:
            body = await call.receive(request.content.iter_any(), entry)
        except web.RequestPayloadError as error:
            return Refusal(400, f"the body is not what its HTTP headers say: {error}").reply
        finally:
            receiving.discard(task)
        note(Phase.WORKING)
        return body if isinstance(body, Reply) else await call.reply(body)


async def run(
    application: web.Application, host: str = "127.0.0.1", port: int = 8080,
    started: Callable[[str], None] | None = None, tls: ssl.SSLContext | None = None,
) -> None:  # fmt: skip
    """Serve an application that :func:`app` made, until SIGTERM or SIGINT; then drain.

    To drain is to take no further connections, to answer what was asked, and to close each connection with its answer.

    Args:
        application: the application.
        host: an address of this machine.
        port: 0 takes a free one.
        started: called with the address once it serves.
        tls: the service's certificates.

    Raises:
        OSError: the address is taken, or not of this machine.
    """
    front, gate, closing = application[FRONT], application[GATE], application[CLOSING]
    runner = web.AppRunner(
        application, handler_cancellation=True, access_log=None, logger=http_log, shutdown_timeout=_ENDING,
        keepalive_timeout=front.limits.keep_alive, lingering_time=_LEAVING,
    )  # fmt: skip
    await runner.setup()

    def make() -> asyncio.Protocol | None:
        return None if closing.is_set() or runner.server is None else runner.server()

    try:
        listener = Listener(
            await listen(host, port), lambda: Doorman(gate, make, None), tls=tls, handshake=front.limits.head,
            most=front.limits.strangers,
        )  # fmt: skip
        if started is not None:
            started(f"{'http' if tls is None else 'https'}://{host}:{listener.sockets[0].getsockname()[1]}")
        await _signalled()
        _log.info("draining: what was asked is answered, and nothing more is taken")
        closing.set()
        await listener.close()
        gate.close()
        await _left(runner)
        for each in application[RECEIVING]:
            each.cancel()  # half a request
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
