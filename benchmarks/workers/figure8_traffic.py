"""Plain connections from each host to all others: ``figure8_traffic.py <me> <addresses> <seconds>``.

Prints the bits a second that this host receives while all send as fast as they can. The first seconds, in which
connections adapt their rate, do not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

PORT, PIECE = 9000, 1 << 18
AFTER = 2.0  # seconds before counting starts


async def main(me: str, others: list[str], seconds: float) -> None:
    """Send to each of the others for some seconds, and count the bytes received."""
    received = 0

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(PIECE):
                received += len(piece)
        writer.close()

    async def send(address: str) -> None:
        writer = await connected(address)
        while True:
            writer.write(bytes(PIECE))
            await writer.drain()

    async with await asyncio.start_server(receive, me, PORT):
        sending = [asyncio.create_task(send(address)) for address in others]
        await asyncio.sleep(AFTER)
        before = received
        await asyncio.sleep(seconds)
        print(json.dumps({"rate": 8 * (received - before) / seconds}), flush=True)
        await asyncio.sleep(AFTER)  # the others may have started later
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


async def connected(address: str) -> asyncio.StreamWriter:
    """Connect, retrying until the address accepts connections."""
    while True:
        with contextlib.suppress(ConnectionError):
            return (await asyncio.open_connection(address, PORT))[1]
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2].split(","), float(sys.argv[3])))
