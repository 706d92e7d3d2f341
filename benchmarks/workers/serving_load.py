"""Clients of a service that send one request after another, and the outcomes.

    python serving_load.py ADDRESS CLIENTS SECONDS [LEAVING [stubborn]]

After a 503, a client waits for the time in ``Retry-After``, plus or minus half of it; a stubborn one retries at once.
LEAVING is the share of requests that clients cancel after some milliseconds, by closing the connection. Prints JSON:
requests answered per second, their milliseconds, and the counts of all outcomes.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
import sys
import time
from collections import Counter
from typing import Any

import aiohttp
import numpy as np

HEADERS = {"Content-Type": "application/x-npy"}
IMPATIENT = 0.05


class Load:
    """All clients."""

    def __init__(self, address: str, seconds: float, leaving: float, stubborn: bool) -> None:
        self.address, self.leaving, self.stubborn = address, leaving, stubborn
        self.end = time.perf_counter() + seconds
        self.counts: Counter[str] = Counter()
        self.times: list[float] = []
        self.answered = 0
        stream = io.BytesIO()
        np.save(stream, np.random.default_rng(0).standard_normal((3, 32, 32)).astype(np.float32))
        self.body = stream.getvalue()

    async def client(self, session: aiohttp.ClientSession) -> None:
        """Send requests until the time is over."""
        while time.perf_counter() < self.end:
            pause = await self.ask(session)
            if pause:
                await asyncio.sleep(min(pause, max(0.0, self.end - time.perf_counter())))

    async def ask(self, session: aiohttp.ClientSession) -> float:
        """Send one request; return the seconds to wait after it."""
        start = time.perf_counter()
        patience = IMPATIENT * random.random() if random.random() < self.leaving else None
        try:
            async with asyncio.timeout(patience), session.post(self.address, data=self.body, headers=HEADERS) as reply:
                await reply.read()
        except TimeoutError:
            self.counts["left"] += 1
            return 0.0
        except aiohttp.ClientError as error:
            self.counts[type(error).__name__] += 1
            return 0.01
        self.counts[str(reply.status)] += 1
        if reply.status == 200:
            now = time.perf_counter()
            self.times.append(1e3 * (now - start))
            self.answered += now <= self.end
            return 0.0
        if self.stubborn:
            return 0.0
        return float(reply.headers.get("Retry-After", "1")) * random.uniform(0.5, 1.5)


async def main() -> dict[str, Any]:
    """Run the clients; return the figures."""
    address, clients, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    load = Load(address, seconds, float(sys.argv[4]) if len(sys.argv) > 4 else 0.0, len(sys.argv) > 5)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        await asyncio.gather(*(load.client(session) for _ in range(clients)))
    times = np.array(load.times) if load.times else np.zeros(1)
    return {
        "per_s": load.answered / seconds, "median_ms": float(np.median(times)),
        "p99_ms": float(np.quantile(times, 0.99)), "outcomes": dict(load.counts),
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main())))
