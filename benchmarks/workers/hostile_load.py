"""Hostile clients of a service: idle connections, slow heads and bodies, oversized bodies and headers.

    python hostile_load.py HOST:PORT PATH SECONDS CLIENTS

Each client goes through the attacks in turn, and opens another connection when one ends. Every second client skips
the slow attacks, and so reconnects at once. Prints JSON: the number of connections by attack, and of replies by
status.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

HEAD = "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {type}\r\nContent-Length: {size}\r\n\r\n"
JSON, MSGPACK = "application/json", "application/msgpack"
SLOW = ("idle", "slow head", "slow body")
MAX_ANSWER = 1 << 20  # bytes of a reply that are read


class Attack:
    """The hostile clients together.

    Args:
        host: the service's host and port.
        path: the path of predictions.
        seconds: the duration of the attack.
    """

    def __init__(self, host: str, path: str, seconds: float) -> None:
        self.host, self.path = host, path
        self.end = time.perf_counter() + seconds
        self.counts: Counter[str] = Counter()
        self.ways: dict[str, Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]] = {
            "idle": self.idle, "slow head": self.slow_head, "slow body": self.slow_body,
            "nested JSON": self.body(JSON, b"[" * 500_000), "empty lists": self.body(JSON, b"[" + b"[]," * 300_000),
            "empty maps": self.body(MSGPACK, b"\xdd" + struct.pack(">I", 1_000_000) + b"\x80" * 1_000_000),
            "huge header": self.huge_header, "garbage": self.garbage, "half and gone": self.half,
            "forged": self.forged,
        }  # fmt: skip

    async def client(self, first: int) -> None:
        """Attack until the time is over."""
        ways = [name for name in self.ways if first % 2 or name not in SLOW]
        for name in itertools.islice(itertools.cycle(ways), first, None):
            if time.perf_counter() >= self.end:
                return
            self.counts[name] += 1
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._connected(name)
            await asyncio.sleep(0.01)

    async def _connected(self, name: str) -> None:
        host, _, port = self.host.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            async with asyncio.timeout(max(self.end - time.perf_counter(), 0.1)):
                await self.ways[name](reader, writer)
                answer = await reader.read(MAX_ANSWER)
            self.counts[answer[9:12].decode("latin-1") if answer else "closed"] += 1
        finally:
            writer.close()

    def head(self, kind: str, size: int) -> bytes:
        """Return the head of a request with a body of ``size`` bytes."""
        return HEAD.format(path=self.path, host=self.host, type=kind, size=size).encode()

    async def idle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send nothing."""

    async def slow_head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send an endless head, a byte at a time."""
        await self._drip(writer, itertools.chain(self.head(JSON, 10)[:-2], itertools.repeat(ord("X"))))

    async def slow_body(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send a body a byte at a time."""
        writer.write(self.head(MSGPACK, 1 << 20))
        await self._drip(writer, itertools.repeat(0))

    async def _drip(self, writer: asyncio.StreamWriter, data: itertools.chain[int] | itertools.repeat[int]) -> None:
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.05)

    def body(self, kind: str, data: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        """Return an attack that sends a body."""

        async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(self.head(kind, len(data)) + data)
            await writer.drain()

        return send

    async def huge_header(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send a header of a megabyte."""
        writer.write(f"GET {self.path} HTTP/1.1\r\nHost: {self.host}\r\nX: ".encode() + b"a" * (1 << 20) + b"\r\n\r\n")
        await writer.drain()

    async def garbage(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send bytes that are not HTTP."""
        writer.write(bytes(range(256)) * 16)
        await writer.drain()

    async def forged(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send a request with an invalid signature."""
        fields = f"node=n, time=1, nonce={'0' * 32}, digest={'0' * 64}, signature={'0' * 64}"
        authorization = f"Authorization: FMX1-HMAC-SHA256 {fields}\r\n\r\n".encode()
        writer.write(self.head("application/x-flowmx", 1 << 20)[:-2] + authorization + b"\0" * (1 << 20))
        await writer.drain()

    async def half(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Announce a body of 64 MB, send one megabyte, and disconnect."""
        writer.write(self.head(MSGPACK, 64 << 20) + b"\0" * (1 << 20))
        await writer.drain()
        writer.close()


async def main() -> dict[str, int]:
    """Run the clients; return the counts."""
    attack = Attack(sys.argv[1], sys.argv[2], float(sys.argv[3]))
    await asyncio.gather(*(attack.client(number) for number in range(int(sys.argv[4]))))
    return dict(attack.counts)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main())))
