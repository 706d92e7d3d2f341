"""One request to a service and its response: the common parts, and requests by POST."""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import hdrs, web

from flowmx.comm import errors, shared_memory
from flowmx.comm.admission import AdmittedRequest
from flowmx.comm.browser_origins import is_cross_site
from flowmx.comm.connections import Phase
from flowmx.comm.errors import CommError, CrossSite, Failed, MediaTypeError, Refused, Unauthorized, Unknown, WireError
from flowmx.comm.frames import Message, Parser, Tensor, check, destinations, encode, pack
from flowmx.comm.headers import Spec, check_common
from flowmx.comm.offload import copy, offload
from flowmx.comm.security import ANSWER, Proof, host_of, is_loopback
from flowmx.comm.shared_memory import NotLocal, PeerProcess
from flowmx.comm.transfer import CONTENT_TYPE, digest, receive, send

if TYPE_CHECKING:
    from flowmx.comm.server import Service

__all__ = ["Caller", "Exchange", "FindDestinations", "Handler", "Operation", "PostedCall", "admit", "process_of"]

log = logging.getLogger("flowmx.comm")
SINGLE_WRITE = 64 << 10  # responses with fewer bytes are written at once
MAX_TEXT = 500


@dataclass(frozen=True)
class Caller:
    """The caller of an operation.

    Attributes:
        operation: its name.
        node: the caller's node; verified if requests are signed, otherwise taken from the header.
        remote: the caller's address.
        local: whether the caller is a process of this user on this machine, connected by unix socket.
        id: the id of the call; a repeated call has the same.
        incarnation: the number of this start of the node; it grows with each start.
    """

    operation: str
    node: str = ""
    remote: str = ""
    local: bool = False
    id: str = ""
    incarnation: int = 0


Handler = Callable[[Caller, Message], "Message | Awaitable[Message]"]
FindDestinations = Callable[[Caller, dict[str, Any]], Sequence["memoryview | None"]]


class Operation(NamedTuple):
    """One operation of a service: its handler, and the buffers for the tensors that it receives."""

    handler: Handler
    find_destinations: FindDestinations | None = None
    borrow: bool = False


