"""Predictors as an aiohttp application, alone or mounted in another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any

from aiohttp import WSMsgType, web

from flowmx.comm.connection_handler import ConnectionHandler
from flowmx.comm.connections import ConnectionLimiter, Phase
from flowmx.comm.listening import Listener, listen
from flowmx.comm.logs import http_log
from flowmx.comm.offload import LARGE
from flowmx.serve.access import Access
from flowmx.serve.bodies import MAX_TEXT, PendingCall
from flowmx.serve.large_bodies import Body, chunks_of
from flowmx.serve.pool_member import Member, MemberOptions
from flowmx.serve.replies import Refusal, Reply, Stream
from flowmx.serve.request_tasks import RequestTasks
from flowmx.serve.service import DRAIN_SECONDS, Service
from flowmx.serve.sessions.messages import Message
from flowmx.serve.sessions.socket_call import GOING_AWAY, TOO_SLOW, SocketCall
from flowmx.serve.sessions.stream_call import StreamCall
from flowmx.serve.sources import ModelSource
from flowmx.serve.streams import SlowReader, send

__all__ = ["app", "run"]

_log = logging.getLogger("flowmx.serve")
SERVICE = web.AppKey("flowmx_service", Service)
CLOSING = web.AppKey("flowmx_closing", asyncio.Event)
RECEIVING = web.AppKey("flowmx_receiving", set[Any])
REQUESTS = web.AppKey("flowmx_requests", RequestTasks)
CONNECTIONS = web.AppKey("flowmx_connections", ConnectionLimiter)
_CLOSE_SECONDS = 1.0
"""Seconds that clients have to close their connections or send the rest of a request at shutdown."""
_CLOSE_CHECKS = 100


def app(
    predictors: ModelSource, *, max_body: int | None = None, max_text: int = MAX_TEXT,
    hosts: Collection[str] | None = None, access: Access | None = None, origins: Collection[str] = (),
    default: str | None = None, drain_timeout: float = DRAIN_SECONDS,
) -> web.Application:  # fmt: skip
    """Return an aiohttp application that serves predictions; docs/serving.md lists its routes.

    The predictors start to warm up when the application starts, and drain when it stops. Create its runner with
    ``handler_cancellation=True`` (``web.run_app`` accepts it too), so that a disconnect cancels the request.

    Args:
        predictors: a predictor, a generator of text, a dict of them by name, or a repository.
        max_body: maximum size of a body in bytes (default: that of ``FLOWMX_SERVE_LIMITS``).
        max_text: maximum size of a JSON body in bytes; JSON is slow to parse.
        hosts: host names to accept besides IP addresses; None accepts any.
        access: the tokens of users and admins (default: no token is needed).
        origins: other sites whose pages may send requests from a browser, such as ``"https://app.example"``.
        default: name of the model that answers ``/predict`` and ``/invocations`` if the request names none (default:
            the only model).
        drain_timeout: seconds that requests have to finish when the application stops; others get a 503.

    Example:
        >>> application = web.Application()
        >>> application.add_subapp("/ml", mx.serve.app(predictor))
    """
    application = web.Application()
    application[SERVICE] = service = Service(
        predictors, max_body, max_text, hosts, access=access, origins=origins, default=default,
        drain_timeout=drain_timeout,
    )  # fmt: skip
    application[CONNECTIONS] = ConnectionLimiter(service.limits)
    application[CLOSING], application[RECEIVING], application[REQUESTS] = asyncio.Event(), set(), RequestTasks()

    async def start(_: web.Application) -> None:
        service.start()

    async def close(_: web.Application) -> None:
        application[CLOSING].set()

    async def stop(_: web.Application) -> None:
        await service.drain(0.0 if application[REQUESTS].is_aborted else None)

    application.router.add_route("*", "/{tail:.*}", _answer)
    application.on_startup.append(start)
    application.on_shutdown.append(close)
    application.on_cleanup.append(stop)
    return application


async def _answer(request: web.Request) -> web.StreamResponse:
    requests = request.app[REQUESTS]
    with requests.track():
        try:
            return await _respond(request)
        except asyncio.CancelledError:
            if not requests.can_refuse():
                raise
            return _refuse_late(request)


def _refuse_late(request: web.Request) -> web.Response:
    """Return the response to a request that was cancelled because the time to drain is over."""
    task, service = asyncio.current_task(), request.app[SERVICE]
    if task is not None:
        task.uncancel()
    message = f"the service is shutting down, and has not answered within {service.drain_timeout:g} s"
    reply = Refusal(503, message, {"Retry-After": "1"}).reply
    response = web.Response(status=503, body=reply.body, headers=service.response_headers(reply, request.headers))
    response.force_close()
    return response


async def _respond(request: web.Request) -> web.StreamResponse:
    application = request.app
    service, connections, closing = application[SERVICE], application[CONNECTIONS], application[CLOSING]
    head = request.method, request.match_info["tail"], request.headers
    with service.trace(*head) as set_status, connections.track_request(request.transport) as note:
        result = service.begin(*head, request.rel_url.raw_query_string)
        if isinstance(result, SocketCall):
            set_status(101)
            connections.mark_authenticated(request.transport)
            note(Phase.WORKING)
            return await _socket(request, result)
        if isinstance(result, StreamCall):
            note(Phase.WORKING)
            reply = await result.run(_chunks(request), closing)
        else:
            reply = result if isinstance(result, Reply) else await _predict(request, result, note)
        set_status(reply.status)
        seconds = service.delay_of(reply, asyncio.get_running_loop().time())
        if not seconds and reply.status >= 400:
            seconds = connections.refusal_delay(request.transport)
        if seconds:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(closing.wait(), seconds)
        headers = service.response_headers(reply, request.headers)
        if isinstance(reply, Stream):
            connections.mark_authenticated(request.transport)
            return await _stream(request, reply, headers)
        is_large = len(reply.body) >= LARGE
        response: web.StreamResponse = (
            web.StreamResponse(status=reply.status, headers={**headers, "Content-Length": str(len(reply.body))})
            if is_large
            else web.Response(status=reply.status, body=reply.body, headers=headers)
        )
        if closing.is_set() or not request.content.is_eof():
            response.force_close()
        if reply.status < 400:
            connections.mark_authenticated(request.transport)
        if is_large:
            await _send(request, response, reply.body)
        return response


async def _send(request: web.Request, response: web.StreamResponse, body: Body) -> None:
    """Send a large body in chunks, because the transport copies whatever it cannot send immediately."""
    request.app[REQUESTS].begin_response()
    await response.prepare(request)
    for chunk in chunks_of(body):
        await response.write(chunk)
    await response.write_eof()


async def _stream(request: web.Request, stream: Stream, headers: Mapping[str, str]) -> web.StreamResponse:
    request.app[REQUESTS].begin_response()
    response = web.StreamResponse(status=stream.status, headers=headers)
    if request.app[CLOSING].is_set():
        response.force_close()
    async with contextlib.aclosing(stream.chunks):
        try:
            await response.prepare(request)
            await send(stream, response.write, request.app[SERVICE].limits.idle)
            await response.write_eof()
        except SlowReader:
            if request.transport is not None:
                request.transport.abort()
    return response


async def _socket(request: web.Request, call: SocketCall) -> web.StreamResponse:
    """Answer the messages of a WebSocket until the client or the service closes it."""
    request.app[REQUESTS].begin_response()
    socket = web.WebSocketResponse(
        heartbeat=call.limits.idle, max_msg_size=call.limit, compress=False, timeout=_CLOSE_SECONDS
    )
    await socket.prepare(request)

    async def messages() -> AsyncIterator[Message]:
        async for message in socket:
            if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                yield message.data

    async def send(message: Message) -> None:
        await (socket.send_str(message) if isinstance(message, str) else socket.send_bytes(message))

    try:
        code = await call.run(messages(), send, request.app[CLOSING])
    except asyncio.CancelledError:
        if request.app[REQUESTS].is_aborted:
            await socket.close(code=GOING_AWAY)
        raise
    if code == TOO_SLOW and request.transport is not None:
        request.transport.abort()
    await socket.close(code=code)
    return socket


async def _chunks(request: web.Request) -> AsyncIterator[bytes]:
    """Yield the body of a request.

    Raises:
        Refusal: 400, it does not match its HTTP headers.
    """
    try:
        async for chunk in request.content.iter_any():
            yield chunk
    except web.RequestPayloadError as error:
        raise Refusal(400, f"the body does not match its HTTP headers: {error}") from None


async def _predict(request: web.Request, call: PendingCall, note: Callable[[Phase], None]) -> Reply | Stream:
    receiving, task = request.app[RECEIVING], asyncio.current_task()
    with request.app[SERVICE].budget.enter() as entry:
        receiving.add(task)
        try:
            body = await call.receive(_chunks(request), entry)
        except Refusal as refusal:
            return refusal.reply
        finally:
            receiving.discard(task)
        note(Phase.WORKING)
        return body if isinstance(body, Reply) else await call.reply(body)


async def run(
    application: web.Application, host: str = "127.0.0.1", port: int = 8080,
    started: Callable[[str], None] | None = None, tls: ssl.SSLContext | None = None,
    member: MemberOptions | None = None,
) -> bool:  # fmt: skip
    """Serve an application of :func:`app` until SIGTERM or SIGINT, then drain.

    Draining accepts no further connections, answers the pending requests, and closes each connection after its
    response.

    Args:
        application: the application.
        host: a local address.
        port: a port; 0 picks a free one.
        started: called with the address once the service accepts requests.
        tls: the service's certificates.
        member: the pool that this process is a worker of, if any; it listens instead.

    Returns:
        Whether all requests were answered before the time to drain was over.

    Raises:
        OSError: the address is in use or not local.
    """
    service, connections, closing = application[SERVICE], application[CONNECTIONS], application[CLOSING]
    runner = web.AppRunner(
        application, handler_cancellation=True, access_log=None, logger=http_log, shutdown_timeout=_CLOSE_SECONDS,
        keepalive_timeout=service.limits.keep_alive, lingering_time=_CLOSE_SECONDS,
    )  # fmt: skip

    def make_protocol() -> asyncio.Protocol | None:
        return None if closing.is_set() or runner.server is None else runner.server()

    async with contextlib.AsyncExitStack() as stack:
        pool = None if member is None else await stack.enter_async_context(Member.join(member, service))
        stop_event = _on_shutdown_signal()
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        if pool is not None:
            await pool.begin()
        listener = Listener(
            await listen(host, port) if pool is None else pool.sockets,
            lambda: ConnectionHandler(connections, make_protocol, None), tls=tls, handshake=service.limits.head,
            max_pending=service.limits.unauthenticated, is_shared=pool is not None,
        )  # fmt: skip
        if pool is not None:
            await pool.started()
        if started is not None:
            started(f"{'http' if tls is None else 'https'}://{host}:{listener.sockets[0].getsockname()[1]}")
        await stop_event.wait()
        return await _drain(application, runner, listener)


async def _drain(application: web.Application, runner: web.AppRunner, listener: Listener) -> bool:
    """Answer pending requests and refuse new ones; return whether all were answered in time."""
    service, clock = application[SERVICE], asyncio.get_running_loop().time
    _log.info("draining: pending requests are answered, new ones are refused")
    end = clock() + service.drain_timeout
    application[CLOSING].set()
    await listener.close()
    application[CONNECTIONS].close()
    await _connections_closed(runner)
    for task in application[RECEIVING]:
        task.cancel()  # its request is incomplete
    late = await application[REQUESTS].finish(end - clock())
    if late:
        _log.warning("%d requests were not answered within %g s: they are refused", late, service.drain_timeout)
    return not late


def _on_shutdown_signal() -> asyncio.Event:
    """Return the event of SIGTERM and SIGINT."""
    loop, stop_event = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_event.set)
    return stop_event


async def _connections_closed(runner: web.AppRunner) -> None:
    """Wait until clients have closed their connections, at most one second."""
    server = runner.server
    for _ in range(_CLOSE_CHECKS):
        if server is None or not server.connections:
            return
        await asyncio.sleep(_CLOSE_SECONDS / _CLOSE_CHECKS)
