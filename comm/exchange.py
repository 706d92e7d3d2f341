"""One request and its answer, on the side of the service: what all have in common, and those that come by POST."""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import hdrs, web

from flowmx.comm import errors, local
from flowmx.comm.admission import Admitted
from flowmx.comm.errors import CommError, Failed, MediaTypeError, Refused, Unauthorized, Unknown, WireError
from flowmx.comm.frames import Message, Parser, Tensor, check, destinations, encode, pack
from flowmx.comm.gate import Phase
from flowmx.comm.headers import Spec, check_common
from flowmx.comm.offload import copy, offload
from flowmx.comm.security import ANSWER, Proof, host_of, is_loopback
from flowmx.comm.transfer import CONTENT_TYPE, digest, receive, send

if TYPE_CHECKING:
    from flowmx.comm.server import Service

__all__ = ["Caller", "Exchange", "Handler", "Operation", "Place", "Posted", "admit", "process_of"]

log = logging.getLogger("flowmx.comm")
WHOLE = 64 << 10  # bytes below which an answer is written in one piece
LONGEST = 500


@dataclass(frozen=True)
class Caller:
    """The caller of an operation.

    Attributes:
        operation: its name.
        node: the caller's node: proven where requests are signed, and otherwise as the caller states it.
        remote: its address.
        local: whether it is a process of this user on this machine, connected by unix socket.
        id: of the call: a call that is made again has the same.
        incarnation: which life of the node this is.
    """

    operation: str
    node: str = ""
    remote: str = ""
    local: bool = False
    id: str = ""
    incarnation: int = 0


Handler = Callable[[Caller, Message], "Message | Awaitable[Message]"]
Place = Callable[[Caller, dict[str, Any]], Sequence["memoryview | None"]]


class Operation(NamedTuple):
    """One operation of a service: its handler, and where it wants tensors received."""

    handler: Handler
    place: Place | None = None
    borrow: bool = False


