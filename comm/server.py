"""A service: an aiohttp application that answers operations, on its own or mounted in another application."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from functools import partial
from time import perf_counter

from aiohttp import web

from flowmx.comm import local
from flowmx.comm.admission import Admission
from flowmx.comm.door import Doorman, answer
from flowmx.comm.errors import CommError, Refused, Unauthorized, Unknown, to_header
from flowmx.comm.exchange import Caller, Handler, Operation, Place, Posted
from flowmx.comm.frames import Message, encode
from flowmx.comm.gate import Gate
from flowmx.comm.headers import take
from flowmx.comm.heads import Asked, asked
from flowmx.comm.limits import Limits, in_force
from flowmx.comm.listening import Listener, listen
from flowmx.comm.logs import http_log
from flowmx.comm.metrics import CONTENT_TYPE as METRICS_TYPE
from flowmx.comm.metrics import Metrics
from flowmx.comm.security import Security, check_address, host_of, is_loopback
from flowmx.comm.stream_service import serve_stream
from flowmx.comm.transfer import CONTENT_TYPE, READ_AHEAD

__all__ = ["Caller", "Service"]

log = logging.getLogger("flowmx.comm")
LINGER = 2.0  # seconds that the rest of a refused body is read for, so that the sender gets to see the refusal

GRACE = 0.05  # seconds that requests under way have to end when a service stops; aiohttp takes 0 for no limit


class Service:
    """Answers operations: ``POST /v1/<operation>`` with a frame, or in ``GET /v1/stream``; ``/healthz``, ``/metrics``.

    Args:
        name: what messages call it.
        security: who may call; without, only processes of this machine.
        limits: what is allowed; by default what a job's nodes may send.
        metrics: where its metrics go; by default they are its own.
        local: whether processes of this machine and user may connect by unix socket and share memory.

    Example:
        >>> service = Service("echo")
        >>> service.operation("echo", echo)
        >>> address = await service.start()
    """

    def __init__(
        self,
        name: str,
        *,
        security: Security | None = None,
        limits: Limits | None = None,
        metrics: Metrics | None = None,
        local: bool = True,
    ) -> None:
        self.name = name
        self.security = security
        self.limits = limits = limits or in_force("job")
        self.metrics = metrics if metrics is not None else Metrics()
        self.admission = Admission(limits)
        self.gate = Gate(limits)
        self.mappings = _mappings(limits)
        self.address = ""
        self._local = local
        self._operations: dict[str, Operation] = {}
        self._application = self._make_application()
        self._application.on_startup.append(self._start_local)
        self._application.on_cleanup.append(self._stop_local)
        self._runner: web.AppRunner | None = None
        self._listener: Listener | None = None
        self._local_runner: web.AppRunner | None = None
        self._local_listener: Listener | None = None
        self._socket = ""
        self._is_stopping = False
        self._measure()
        self.operation("local", self._answer_local)

    @property
    def application(self) -> web.Application:
        """The application, to be mounted: ``app.add_subapp("/flowmx/", service.application)``.

        Make the application's runner with ``handler_cancellation=True``, so that callers who go away end their calls,
        and ``auto_decompress=False``, so that what is refused for being compressed is not unpacked first.
        """
        return self._application

    def operation(self, name: str, handler: Handler, place: Place | None = None, *, borrow: bool = False) -> None:
        """Answer an operation.

        Args:
            name: of the operation.
            handler: a function from caller and message to the answer, or to an awaitable of it, as a coroutine function
                is; what it answers at once takes least. What it raises is sent to the caller as a refusal: a CommError
                and a ValueError with their text, others with their type too. The tensors that it returns must stay as
                they are until they are sent.
            place: from the caller and the header (with its "tensors") to a buffer for each tensor that comes in, or
                None for new memory. What is refused later may have been written there in part.
            borrow: whether tensors may lie in the caller's memory, where that is shared. They are not copied then, are
                read-only, and stay as they are until the handler returns an answer; where it does not, for ever. Then
                `place` is not asked.

        Raises:
            ValueError: there is one of this name.
        """
        if name in self._operations:
            raise ValueError(f"{self.name} has an operation {name!r} already")
        self._operations[name] = Operation(handler, place, borrow)

    def find(self, name: str) -> Operation:
        """The operation of a name.

        Raises:
            Unknown: there is none.
        """
        if name not in self._operations:
            raise Unknown(f"{self.name} has no operation {name[:80]!r}; it has {', '.join(sorted(self._operations))}")
        return self._operations[name]

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve on an address; returns it, such as ``"http://127.0.0.1:40123"``.

        Args:
            host: an address of this machine, or a name of one.
            port: 0 takes a free one.

        Raises:
            InsecureAddress: other machines reach it, and there is neither a secret nor mutual TLS.
            OSError: the address is taken, or not of this machine.
            RuntimeError: the service was started before.
        """
        check_address(host, self.security)
        if self._runner is not None:
            raise RuntimeError(f"{self.name} was started already, on {self.address}")
        self._is_stopping = False
        self._runner = await _run(self._application, self.limits.keep_alive)
        tls = self.security.tls if self.security is not None else None
        try:
            self._listener = Listener(
                await listen(host, port),
                partial(self._protocol, self._runner),
                tls=tls.server() if tls else None,
                handshake=self.limits.head,
                most=self.limits.strangers,
            )
        except BaseException:
            await self.stop()
            raise
        port = self._listener.sockets[0].getsockname()[1]
        self.address = f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"
        return self.address

    async def stop(self) -> None:
        """Stop: take no further requests, cancel those that are under way, and free everything."""
        self._is_stopping = True
        await self._end(self._listener, self._runner)
        self._runner = self._listener = None

    def _make_application(self) -> web.Application:
        application = web.Application()
        application.router.add_post("/v1/{operation}", self._answer)
        application.router.add_get("/v1/stream", self._answer_stream)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/metrics", self._metrics)
        return application

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        start, result = perf_counter(), "broken"
        try:
            with self.gate.request(request.transport) as note:
                response, result = await Posted(self, request, note).answer()
            return response
        finally:
            name, nbytes = request.match_info["operation"], request.content.total_bytes
            self.observe(name, result, perf_counter() - start, nbytes)

    async def _answer_stream(self, request: web.Request) -> web.StreamResponse:
        with self.gate.request(request.transport) as note:
            try:
                return await serve_stream(self, request, note)
            except CommError as error:
                self._requests.add("stream", error.kind)
                return await Posted(self, request, note).refuse(error)

    def observe(self, operation: str, result: str, seconds: float, nbytes: int) -> None:
        """Count a request.

        Args:
            operation: that was asked for.
            result: ``"ok"`` or the kind of the refusal.
            seconds: that it took.
            nbytes: of the request.
        """
        label = operation if operation in self._operations else "unknown"
        self._seconds.observe(seconds, label)
        self._requests.add(label, result)
        self._bytes_in.add(label, by=nbytes)

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "name": self.name})

    def check_reader(self, headers: Mapping[str, str]) -> None:
        """Check that who asks for metrics or the doctor's report may read them.

        Raises:
            Unauthorized: the token is missing or wrong; without a secret, the Host header names another machine (a web
                page could have a name that leads here).
        """
        if self.security is not None:
            self.security.check_metrics(headers)
        elif not is_loopback(host := host_of(headers.get("Host", "localhost"))):
            raise Unauthorized(f"this service has no secret, and so is not to be asked for as {host[:80]!r}")

    async def _metrics(self, request: web.Request) -> web.Response:
        try:
            self.check_reader(request.headers)
        except Unauthorized as error:
            return web.Response(status=error.status, text=str(error))
        return web.Response(body=self.metrics.text().encode(), headers={"Content-Type": METRICS_TYPE})

    def _measure(self) -> None:
        metrics = self.metrics
        self._requests = metrics.counter(
            "flowmx_requests_total", "Requests answered, by the kind of the answer.", ["operation", "result"]
        )
        self._seconds = metrics.histogram("flowmx_request_seconds", "Seconds from request to answer.", ["operation"])
        self._bytes_in = metrics.counter("flowmx_received_bytes_total", "Bytes of bodies received.", ["operation"])
        metrics.gauge("flowmx_requests_under_way", "Requests under way.").follow(lambda: self.admission.requests)
        metrics.gauge("flowmx_bytes_under_way", "Bytes of requests under way.").follow(lambda: self.admission.nbytes)
        metrics.gauge("flowmx_connections", "Connections.").follow(lambda: len(self.gate.places))
        metrics.gauge("flowmx_mapped_bytes", "Bytes of shared memory mapped.").follow(lambda: self.mappings.nbytes)

    async def _answer_local(self, caller: Caller, message: Message) -> Message:
        """Answer processes of this machine and user with the unix socket's name; through it, that memory is shared."""
        header = take(message.header, {}, {"host": str})
        if caller.local:
            return Message({"shared_memory": True}, [])
        if not self._socket or not secrets.compare_digest(header.get("host", ""), local.host_identity()):
            raise Refused("there is no faster way here than this one", "not_local")
        return Message({"socket": self._socket}, [])

    async def _start_local(self, application: web.Application) -> None:
        if not self._local or not local.AVAILABLE:
            return
        name = f"flowmx-{secrets.token_hex(16)}"
        try:
            sock = local.listen(name)
        except OSError as error:
            log.info("%s has no unix socket (%s): processes of this machine connect by TCP", self.name, error)
            return
        self._is_stopping = False
        self._local_runner = await _run(self._make_application(), self.limits.keep_alive)
        self._local_listener = Listener([sock], partial(self._protocol, self._local_runner))
        self._socket = name

    async def _stop_local(self, application: web.Application) -> None:
        self._is_stopping = True
        await self._end(self._local_listener, self._local_runner)
        self._local_runner = self._local_listener = None
        self._socket = ""
        self.mappings.clear()

    async def _end(self, listener: Listener | None, runner: web.AppRunner | None) -> None:
        """Take no more connections, and close all."""
        if listener is not None:
            await listener.close()
        self.gate.close()
        if runner is not None:
            await runner.cleanup()

    def _protocol(self, runner: web.AppRunner) -> asyncio.BaseProtocol:
        """The protocol of a new connection; none is let in while the service stops."""

        def make() -> asyncio.Protocol | None:
            return None if self._is_stopping or runner.server is None else runner.server()

        return Doorman(self.gate, make, self._vet)

    def _vet(self, head: bytes) -> bytes | None:
        """The refusal of a stranger's request that is not signed, by its head alone."""
        found = asked(head)
        if self.security is None or not self.security.signs or found is None or not _is_signed(found):
            return None
        try:
            self.security.check_signature(found.method, found.path, found.authorization)
        except Unauthorized as error:
            name = found.path.rpartition("/")[2]
            self._requests.add(name if name in self._operations else "unknown", error.kind)
            return _refusal(error)
        return None


def _is_signed(asked: Asked) -> bool:
    """Tell whether a request must be signed: one for health or metrics need not."""
    return asked.method == "POST" or (asked.method == "GET" and asked.path.endswith("/v1/stream"))


def _refusal(error: CommError) -> bytes:
    return answer("401 Unauthorized", b"".join(encode(Message(to_header(error), []))), Content_Type=CONTENT_TYPE)


def _mappings(limits: Limits) -> local.Mappings:
    return local.Mappings(limits.in_flight)


async def _run(application: web.Application, keep_alive: float) -> web.AppRunner:
    runner = web.AppRunner(
        application,
        handler_cancellation=True,
        access_log=None,
        logger=http_log,
        read_bufsize=READ_AHEAD,
        auto_decompress=False,
        keepalive_timeout=keep_alive,
        lingering_time=LINGER,
        shutdown_timeout=GRACE,
    )
    await runner.setup()
    return runner
