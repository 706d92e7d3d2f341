"""The values of a request's body, parsed while the body arrives."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any

import msgpack

from flowmx.comm.admission import AdmittedRequest
from flowmx.comm.limits import Limits
from flowmx.comm.offload import LARGE, offload
from flowmx.comm.transfer import TransferWatchdog
from flowmx.serve.bodies import too_large
from flowmx.serve.errors import InvalidInput
from flowmx.serve.formats import Format
from flowmx.serve.sessions.messages import MSGPACK
from flowmx.serve.tasks import cancel_and_wait

__all__ = ["BodyValues"]


class BodyValues:
    """The values of a body: several of msgpack, one after another, or one of another format.

    The body is read only while no complete value is left, so that a client who sends ahead of the reader has to wait.
    Between two values it may pause; within a value, the limits on the speed of a transfer apply.

    Args:
        chunks: the body.
        form: its format.
        limit: the maximum size of a value in bytes.
        limits: limits on the speed of the transfer.
        entry: counts the bytes that are not parsed yet.
    """

    def __init__(
        self, chunks: AsyncIterable[bytes], form: Format, limit: int, limits: Limits, entry: AdmittedRequest
    ) -> None:
        self._chunks, self._form, self._limit, self._limits, self._entry = aiter(chunks), form, limit, limits, entry
        self._buffer, self._splitter = bytearray(), _Splitter() if form is MSGPACK else None
        self._count = 0
        self._stopped = asyncio.get_running_loop().create_future()
        self._reason: Exception | None = None

    def stop(self, reason: Exception) -> None:
        """Read no further: the iteration raises an error where it would wait for the client."""
        if not self._stopped.done():
            self._reason = reason
            self._stopped.set_result(None)

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        """Yield the values.

        Raises:
            InvalidInput: a value is malformed.
            Refusal: a value is too large.
            CommError: the client sends too slowly, or too much is being received.
        """
        while (body := await self._next()) is not None:
            self._count += 1
            value = await offload(0 if self._form.is_quick(body) else LARGE, self._form.read, body)
            self._entry.release(len(body))
            yield value

    async def _next(self) -> bytes | None:
        """Return the bytes of the next value; None after the last."""
        if self._count and not self._buffer:
            await self._read()
        size = self._size()
        if size is None:
            size = await self._receive()
        if self._count and not size:
            return None
        body = bytes(self._buffer[:size])
        del self._buffer[:size]
        return body

    async def _receive(self) -> int:
        """Receive the rest of a value, or of the body; return its size."""
        async with TransferWatchdog(self._limits, "the client") as watchdog:
            is_first = True
            while (size := self._size()) is None:
                received = await self._read()
                if not received:
                    return len(self._buffer)
                watchdog.record(received)
                if is_first:
                    self._form.scan(bytes(self._buffer))  # most excessive values exceed the bounds at their beginning
                    is_first = False
        return size

    def _size(self) -> int | None:
        """Return the size of the first value; None while it is incomplete."""
        size = None if self._splitter is None else self._splitter.size()
        if (len(self._buffer) if size is None else size) > self._limit:
            raise too_large(len(self._buffer) if size is None else size, self._limit)
        return size

    async def _read(self) -> int:
        """Append the next chunk to the buffer; return its size, 0 at the end of the body."""
        reading = asyncio.ensure_future(self._chunk())
        try:
            await asyncio.wait({reading, self._stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not reading.done():
                await cancel_and_wait([reading])
        if reading.cancelled():
            assert self._reason is not None
            raise self._reason
        chunk = reading.result()
        self._entry.announce(len(chunk))
        self._buffer += chunk
        if self._splitter is not None:
            self._splitter.feed(chunk)
        return len(chunk)

    async def _chunk(self) -> bytes:
        async for chunk in self._chunks:
            if chunk:
                return chunk
        return b""


class _Splitter:
    """The sizes of msgpack values in a stream of bytes. It builds nothing, and reads each byte once."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(max_buffer_size=0)
        self._sizes: deque[int] = deque()
        self._end = 0
        self._error: Exception | None = None

    def feed(self, chunk: bytes) -> None:
        """Read more bytes."""
        self._unpacker.feed(chunk)
        try:
            while True:
                self._unpacker.skip()
                end = self._unpacker.tell()
                self._sizes.append(end - self._end)
                self._end = end
        except msgpack.OutOfData:
            pass
        except (ValueError, RecursionError, msgpack.UnpackException) as error:
            self._error = error

    def size(self) -> int | None:
        """Remove and return the size of the next complete value; None without one.

        Raises:
            InvalidInput: the bytes after the last complete value are not msgpack.
        """
        if self._sizes:
            return self._sizes.popleft()
        if self._error is not None:
            raise InvalidInput(f"the body is not valid msgpack: {type(self._error).__name__}: {self._error}")
        return None
