"""The end of a stream that answers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any

from aiohttp import hdrs, web

from flowmx.comm import errors, websocket
from flowmx.comm.admission import Admitted
from flowmx.comm.errors import CommError, PeerGone, Unauthorized, Unknown, WireError
from flowmx.comm.exchange import Caller, Copies, Exchange, Operation, admit, process_of
from flowmx.comm.frames import Message, encode
from flowmx.comm.gate import Phase
from flowmx.comm.local import PeerProcess
from flowmx.comm.offload import LARGE, copy, offload
from flowmx.comm.security import Proof, check_digest, digest_of
from flowmx.comm.stream import ANSWER, CALL, CANCEL, NONCE, PART, PREFIX, PROTOCOL, Piece, Seals, Stream
from flowmx.comm.transfer import slices

if TYPE_CHECKING:
    from flowmx.comm.server import Service

__all__ = ["serve_stream"]

TOGETHER = 256 << 10
"""Bytes up to which an answer is one message."""


async def serve_stream(service: Service, request: web.Request, note: Callable[[Phase], None]) -> web.StreamResponse:
    """Open a stream, and answer what comes over it until it ends.

    Args:
        service: that is asked for it.
        request: as aiohttp has it: the handshake of a WebSocket.
        note: told what its connection does.

    Raises:
        CommError: the request is none for a stream, or is not let in.
    """
    process = process_of(request)
    proof = admit(service, request, process)
    if proof is not None:
        check_digest(proof.digest, digest_of([]))
    peer = proof.node if proof is not None else f"process {process.pid}" if process else request.remote or ""
    with service.admission.enter(peer):
        response = _handshake(request)
    seals = None
    if proof is not None and service.security is not None:
        nonces = proof.nonce, secrets.token_hex(16)
        response.headers[NONCE] = nonces[1]
        seals = Seals(service.security, "service", nonces), Seals(service.security, "client", nonces)
    await response.prepare(request)
    if request.transport is None or request.transport.is_closing():
        return response
    stream = Incoming(service, request, proof, process, seals, note)
    try:
        await stream.ended
    finally:
        await stream.stop()
    return response


def _handshake(request: web.Request) -> web.StreamResponse:
    """The answer that makes a connection a stream.

    Raises:
        WireError: this is not what was asked for.
    """
    headers = request.headers
    key = headers.get(hdrs.SEC_WEBSOCKET_KEY, "")
    offered = [each.strip() for each in headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").split(",")]
    if (
        headers.get(hdrs.UPGRADE, "").lower() != "websocket"
        or headers.get(hdrs.SEC_WEBSOCKET_VERSION) != "13"
        or PROTOCOL not in offered
        or not 0 < len(key) <= 64
        or request.body_exists
    ):
        raise WireError(f"a stream is a WebSocket of version 13 with the subprotocol {PROTOCOL}")
    response = web.StreamResponse(
        status=101,
        headers={
            hdrs.UPGRADE: "websocket",
            hdrs.CONNECTION: "upgrade",
            hdrs.SEC_WEBSOCKET_ACCEPT: websocket.accept(key),
            hdrs.SEC_WEBSOCKET_PROTOCOL: PROTOCOL,
        },
    )
    response.force_close()
    return response


class Incoming(Stream):
    """A stream from a client.

    Args:
        service: that answers.
        request: that opened it.
        proof: what its signature proves.
        process: that it comes from, where that is one of this user on this machine.
        seals: of both ways, where there is a secret.
        note: told what the connection does.
    """

    def __init__(
        self, service: Service, request: web.Request, proof: Proof | None, process: PeerProcess | None,
        seals: tuple[Seals, Seals] | None, note: Callable[[Phase], None],
    ) -> None:  # fmt: skip
        super().__init__(request.transport, service.limits, is_client=False, seals=seals)
        self.service = service
        self.caller = Caller("", proof.node if proof else "", request.remote or "", bool(process))
        self.process = process
        self.is_signed = proof is not None
        self.transport = request.transport
        self._note = note
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._used = self._loop.time()
        note(Phase.WAITING)
        self._watch = self._loop.call_later(service.limits.keep_alive, self._close_idle)

    def received(self, message: memoryview) -> None:
        if len(message) < PREFIX.size:
            raise WireError(f"a message of a stream has at least {PREFIX.size} bytes")
        kind, number = PREFIX.unpack_from(message)
        if kind == CANCEL:
            self._cancel(number)
        elif kind == CALL:
            self._take(number, message[PREFIX.size :])
        else:
            raise WireError(f"a client sends no messages of kind {kind}")

    def _take(self, number: int, rest: memoryview) -> None:
        size = rest[0] + 1 if rest else 1
        if len(rest) < size or not rest[1:size].tobytes().isascii():
            raise WireError("a call of a stream begins with the length of its operation's name, and that in ASCII")
        if number in self._tasks:
            raise WireError(f"call {number} of the stream is under way already")
        self._used = self._loop.time()
        Streamed(self, number, rest[1:size].tobytes().decode("ascii"), rest[size:]).begin()
        if not self._tasks:
            self._note(Phase.WAITING)

    def keep(self, number: int, work: Coroutine[Any, Any, None], after: Callable[[], object]) -> None:
        """Let the rest of a call be done in a task, which ends with the stream."""
        self._note(Phase.WORKING)
        task = self._tasks[number] = self._loop.create_task(work)

        def done(task: asyncio.Task[None]) -> None:
            after()
            del self._tasks[number]
            self._used = self._loop.time()
            if not self._tasks:
                self._note(Phase.WAITING)

        task.add_done_callback(done)

    async def stop(self) -> None:
        """End the stream, and the calls that are under way."""
        self.close()
        self._end(PeerGone("the service closed it"))
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._transport.pause_reading()  # who does not take answers asks for no more

    def resume_writing(self) -> None:
        if self._room is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        super().resume_writing()

    def lost(self, error: CommError) -> None:
        self._watch.cancel()
        for number in self._tasks:
            self._cancel(number)

    def _cancel(self, number: int) -> None:
        """End a call after the first step of its task: what a handler has begun at once it ends there."""
        if (task := self._tasks.get(number)) is not None:
            self._loop.call_soon(task.cancel)

    def _close_idle(self) -> None:
        left = self._used + self._limits.keep_alive - self._loop.time()
        if left <= 0 and not self._tasks:
            self.close()
        else:
            self._watch = self._loop.call_later(max(left, 1.0), self._close_idle)


class Streamed(Exchange):
    """A call that came over a stream; it is answered in the same turn of the loop where nothing takes longer.

    Args:
        stream: that it came over.
        number: of the call.
        name: of the operation.
        frame: of the request.
    """

    def __init__(self, stream: Incoming, number: int, name: str, frame: memoryview) -> None:
        known = stream.caller
        caller = Caller(name, known.node, known.remote, known.local)
        super().__init__(stream.service, caller, stream.process, stream.is_signed)
        self._stream = stream
        self._number = number
        self._frame = frame
        self._begun = perf_counter()
        self._held = ExitStack()
        self._found: Awaitable[Message] | None = None
        self._result = "broken"

    def begin(self) -> None:
        """Answer, or leave what takes longer to a task."""
        rest = self._begin()
        if rest is None:
            self._end()
        else:
            self._stream.keep(self._number, rest, self._end)

    def _begin(self) -> Coroutine[Any, Any, None] | None:
        try:
            entry = self._held.enter_context(self._service.admission.enter(self._peer))
            operation = self._service.find(self._caller.operation)
            message, copies = self._received(operation, entry)
            if copies.nbytes >= LARGE:
                return self._finish(operation, message, copies)
            copy(copies.pairs)
            found = self._call(operation, message)
            if not isinstance(found, Message):
                self._found = found
                return self._finish(operation, message)
            return self._answer(found)
        except Exception as error:
            return self._refuse(self._explain(error))

    def _received(self, operation: Operation, entry: Admitted) -> tuple[Message, Copies]:
        parser = self._parser(operation, entry)
        try:
            parser.feed(self._frame)
        except CommError:
            raise
        except Exception as error:
            raise self._explain(error) from None
        message = parser.finish()
        tensors, copies = self._shared(operation, parser, entry)
        message.tensors.extend(tensors)
        return message, copies

    async def _finish(self, operation: Operation, message: Message, copies: Copies | None = None) -> None:
        try:
            if copies is not None:
                await offload(copies.nbytes, copy, copies.pairs)
            answer = await self._answered(self._found or self._call(operation, message))
            rest = self._answer(answer)
        except Exception as error:
            rest = self._refuse(self._explain(error))
        if rest is not None:
            await rest

    def _answer(self, message: Message) -> Coroutine[Any, Any, None] | None:
        """Send an answer; returns what does it where that takes longer."""
        parts, _, copies = self._packed(message)
        if copies.nbytes >= LARGE or sum(map(len, parts)) >= TOGETHER:
            return self._send_long(parts, copies)
        copy(copies.pairs)
        self._finished(parts)
        return None

    async def _send_long(self, parts: list[Piece], copies: Copies) -> None:
        await offload(copies.nbytes, copy, copies.pairs)
        last: Piece | None = None
        for piece in slices(parts):
            if last is not None:
                self._stream.send(PREFIX.pack(PART, self._number), last)
                await self._stream.drained()
            last = piece
        self._finished([] if last is None else [last])

    def _finished(self, parts: list[Piece]) -> None:
        self._stream.send(PREFIX.pack(ANSWER, self._number), *parts)
        self._service.gate.prove(self._stream.transport)
        self._result = "ok"

    def _refuse(self, error: CommError) -> Coroutine[Any, Any, None] | None:
        self._result = error.kind
        is_strange = isinstance(error, WireError | Unauthorized | Unknown)
        seconds = self._service.gate.wait_of(self._stream.transport) if is_strange else 0.0
        if not seconds:
            self._say(error)
            return None
        return self._refuse_in_turn(error, seconds)

    async def _refuse_in_turn(self, error: CommError, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._say(error)

    def _say(self, error: CommError) -> None:
        self._stream.send(PREFIX.pack(ANSWER, self._number), *encode(Message(errors.to_header(error), [])))

    def _end(self) -> None:
        self._held.close()
        name = self._caller.operation
        self._service.observe(name, self._result, perf_counter() - self._begun, len(self._frame))