class Exchange:
    """One request: what its caller is, what it brings, what its handler makes of it.

    Args:
        service: that was asked.
        caller: as far as it is known before the header is.
        process: that it comes from, where that is one of this user on this machine.
        signed: whether the caller's node is proven.
    """

    def __init__(self, service: Service, caller: Caller, process: local.PeerProcess | None, signed: bool) -> None:
        self._service = service
        self._caller = caller
        self._process = process
        self._signed = signed
        self._memory: memoryview | None = None  # the segment that came with the request
        self._room = (0, 0)

    @property
    def _peer(self) -> str:
        """The peer whose requests are counted together."""
        return self._caller.node or (f"process {self._process.pid}" if self._process else self._caller.remote)

    def _parser(self, operation: Operation, entry: Admitted) -> Parser:
        """A parser of the request, which puts tensors where the operation wants them."""

        def place(header: dict[str, Any], specs: Sequence[Spec]) -> Sequence[memoryview | None]:
            entry.announce(sum(spec.nbytes for spec in specs))
            self._know(header)
            return operation.place(self._caller, header) if operation.place is not None else ()

        return Parser(self._service.limits, place)

    def _shared(self, operation: Operation, parser: Parser, entry: Admitted) -> tuple[list[Tensor], Copies]:
        """The tensors of a request that lie in shared memory, and what is to be copied for them to be there."""
        header, specs = parser.header, parser.specs
        if header is None or "shared" not in header:
            return [], Copies(0, [])
        if self._process is None:
            raise local.NotLocal("shared memory is for processes of one user on one machine, by unix socket")
        self._know(header)
        self._memory = self._service.mappings.get(self._process, header["shared"])
        self._room = _room(header["shared"], len(self._memory))
        found = local.views(specs, self._memory)
        if operation.borrow:
            return [tensor._replace(data=tensor.data.toreadonly()) for tensor in found], Copies(0, [])
        total = sum(spec.nbytes for spec in specs)
        entry.announce(total)
        try:
            places = operation.place(self._caller, header) if operation.place is not None else ()
        except Exception as error:
            raise self._explain(error) from None
        targets = destinations(specs, places)
        pairs = [(target, tensor.data) for target, tensor in zip(targets, found, strict=True)]
        return [tensor._replace(data=target) for target, tensor in zip(targets, found, strict=True)], Copies(
            total, pairs
        )

    def _know(self, header: dict[str, Any]) -> None:
        """Complete the caller from the header."""
        check_common(header)
        node = header.get("node", self._caller.node)
        if self._signed and node != self._caller.node:
            raise Unauthorized(f"the header says that this is node {node!r}, and the signature is of another")
        known = self._caller
        self._caller = Caller(
            known.operation, node, known.remote, known.local, header.get("id", ""), header.get("incarnation", 0)
        )

    def _call(self, operation: Operation, message: Message) -> Message | Awaitable[Message]:
        """The handler's answer; it may take a while."""
        try:
            return operation.handler(self._caller, message)
        except Exception as error:
            raise self._explain(error) from None

    async def _answered(self, found: Message | Awaitable[Message]) -> Message:
        """The answer that a handler comes to."""
        if isinstance(found, Message):
            return found
        try:
            given: object = found  # the service's own code may be wrong
            answer = await given if inspect.isawaitable(given) else given
            if not isinstance(answer, Message):
                raise TypeError(f"a handler must return a Message, and returned {answer!r:.80}")
            return answer
        except Exception as error:
            raise self._explain(error) from None

    def _explain(self, error: Exception) -> CommError:
        """Convert an exception of the service's code to the error that the caller gets, without its traceback."""
        if isinstance(error, CommError):
            return error
        text = str(error).partition("\n")[0][:LONGEST]
        if isinstance(error, ValueError):
            return Refused(text)
        where = f"operation {self._caller.operation!r} on {self._service.name}"
        log.error("%s failed, called by %s", where, self._caller.node or self._caller.remote, exc_info=error)
        return Failed(f"{where} failed: {type(error).__name__}: {text}")

    def _packed(self, message: Message) -> tuple[list[bytes | memoryview], list[memoryview], Copies]:
        """The parts of the answer's frame, and the tensors in it; those that have room there go to shared memory."""
        tensors = [tensor.bytes() for tensor in message.tensors]
        start, size = self._room
        offsets, end = local.lay_out([len(data) for data in tensors], start)
        if self._memory is None or not tensors or end > start + size:
            return encode(message), tensors, Copies(0, [])
        check(message)
        pairs = [(self._memory[at : at + len(data)], data) for at, data in zip(offsets, tensors, strict=True)]
        shared = {"shared": True, "tensors": local.described(message.tensors, offsets)}
        return [pack({**message.header, **shared})], [], Copies(end - start, pairs)


class Copies(NamedTuple):
    """Copies to or from shared memory: how many bytes, and the pairs of target and source."""

    nbytes: int
    pairs: list[tuple[memoryview, memoryview]]