class Exchange:
    """One request: its caller, its tensors, and the handler's response.

    Args:
        service: the service that handles it.
        caller: the caller, without the fields that the header adds.
        process: the caller's process, if it is one of this user on this machine.
        signed: whether the caller's node is verified.
    """

    def __init__(self, service: Service, caller: Caller, process: PeerProcess | None, signed: bool) -> None:
        self._service = service
        self._caller = caller
        self._process = process
        self._signed = signed
        self._memory: memoryview | None = None  # the request's segment
        self._response_space = (0, 0)

    @property
    def _peer(self) -> str:
        """The name under which the caller's requests are counted."""
        return self._caller.node or (f"process {self._process.pid}" if self._process else self._caller.remote)

    def _parser(self, operation: Operation, admitted: AdmittedRequest) -> Parser:
        """Return a parser of the request, which writes tensors to the operation's buffers."""

        def find_destinations(header: dict[str, Any], specs: Sequence[Spec]) -> Sequence[memoryview | None]:
            admitted.announce(sum(spec.nbytes for spec in specs))
            self._identify_caller(header)
            return self._destinations(operation, header)

        return Parser(self._service.limits, find_destinations)

    def _shared_tensors(
        self, operation: Operation, parser: Parser, admitted: AdmittedRequest
    ) -> tuple[list[Tensor], Copies]:
        """Return the tensors of a request in shared memory, and the copies that move them to their destinations."""
        header, specs = parser.header, parser.specs
        if header is None or "shared" not in header:
            return [], Copies(0, [])
        if self._process is None:
            raise NotLocal("shared memory needs a unix socket between processes of one user on one machine")
        self._identify_caller(header)
        self._memory = self._service.mappings.get(self._process, header["shared"])
        self._response_space = _response_space(header["shared"], len(self._memory))
        tensors = shared_memory.views(specs, self._memory)
        if operation.borrow:
            return [tensor._replace(data=tensor.data.toreadonly()) for tensor in tensors], Copies(0, [])
        total = sum(spec.nbytes for spec in specs)
        admitted.announce(total)
        try:
            buffers = self._destinations(operation, header)
        except Exception as error:  # handlers may raise anything
            raise self._to_comm_error(error) from None
        targets = destinations(specs, buffers)
        pairs = [(target, tensor.data) for target, tensor in zip(targets, tensors, strict=True)]
        return [tensor._replace(data=target) for target, tensor in zip(targets, tensors, strict=True)], Copies(
            total, pairs
        )

    def _destinations(self, operation: Operation, header: dict[str, Any]) -> Sequence[memoryview | None]:
        find = operation.find_destinations
        return () if find is None else find(self._caller, header)

    def _identify_caller(self, header: dict[str, Any]) -> None:
        """Set the caller from the header.

        Raises:
            Unauthorized: the header and the signature name different nodes.
        """
        check_common(header)
        node = header.get("node", self._caller.node)
        if self._signed and node != self._caller.node:
            raise Unauthorized(f"the header names node {node!r}, but another node signed the request")
        caller = self._caller
        self._caller = Caller(
            caller.operation, node, caller.remote, caller.local, header.get("id", ""), header.get("incarnation", 0)
        )

    def _call(self, operation: Operation, message: Message) -> Message | Awaitable[Message]:
        """Call the handler; return its response, or an awaitable of it."""
        try:
            return operation.handler(self._caller, message)
        except Exception as error:  # handlers may raise anything
            raise self._to_comm_error(error) from None

    async def _await_response(self, result: Message | Awaitable[Message]) -> Message:
        """Return a handler's response."""
        if isinstance(result, Message):
            return result
        try:
            value: object = result  # a faulty handler may return any type
            if inspect.isawaitable(value):
                value = await value
            if not isinstance(value, Message):
                raise TypeError(f"a handler must return a Message, not {value!r:.80}")
            return value
        except Exception as error:  # handlers may raise anything
            raise self._to_comm_error(error) from None

    def _to_comm_error(self, error: Exception) -> CommError:
        """Convert an exception of the service's code to the caller's error, without its traceback."""
        if isinstance(error, CommError):
            return error
        text = str(error).partition("\n")[0][:MAX_TEXT]
        if isinstance(error, ValueError):
            return Refused(text)
        where = f"operation {self._caller.operation!r} on {self._service.name}"
        log.error("%s failed, called by %s", where, self._caller.node or self._caller.remote, exc_info=error)
        return Failed(f"{where} failed: {type(error).__name__}: {text}")

    def _pack(self, message: Message) -> tuple[list[bytes | memoryview], list[memoryview], Copies]:
        """Return the parts of the response's frame, its tensors, and copies to shared memory if they fit there."""
        tensors = [tensor.bytes() for tensor in message.tensors]
        start, size = self._response_space
        offsets, end = shared_memory.lay_out([len(data) for data in tensors], start)
        if self._memory is None or not tensors or end > start + size:
            return encode(message), tensors, Copies(0, [])
        check(message)
        pairs = [(self._memory[at : at + len(data)], data) for at, data in zip(offsets, tensors, strict=True)]
        shared = {"shared": True, "tensors": shared_memory.describe(message.tensors, offsets)}
        return [pack({**message.header, **shared})], [], Copies(end - start, pairs)


class Copies(NamedTuple):
    """Copies to or from shared memory: the total size in bytes, and pairs of target and source."""

    nbytes: int
    pairs: list[tuple[memoryview, memoryview]]


