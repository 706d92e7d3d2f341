"""Plain connections from each host to all others: ``figure8_traffic.py <me> <addresses> <bytes>``.

Prints the bits a second that left this host, in each direction at once, when all have begun.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

PORT, PIECE = 9000, 1 << 18


async def main(me: str, others: list[str], nbytes: int) -> None:
    """Send so many bytes to each of the others, and receive as many of each."""
    got = asyncio.Queue[None]()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(b"!")
        while await reader.read(PIECE):
            pass
        writer.close()
        got.put_nowait(None)

    async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while True:
            try:
                reader, writer = await asyncio.open_connection(address, PORT)
            except ConnectionError:  # it is on its way
                await asyncio.sleep(0.02)
                continue
            writer.write(b"?")
            await reader.readexactly(1)
            return reader, writer

    async def send(writer: asyncio.StreamWriter) -> None:
        for _ in range(nbytes // PIECE):
            writer.write(bytes(PIECE))
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(receive, me, PORT):
        lines = [await connect(address) for address in others]
        start = time.perf_counter()
        await asyncio.gather(*(send(writer) for _, writer in lines))
        for _ in others:
            await got.get()
    print(json.dumps({"rate": 8 * len(others) * nbytes / (time.perf_counter() - start)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])))