class Posted(Exchange):
    """A request that came by POST: receive it, call its handler, send the answer.

    Args:
        service: that was asked.
        request: as aiohttp has it.
        note: told when it is received.
    """

    def __init__(self, service: Service, request: web.Request, note: Callable[[Phase], None]) -> None:
        process = process_of(request)
        name = request.match_info.get("operation", "")
        caller = Caller(name, remote=request.remote or "", local=bool(process))
        super().__init__(service, caller, process, signed=False)
        self._note = note
        self._request = request
        self._proof: Proof | None = None

    async def answer(self) -> tuple[web.StreamResponse, str]:
        """Send the answer, or the refusal; returns it, and "ok" or the kind of the error."""
        try:
            message = await self._handle()
            parts, tensors, copies = self._packed(message)
            await offload(copies.nbytes, copy, copies.pairs)
        except CommError as error:
            return await self.refuse(error), error.kind
        self._service.gate.prove(self._request.transport)
        return await self._send(200, parts, tensors), "ok"

    async def _handle(self) -> Message:
        if self._request.content_type != CONTENT_TYPE or hdrs.CONTENT_ENCODING in self._request.headers:
            raise MediaTypeError(f"a body must be {CONTENT_TYPE}, in no further encoding")
        self._proof = admit(self._service, self._request, self._process)
        if self._proof is not None:
            self._signed, self._caller = True, replace(self._caller, node=self._proof.node)
        with self._service.admission.enter(self._peer) as entry:
            operation = self._service.find(self._caller.operation)
            message = await self._receive(operation, entry)
            return await self._answered(self._call(operation, message))

    async def _receive(self, operation: Operation, entry: Admitted) -> Message:
        limits = self._service.limits
        if (self._request.content_length or 0) > limits.total:
            raise errors.TooLarge(
                f"the body has {self._request.content_length} bytes; at most {limits.total} are allowed (Limits.total)"
            )
        parser = self._parser(operation, entry)
        try:
            await receive(self._request.content, parser, limits, self._proof.digest if self._proof else None)
        except CommError:
            raise
        except web.RequestPayloadError as error:
            raise WireError(f"the body is not what its HTTP headers say: {error}") from None
        except Exception as error:
            raise self._explain(error) from None
        message = parser.finish()
        self._note(Phase.WORKING)
        tensors, copies = self._shared(operation, parser, entry)
        await offload(copies.nbytes, copy, copies.pairs)
        message.tensors.extend(tensors)
        return message

    async def refuse(self, error: CommError) -> web.StreamResponse:
        """Send a refusal."""
        if isinstance(error, WireError | Unauthorized | Unknown):
            await asyncio.sleep(self._service.gate.wait_of(self._request.transport))
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
            headers[ANSWER] = self._service.security.sign_answer(self._proof.nonce, status, signed)
        total = sum(len(part) for part in parts)
        if total < WHOLE:
            return web.Response(status=status, headers=headers, body=b"".join(parts))
        response = web.StreamResponse(status=status, headers=headers)
        response.content_length = total
        await response.prepare(self._request)
        await send(response.write, parts, self._service.limits)
        await response.write_eof()
        return response


def admit(service: Service, request: web.Request, process: local.PeerProcess | None) -> Proof | None:
    """Check that a caller may be here, before anything of its body is read; returns what its signature proves.

    Raises:
        Unauthorized: it may not.
        Busy: it is too early to tell.
    """
    security = service.security
    if security is None:
        _check_loopback(request, process)
        return None
    if security.signs:
        proof = security.check_request(request.method, request.rel_url.raw_path, request.headers)
        service.gate.prove(request.transport)
        return proof
    if not process and not _has_certificate(request):
        raise Unauthorized("this service takes connections by TLS, with a certificate of its authority")
    return None


def _check_loopback(request: web.Request, process: local.PeerProcess | None) -> None:
    # The host's name is looked at because of web pages: theirs may lead to a loopback address (DNS rebinding).
    if process or (is_loopback(request.remote or "") and is_loopback(host_of(request.host))):
        return
    raise Unauthorized(
        f"this service has no secret, and so answers only this machine; the request came from "
        f"{request.remote or 'another user'} for {request.host}"
    )


def process_of(request: web.Request) -> local.PeerProcess | None:
    """The process that a request comes from, if it is one of this user and connected by unix socket."""
    sock = request.transport.get_extra_info("socket") if request.transport is not None else None
    if not local.AVAILABLE or sock is None or sock.family != socket.AF_UNIX:
        return None
    peer = local.peer_of(sock)
    return peer if peer.uid == local.own_uid() and peer.pid > 0 else None


def _has_certificate(request: web.Request) -> bool:
    return request.transport is not None and bool(request.transport.get_extra_info("peercert"))


def _room(shared: list[Any], size: int) -> tuple[int, int]:
    """Parse the part of the segment that the answer's tensors may use: its start and its size, in bytes."""
    room = shared[3:]
    if not room:
        return 0, 0
    if len(room) != 2 or not all(type(number) is int and 0 <= number <= size for number in room) or sum(room) > size:
        raise WireError(f"the room for the answer is {room}, and the shared memory has {size} bytes")
    return room[0], room[1]
