"""A service: an aiohttp application that answers operations, standalone or mounted in another application."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from functools import partial
from time import perf_counter

from aiohttp import web

from flowmx.comm import shared_memory
from flowmx.comm.admission import Admission
from flowmx.comm.browser_origins import is_cross_site
from flowmx.comm.connection_handler import ConnectionHandler, http_response
from flowmx.comm.connections import ConnectionLimiter
from flowmx.comm.errors import CommError, CrossSite, Refused, Unauthorized, Unknown, to_header
from flowmx.comm.exchange import Caller, FindDestinations, Handler, Operation, PostedCall
from flowmx.comm.frames import Message, encode
from flowmx.comm.headers import take
from flowmx.comm.limits import Limits, limits_for
from flowmx.comm.listening import Listener, listen
from flowmx.comm.logs import http_log
from flowmx.comm.metrics import CONTENT_TYPE as METRICS_TYPE
from flowmx.comm.metrics import Metrics
from flowmx.comm.request_head import RequestHead, parse_head
from flowmx.comm.security import Security, check_address, host_of, is_loopback
from flowmx.comm.stream_service import serve_stream
from flowmx.comm.transfer import CONTENT_TYPE, READ_AHEAD

__all__ = ["Caller", "Service"]

log = logging.getLogger("flowmx.comm")
LINGER = 2.0  # seconds for which the rest of a refused body is read, so that the sender can receive the refusal
GRACE = 0.05  # seconds that requests in progress have to finish when a service stops; aiohttp takes 0 as no limit


class Service:
    """A service that answers operations, over HTTP or a stream.

    The routes are ``POST /v1/<operation>``, whose body is a frame, ``GET /v1/stream``, ``/healthz`` and ``/metrics``.

    Args:
        name: the service's name in messages.
        security: authenticates callers; without it, only processes of this machine may call.
        limits: the service's limits; by default those of a job's nodes.
        metrics: the registry for its metrics; by default a new one.
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
        self.limits = limits = limits or limits_for("job")
        self.metrics = metrics if metrics is not None else Metrics()
        self.admission = Admission(limits)
        self.connections = ConnectionLimiter(limits)
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
        self._add_metrics()
        self.operation("local", self._respond_locally)

    @property
    def application(self) -> web.Application:
        """The application, to be mounted: ``app.add_subapp("/flowmx/", service.application)``.

        Create the application's runner with ``handler_cancellation=True``, so that a caller's disconnection cancels its
        calls, and with ``auto_decompress=False``, so that refused compressed bodies are not decompressed first.
        """
        return self._application

    def operation(
        self, name: str, handler: Handler, find_destinations: FindDestinations | None = None, *, borrow: bool = False
    ) -> None:
        """Register the handler of an operation.

        Args:
            name: the operation's name.
            handler: a function or coroutine function that takes the caller and the message, and returns the response; a
                plain function is fastest. An exception is sent to the caller as a refusal, with its text and, unless
                it is a CommError or ValueError, its type. The returned tensors must not change until they are sent.
            find_destinations: a function that takes the caller and the header (with its "tensors"), and returns for
                each received tensor a buffer, or None for new memory. A request that is refused later may have
                overwritten part of a buffer.
            borrow: whether tensors may stay in the caller's shared memory. They are then read-only and not copied, and
                do not change until the handler returns a response; if it raises, they never change. `find_destinations`
                is not used.

        Raises:
            ValueError: the name is in use.
        """
        if name in self._operations:
            raise ValueError(f"{self.name} already has an operation {name!r}")
        self._operations[name] = Operation(handler, find_destinations, borrow)

    def find(self, name: str) -> Operation:
        """Return the operation of a name.

        Raises:
            Unknown: the service has no such operation.
        """
        if name not in self._operations:
            raise Unknown(f"{self.name} has no operation {name[:80]!r}; it has {', '.join(sorted(self._operations))}")
        return self._operations[name]

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve on an address; return its URL, such as ``"http://127.0.0.1:40123"``.

        Args:
            host: an address of this machine, or its name.
            port: the port; 0 chooses a free one.

        Raises:
            InsecureAddress: other machines can reach it, and there is neither a secret nor mutual TLS.
            OSError: the address is in use, or does not belong to this machine.
            RuntimeError: the service is already started.
        """
        check_address(host, self.security)
        if self._runner is not None:
            raise RuntimeError(f"{self.name} is already started, on {self.address}")
        self._is_stopping = False
        self._runner = await _run(self._application, self.limits.keep_alive)
        tls = self.security.tls if self.security is not None else None
        try:
            self._listener = Listener(
                await listen(host, port),
                partial(self._protocol, self._runner),
                tls=tls.server() if tls else None,
                handshake=self.limits.head,
                max_pending=self.limits.unauthenticated,
            )
        except BaseException:  # cleanup, also when interrupted
            await self.stop()
            raise
        port = self._listener.sockets[0].getsockname()[1]
        self.address = f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"
        return self.address

    async def stop(self) -> None:
        """Accept no further requests, cancel those in progress, and free all resources."""
        self._is_stopping = True
        await self._close(self._listener, self._runner)
        self._runner = self._listener = None

    def _make_application(self) -> web.Application:
        application = web.Application()
        application.router.add_post("/v1/{operation}", self._respond)
        application.router.add_get("/v1/stream", self._respond_by_stream)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/metrics", self._metrics)
        return application

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        start, result = perf_counter(), "broken"
        try:
            with self.connections.track_request(request.transport) as set_phase:
                response, result = await PostedCall(self, request, set_phase).respond()
            return response
        finally:
            name, nbytes = request.match_info["operation"], request.content.total_bytes
            self.observe(name, result, perf_counter() - start, nbytes)

    async def _respond_by_stream(self, request: web.Request) -> web.StreamResponse:
        with self.connections.track_request(request.transport) as set_phase:
            try:
                return await serve_stream(self, request, set_phase)
            except CommError as error:
                self._requests.add("stream", error.kind)
                return await PostedCall(self, request, set_phase).refuse(error)

    def observe(self, operation: str, result: str, seconds: float, nbytes: int) -> None:
        """Record a request in the metrics.

        Args:
            operation: its operation.
            result: ``"ok"`` or the kind of the refusal.
            seconds: its duration.
            nbytes: the size of the request in bytes.
        """
        label = operation if operation in self._operations else "unknown"
        self._seconds.observe(seconds, label)
        self._requests.add(label, result)
        self._bytes_in.add(label, by=nbytes)

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "name": self.name})

    def check_reader(self, headers: Mapping[str, str]) -> None:
        """Check that a client may read the metrics or the doctor's report.

        Raises:
            Unauthorized: the token is missing or wrong; without a secret, the Host header names another machine (the
                name of a web page may resolve to this one).
            CrossSite: a browser sent the request for a page of another site.
        """
        if is_cross_site(headers):
            raise CrossSite(f"a page of another site sent this request to {self.name}")
        if self.security is not None:
            self.security.check_metrics(headers)
        elif not is_loopback(host := host_of(headers.get("Host", "localhost"))):
            raise Unauthorized(f"this service has no secret, and {host[:80]!r} is not a name of this machine")

    async def _metrics(self, request: web.Request) -> web.Response:
        try:
            self.check_reader(request.headers)
        except Refused as error:
            return web.Response(status=error.status, text=str(error))
        return web.Response(body=self.metrics.text().encode(), headers={"Content-Type": METRICS_TYPE})

    def _add_metrics(self) -> None:
        metrics = self.metrics
        self._requests = metrics.counter(
            "flowmx_requests_total", "Requests answered, by the kind of the response.", ["operation", "result"]
        )
        self._seconds = metrics.histogram("flowmx_request_seconds", "Seconds from request to response.", ["operation"])
        self._bytes_in = metrics.counter("flowmx_received_bytes_total", "Bytes of bodies received.", ["operation"])
        metrics.gauge("flowmx_requests_under_way", "Requests in progress.").follow(lambda: self.admission.requests)
        metrics.gauge("flowmx_bytes_under_way", "Bytes of requests in progress.").follow(lambda: self.admission.nbytes)
        metrics.gauge("flowmx_connections", "Connections.").follow(lambda: len(self.connections.table))
        metrics.gauge("flowmx_mapped_bytes", "Bytes of shared memory mapped.").follow(lambda: self.mappings.nbytes)

    async def _respond_locally(self, caller: Caller, message: Message) -> Message:
        """Send the unix socket's name to processes of this machine and user; over the socket, confirm shared memory."""
        header = take(message.header, {}, {"host": str})
        if caller.local:
            return Message({"shared_memory": True}, [])
        if not self._socket or not secrets.compare_digest(header.get("host", ""), shared_memory.host_identity()):
            raise Refused("there is no faster connection than this one", "not_local")
        return Message({"socket": self._socket}, [])

    async def _start_local(self, application: web.Application) -> None:
        if not self._local or not shared_memory.AVAILABLE:
            return
        name = f"flowmx-{secrets.token_hex(16)}"
        try:
            sock = shared_memory.listen(name)
        except OSError as error:
            log.info("%s has no unix socket (%s): processes of this machine use TCP", self.name, error)
            return
        self._is_stopping = False
        self._local_runner = await _run(self._make_application(), self.limits.keep_alive)
        self._local_listener = Listener([sock], partial(self._protocol, self._local_runner))
        self._socket = name

    async def _stop_local(self, application: web.Application) -> None:
        self._is_stopping = True
        await self._close(self._local_listener, self._local_runner)
        self._local_runner = self._local_listener = None
        self._socket = ""
        self.mappings.clear()

    async def _close(self, listener: Listener | None, runner: web.AppRunner | None) -> None:
        """Close the listener and all connections."""
        if listener is not None:
            await listener.close()
        self.connections.close()
        if runner is not None:
            await runner.cleanup()

    def _protocol(self, runner: web.AppRunner) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection; none is accepted while the service stops."""

        def make_protocol() -> asyncio.Protocol | None:
            return None if self._is_stopping or runner.server is None else runner.server()

        return ConnectionHandler(self.connections, make_protocol, self._check_head)

    def _check_head(self, head: bytes) -> bytes | None:
        """Return the refusal of a request whose head has no valid signature, or None."""
        request = parse_head(head)
        if self.security is None or not self.security.has_secret or request is None or not _needs_signature(request):
            return None
        try:
            self.security.check_signature(request.method, request.path, request.authorization)
        except Unauthorized as error:
            name = request.path.rpartition("/")[2]
            self._requests.add(name if name in self._operations else "unknown", error.kind)
            return _refusal(error)
        return None


def _needs_signature(request: RequestHead) -> bool:
    """Return whether a request must be signed; requests for health and metrics need not be."""
    return request.method == "POST" or (request.method == "GET" and request.path.endswith("/v1/stream"))


def _refusal(error: CommError) -> bytes:
    return http_response("401 Unauthorized", b"".join(encode(Message(to_header(error), []))), Content_Type=CONTENT_TYPE)


def _mappings(limits: Limits) -> shared_memory.Mappings:
    return shared_memory.Mappings(limits.in_flight)


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
