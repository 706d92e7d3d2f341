"""The channel between a pool of workers and one of them: calls in both directions, as lines of JSON."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from flowmx.serve.replies import Refusal

__all__ = ["Channel", "ChannelClosed", "Method"]

_log = logging.getLogger("flowmx.serve")
_MAX_LINE = 1 << 24
"""Maximum length of a line in bytes; metrics are the longest."""

Method = Callable[..., Awaitable[Any]]


class ChannelClosed(Exception):
    """The process at the other end has ended."""


class Channel:
    """One end of a channel.

    Args:
        reader: what the other end sends.
        writer: what it receives.
        methods: the coroutine functions that the other end may call, by name.

    Attributes:
        methods: as passed.
        closed: a task that completes when the other end has closed the channel.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, methods: Mapping[str, Method]
    ) -> None:
        self._reader, self._writer, self.methods = reader, writer, methods
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = asyncio.ensure_future(self._read())

    @classmethod
    async def open(cls, sock: socket.socket, methods: Mapping[str, Method]) -> Self:
        """Return the channel over a connected socket."""
        return cls(*await asyncio.open_connection(sock=sock, limit=_MAX_LINE), methods)

    async def call(self, method: str, **arguments: Any) -> Any:
        """Call a method of the other end, and return its result.

        Raises:
            Refusal: the method refused.
            ChannelClosed: the other end has closed the channel.
        """
        if self.closed.done():
            raise ChannelClosed
        number = next(self._numbers)
        future = self._calls[number] = asyncio.get_running_loop().create_future()
        self._send({"call": number, "method": method, "arguments": arguments})
        try:
            return await future
        finally:
            self._calls.pop(number, None)

    async def close(self) -> None:
        """Close the channel."""
        self.closed.cancel()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _send(self, message: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                message = json.loads(line)
                if "call" in message:
                    task = asyncio.create_task(self._answer(message))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                else:
                    self._resolve(message)
        except (ConnectionError, ValueError):  # the other end has ended, possibly within a line
            pass
        finally:
            for future in self._calls.values():
                if not future.done():
                    future.set_exception(ChannelClosed())

    async def _answer(self, message: Mapping[str, Any]) -> None:
        reply: dict[str, object] = {"answer": message["call"]}
        try:
            reply["result"] = await self.methods[message["method"]](**message["arguments"])
        except Refusal as refusal:
            reply["refusal"] = [refusal.reply.status, str(refusal)]
        except ChannelClosed:
            reply["refusal"] = [503, "a worker has ended"]
        except Exception as error:  # without an answer, the caller would wait for ever
            _log.exception("calling %s failed", message["method"])
            reply["refusal"] = [500, f"{message['method']} failed: {type(error).__name__}: {error}"]
        self._send(reply)

    def _resolve(self, message: Mapping[str, Any]) -> None:
        """Complete the future of a call."""
        future = self._calls.get(message["answer"])
        if future is None or future.done():
            return
        if "refusal" in message:
            future.set_exception(Refusal(*message["refusal"]))
        else:
            future.set_result(message.get("result"))
