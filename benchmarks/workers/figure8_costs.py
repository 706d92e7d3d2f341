"""Measure the cost of a store without its network: requests, their bytes, sums and updates; prints seconds as JSON.

Both sides of a request run in this process on one core, so half of the time is attributed to each. Requests are
signed, as between machines.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import numpy as np

import flowmx as mx
from flowmx.comm.client import Peer
from flowmx.comm.frames import Message
from flowmx.comm.security import Security
from flowmx.comm.server import Service
from flowmx.kvstore.server.store import Store, Value

RUNS = 7
SMALL, LARGE = 256, 1 << 20  # floats


async def fastest(work: Callable[[], Awaitable[object]], times: int = 1) -> float:
    """Return the seconds of one of ``times`` consecutive calls, in the fastest of several runs."""
    durations = []
    for _ in range(RUNS):
        start = time.perf_counter()
        for _ in range(times):
            await work()
        durations.append((time.perf_counter() - start) / times)
    return min(durations)


async def transport() -> dict[str, float]:
    """Return the seconds of a request and of a byte, on each side."""
    security = Security("a secret of more than thirty-two characters")
    service = Service("costs", security=security)

    async def echo(caller: object, message: Message) -> Message:
        return Message({}, message.tensors)

    service.operation("echo", echo)
    async with Peer(await service.start(), security=security, local=False) as peer:

        async def exchange(floats: int) -> None:
            await peer.call("echo", {}, [np.zeros(floats, np.float32)])

        small = await fastest(lambda: exchange(SMALL), 100)
        large = await fastest(lambda: exchange(4 * LARGE))
    await service.stop()
    messages = 2  # there and back, each with a sender and a receiver
    return {"request": small / messages / 2, "byte": (large - small) / messages / 2 / (16 * LARGE)}


async def arithmetic() -> dict[str, float]:
    """Return the seconds to add a byte, and to update one by SGD with momentum."""
    store = Store()
    gradients = [np.zeros(LARGE, np.float32) for _ in range(5)]
    add = await fastest(lambda: store.merge([gradients])) / (4 * 4 * LARGE)
    store.use(mx.optimizer.SGD(learning_rate=0.05, momentum=0.9, wd=1e-4).get_config())
    value = Value(np.zeros(LARGE, np.float32))

    async def update() -> None:
        nonlocal value
        value = await store.update("w", value, gradients[0])

    seconds = await fastest(update) / (4 * LARGE)
    store.close()
    return {"add": add, "update": seconds}


async def main() -> None:
    """Measure, and print the costs as JSON."""
    print(json.dumps({**await transport(), **await arithmetic()}))


if __name__ == "__main__":
    asyncio.run(main())
