"""Plain connections from each host to all others: ``figure8_traffic.py <me> <addresses> <seconds>``.

Prints the bits a second that come in at this host while all send as fast as they can. What is lost at the beginning,
where connections find out how fast that is, does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

PORT, PIECE = 9000, 1 << 18
AFTER = 2.0  # seconds that do not count


async def main(me: str, others: list[str], seconds: float) -> None:
    """Send to each of the others for so long, and count what comes."""
    came = 0

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(PIECE):
                came += len(piece)
        writer.close()

    async def send(address: str) -> None:
        writer = await connected(address)
        while True:
            writer.write(bytes(PIECE))
            await writer.drain()

    async with await asyncio.start_server(receive, me, PORT):
        sending = [asyncio.create_task(send(address)) for address in others]
        await asyncio.sleep(AFTER)
        before = came
        await asyncio.sleep(seconds)
        print(json.dumps({"rate": 8 * (came - before) / seconds}), flush=True)
        await asyncio.sleep(AFTER)  # the others may have begun later
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


async def connected(address: str) -> asyncio.StreamWriter:
    """Connect, retrying until somebody listens."""
    while True:
        with contextlib.suppress(ConnectionError):
            return (await asyncio.open_connection(address, PORT))[1]
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2].split(","), float(sys.argv[3])))
