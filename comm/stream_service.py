"""The service's end of a stream."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any

from aiohttp import hdrs, web

from flowmx.comm import errors, websocket
from flowmx.comm.admission import AdmittedRequest
from flowmx.comm.connections import Phase
from flowmx.comm.errors import CommError, PeerGone, Unauthorized, Unknown, WireError
from flowmx.comm.exchange import Caller, Copies, Exchange, Operation, admit, process_of
from flowmx.comm.frames import Message, encode
from flowmx.comm.offload import LARGE, copy, offload
from flowmx.comm.security import Proof, check_digest, digest_of
from flowmx.comm.shared_memory import PeerProcess
from flowmx.comm.stream import ANSWER, CALL, CANCEL, NONCE, PART, PREFIX, PROTOCOL, Buffer, Stream, StreamMac
from flowmx.comm.transfer import chunks

if TYPE_CHECKING:
    from flowmx.comm.server import Service

__all__ = ["serve_stream"]

SINGLE_MESSAGE = 256 << 10
"""Responses with fewer bytes are sent as one message."""


async def serve_stream(
    service: Service, request: web.Request, set_phase: Callable[[Phase], None]
) -> web.StreamResponse:
    """Open a stream, and answer its calls until it ends.

    Args:
        service: the service.
        request: the WebSocket handshake.
        set_phase: sets the phase of the connection.

    Raises:
        CommError: the request is not a valid handshake, or is refused.
    """
    process = process_of(request)
    proof = admit(service, request, process)
    if proof is not None:
        check_digest(proof.digest, digest_of([]))
    peer = proof.node if proof is not None else f"process {process.pid}" if process else request.remote or ""
    with service.admission.enter(peer):
        response = _handshake(request)
    macs = None
    if proof is not None and service.security is not None:
        nonces = proof.nonce, secrets.token_hex(16)
        response.headers[NONCE] = nonces[1]
        macs = StreamMac(service.security, "service", nonces), StreamMac(service.security, "client", nonces)
    await response.prepare(request)
    if request.transport is None or request.transport.is_closing():
        return response
    stream = ServiceStream(service, request, proof, process, macs, set_phase)
    try:
        await stream.ended
    finally:
        await stream.stop()
    return response


def _handshake(request: web.Request) -> web.StreamResponse:
    """Return the response that turns a connection into a stream.

    Raises:
        WireError: the request is not a valid handshake.
    """
    headers = request.headers
    key = headers.get(hdrs.SEC_WEBSOCKET_KEY, "")
    subprotocols = [name.strip() for name in headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").split(",")]
    if (
        headers.get(hdrs.UPGRADE, "").lower() != "websocket"
        or headers.get(hdrs.SEC_WEBSOCKET_VERSION) != "13"
        or PROTOCOL not in subprotocols
        or not 0 < len(key) <= 64
        or request.body_exists
    ):
        raise WireError(f"a stream is a WebSocket of version 13 with the subprotocol {PROTOCOL}")
    response = web.StreamResponse(
        status=101,
        headers={
            hdrs.UPGRADE: "websocket",
            hdrs.CONNECTION: "upgrade",
            hdrs.SEC_WEBSOCKET_ACCEPT: websocket.accept_key(key),
            hdrs.SEC_WEBSOCKET_PROTOCOL: PROTOCOL,
        },
    )
    response.force_close()
    return response


class ServiceStream(Stream):
    """A stream from a client.

    Args:
        service: the service that answers.
        request: the request that opened it.
        proof: the proof from the request's signature; None if the request is not signed.
        process: the client's process, if it runs on this machine as this user.
        macs: the authentication codes of both directions, if there is a secret.
        set_phase: sets the phase of the connection.
    """

    def __init__(
        self, service: Service, request: web.Request, proof: Proof | None, process: PeerProcess | None,
        macs: tuple[StreamMac, StreamMac] | None, set_phase: Callable[[Phase], None],
    ) -> None:  # fmt: skip
        super().__init__(request.transport, service.limits, is_client=False, macs=macs)
        self.service = service
        self.caller = Caller("", proof.node if proof else "", request.remote or "", bool(process))
        self.process = process
        self.is_signed = proof is not None
        self.transport = request.transport
        self._set_phase = set_phase
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._last_use = self._loop.time()
        set_phase(Phase.WAITING)
        self._idle_timer = self._loop.call_later(service.limits.keep_alive, self._close_idle)

    def handle_message(self, message: memoryview) -> None:
        if len(message) < PREFIX.size:
            raise WireError(f"a message of a stream has at least {PREFIX.size} bytes")
        kind, number = PREFIX.unpack_from(message)
        if kind == CANCEL:
            self._cancel(number)
        elif kind == CALL:
            self._receive_call(number, message[PREFIX.size :])
        else:
            raise WireError(f"a client sends no messages of kind {kind}")

    def _receive_call(self, number: int, rest: memoryview) -> None:
        size = rest[0] + 1 if rest else 1
        if len(rest) < size or not rest[1:size].tobytes().isascii():
            raise WireError("a call of a stream begins with the length of its operation's name, and the name in ASCII")
        if number in self._tasks:
            raise WireError(f"call {number} of the stream is already in progress")
        self._last_use = self._loop.time()
        StreamedCall(self, number, rest[1:size].tobytes().decode("ascii"), rest[size:]).begin()
        if not self._tasks:
            self._set_phase(Phase.WAITING)

    def run_in_task(self, number: int, work: Coroutine[object, object, None], on_end: Callable[[], object]) -> None:
        """Run the rest of a call in a task, which is cancelled at the end of the stream."""
        self._set_phase(Phase.WORKING)
        task = self._tasks[number] = self._loop.create_task(work)

        def handle_end(task: asyncio.Task[None]) -> None:
            on_end()
            del self._tasks[number]
            self._last_use = self._loop.time()
            if not self._tasks:
                self._set_phase(Phase.WAITING)

        task.add_done_callback(handle_end)

    async def stop(self) -> None:
        """End the stream and the calls in progress."""
        self.close()
        self._end(PeerGone("the service closed the stream"))
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._transport.pause_reading()  # stop reading from a client that does not read its responses

    def resume_writing(self) -> None:
        if self._writable is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        super().resume_writing()

    def connection_ended(self, error: CommError) -> None:
        self._idle_timer.cancel()
        for number in self._tasks:
            self._cancel(number)

    def _cancel(self, number: int) -> None:
        """Cancel a call after the first step of its task, so that the handler can clean up."""
        if (task := self._tasks.get(number)) is not None:
            self._loop.call_soon(task.cancel)

    def _close_idle(self) -> None:
        remaining = self._last_use + self._limits.keep_alive - self._loop.time()
        if remaining <= 0 and not self._tasks:
            self.close()
        else:
            self._idle_timer = self._loop.call_later(max(remaining, 1.0), self._close_idle)


class StreamedCall(Exchange):
    """A call over a stream; a quick one is answered in the same iteration of the event loop.

    Args:
        stream: the stream.
        number: the number of the call.
        name: the operation's name.
        frame: the request's frame.
    """

    def __init__(self, stream: ServiceStream, number: int, name: str, frame: memoryview) -> None:
        peer = stream.caller
        caller = Caller(name, peer.node, peer.remote, peer.local)
        super().__init__(stream.service, caller, stream.process, stream.is_signed)
        self._stream = stream
        self._number = number
        self._frame = frame
        self._start_time = perf_counter()
        self._exit_stack = ExitStack()
        self._pending: Awaitable[Message] | None = None
        self._result = "broken"

    def begin(self) -> None:
        """Answer the call, or start a task that answers it."""
        rest = self._begin()
        if rest is None:
            self._end()
        else:
            self._stream.run_in_task(self._number, rest, self._end)

    def _begin(self) -> Coroutine[object, object, None] | None:
        try:
            admission = self._exit_stack.enter_context(self._service.admission.enter(self._peer))
            operation = self._service.find(self._caller.operation)
            message, copies = self._parse(operation, admission)
            if copies.nbytes >= LARGE:
                return self._finish(operation, message, copies)
            copy(copies.pairs)
            result = self._call(operation, message)
            if not isinstance(result, Message):
                self._pending = result
                return self._finish(operation, message)
            return self._respond(result)
        except Exception as error:  # handlers may raise anything
            return self._refuse(self._to_comm_error(error))

    def _parse(self, operation: Operation, admission: AdmittedRequest) -> tuple[Message, Copies]:
        parser = self._parser(operation, admission)
        try:
            parser.feed(self._frame)
        except CommError:
            raise
        except Exception as error:  # handlers may raise anything
            raise self._to_comm_error(error) from None
        message = parser.finish()
        tensors, copies = self._shared_tensors(operation, parser, admission)
        message.tensors.extend(tensors)
        return message, copies

    async def _finish(self, operation: Operation, message: Message, copies: Copies | None = None) -> None:
        try:
            if copies is not None:
                await offload(copies.nbytes, copy, copies.pairs)
            response = await self._await_response(self._pending or self._call(operation, message))
            rest = self._respond(response)
        except Exception as error:  # handlers may raise anything
            rest = self._refuse(self._to_comm_error(error))
        if rest is not None:
            await rest

    def _respond(self, message: Message) -> Coroutine[Any, Any, None] | None:
        """Send a response, or return a coroutine that sends a long one."""
        parts, _, copies = self._pack(message)
        if copies.nbytes >= LARGE or sum(map(len, parts)) >= SINGLE_MESSAGE:
            return self._send_long(parts, copies)
        copy(copies.pairs)
        self._send_last(parts)
        return None

    async def _send_long(self, parts: list[Buffer], copies: Copies) -> None:
        await offload(copies.nbytes, copy, copies.pairs)
        last: Buffer | None = None
        for chunk in chunks(parts):
            if last is not None:
                self._stream.send(PREFIX.pack(PART, self._number), last)
                await self._stream.drain()
            last = chunk
        self._send_last([] if last is None else [last])

    def _send_last(self, parts: list[Buffer]) -> None:
        self._stream.send(PREFIX.pack(ANSWER, self._number), *parts)
        self._service.connections.mark_authenticated(self._stream.transport)
        self._result = "ok"

    def _refuse(self, error: CommError) -> Coroutine[object, object, None] | None:
        self._result = error.kind
        is_throttled = isinstance(error, WireError | Unauthorized | Unknown)
        seconds = self._service.connections.refusal_delay(self._stream.transport) if is_throttled else 0.0
        if not seconds:
            self._send_refusal(error)
            return None
        return self._refuse_later(error, seconds)

    async def _refuse_later(self, error: CommError, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._send_refusal(error)

    def _send_refusal(self, error: CommError) -> None:
        self._stream.send(PREFIX.pack(ANSWER, self._number), *encode(Message(errors.to_header(error), [])))

    def _end(self) -> None:
        self._exit_stack.close()
        name = self._caller.operation
        self._service.observe(name, self._result, perf_counter() - self._start_time, len(self._frame))