class PostedCall(Exchange):
    """A request by POST: receive it, call its handler, send the response.

    Args:
        service: the service that handles it.
        request: aiohttp's request.
        set_phase: sets the phase of the connection.
    """

    def __init__(self, service: Service, request: web.Request, set_phase: Callable[[Phase], None]) -> None:
        process = process_of(request)
        name = request.match_info.get("operation", "")
        caller = Caller(name, remote=request.remote or "", local=bool(process))
        super().__init__(service, caller, process, signed=False)
        self._set_phase = set_phase
        self._request = request
        self._proof: Proof | None = None

    async def respond(self) -> tuple[web.StreamResponse, str]:
        """Send the response or the refusal; return the response, and "ok" or the kind of the error."""
        try:
            message = await self._handle()
            parts, tensors, copies = self._pack(message)
            await offload(copies.nbytes, copy, copies.pairs)
        except CommError as error:
            return await self.refuse(error), error.kind
        self._service.connections.mark_authenticated(self._request.transport)
        return await self._send(200, parts, tensors), "ok"

    async def _handle(self) -> Message:
        if self._request.content_type != CONTENT_TYPE or hdrs.CONTENT_ENCODING in self._request.headers:
            raise MediaTypeError(f"a body must be {CONTENT_TYPE} without a content encoding")
        self._proof = admit(self._service, self._request, self._process)
        if self._proof is not None:
            self._signed, self._caller = True, replace(self._caller, node=self._proof.node)
        with self._service.admission.enter(self._peer) as admitted:
            operation = self._service.find(self._caller.operation)
            message = await self._receive(operation, admitted)
            return await self._await_response(self._call(operation, message))

    async def _receive(self, operation: Operation, admitted: AdmittedRequest) -> Message:
        limits = self._service.limits
        if (self._request.content_length or 0) > limits.total:
            raise errors.TooLarge(
                f"the body has {self._request.content_length} bytes; at most {limits.total} are allowed (Limits.total)"
            )
        parser = self._parser(operation, admitted)
        try:
            await receive(self._request.content, parser, limits, self._proof.digest if self._proof else None)
        except CommError:
            raise
        except web.RequestPayloadError as error:
            raise WireError(f"the body does not match its HTTP headers: {error}") from None
        except Exception as error:  # handlers may raise anything
            raise self._to_comm_error(error) from None
        message = parser.finish()
        self._set_phase(Phase.WORKING)
        tensors, copies = self._shared_tensors(operation, parser, admitted)
        await offload(copies.nbytes, copy, copies.pairs)
        message.tensors.extend(tensors)
        return message

    async def refuse(self, error: CommError) -> web.StreamResponse:
        """Send a refusal."""
        if isinstance(error, WireError | Unauthorized | Unknown | CrossSite):
            await asyncio.sleep(self._service.connections.refusal_delay(self._request.transport))
        parts = encode(Message(errors.to_header(error), []))
        response = await self._send(error.status, parts, [])
        if not self._request.content.is_eof():
            response.force_close()
        return response

    async def _send(
        self, status: int, parts: list[bytes | memoryview], tensors: list[memoryview]
    ) -> web.StreamResponse:
        headers: dict[str, str] = {hdrs.CONTENT_TYPE: CONTENT_TYPE}
        if self._proof is not None and self._service.security is not None:
            signed = await digest(bytes(parts[0]), tensors)
            headers[ANSWER] = self._service.security.sign_response(self._proof.nonce, status, signed)
        total = sum(len(part) for part in parts)
        if total < SINGLE_WRITE:
            return web.Response(status=status, headers=headers, body=b"".join(parts))
        response = web.StreamResponse(status=status, headers=headers)
        response.content_length = total
        await response.prepare(self._request)
        await send(response.write, parts, self._service.limits)
        await response.write_eof()
        return response


def admit(service: Service, request: web.Request, process: PeerProcess | None) -> Proof | None:
    """Authenticate a caller before its body is read; return the proof from its signature.

    Raises:
        Unauthorized: the caller has no access.
        CrossSite: a browser sent the request for a page of another site.
        Busy: the service has just started, and cannot detect repeated requests yet.
    """
    if is_cross_site(request.headers):
        origin = request.headers.get("Origin", "another site")[:80]
        raise CrossSite(f"a page of {origin} sent this request, but {service.name} answers only nodes of a job")
    security = service.security
    if security is None:
        _check_loopback(request, process)
        return None
    if security.has_secret:
        proof = security.check_request(request.method, request.rel_url.raw_path, request.headers)
        service.connections.mark_authenticated(request.transport)
        return proof
    if not process and not _has_certificate(request):
        raise Unauthorized("this service requires TLS with a certificate of its authority")
    return None


def _check_loopback(request: web.Request, process: PeerProcess | None) -> None:
    # The host name is checked because a web page's may resolve to a loopback address (DNS rebinding).
    if process or (is_loopback(request.remote or "") and is_loopback(host_of(request.host))):
        return
    raise Unauthorized(
        f"this service has no secret and answers only this machine; the request came from "
        f"{request.remote or 'another user'} for {request.host}"
    )


def process_of(request: web.Request) -> PeerProcess | None:
    """Return the process of a request if it is one of this user, connected by unix socket; otherwise None."""
    sock = request.transport.get_extra_info("socket") if request.transport is not None else None
    if not shared_memory.AVAILABLE or sock is None or sock.family != socket.AF_UNIX:
        return None
    peer = shared_memory.peer_of(sock)
    return peer if peer.uid == shared_memory.own_uid() and peer.pid > 0 else None


def _has_certificate(request: web.Request) -> bool:
    return request.transport is not None and bool(request.transport.get_extra_info("peercert"))


def _response_space(shared: list[Any], size: int) -> tuple[int, int]:
    """Return the start and size, in bytes, of the part of the segment that the response's tensors may use."""
    space = shared[3:]
    if not space:
        return 0, 0
    if len(space) != 2 or not all(type(number) is int and 0 <= number <= size for number in space) or sum(space) > size:
        raise WireError(f"the space for the response is {space}, but the shared memory has {size} bytes")
    return space[0], space[1]
