"""Measure the delay of an asyncio loop's timers while LeNet trains at full speed in the same process."""

import asyncio
import json
import time

import lenet

import flowmx as mx

SECONDS, TICK = 8.0, 0.001


async def train(executor):
    """Enqueue steps without a pause, awaiting room in the queue."""
    steps = 0
    stop = time.perf_counter() + SECONDS
    while time.perf_counter() < stop:
        lenet.step(executor)
        steps += 1
        await executor.outputs[0]
    return steps


async def main():
    executor = lenet.bound()
    for _ in range(5):
        lenet.step(executor)
    await mx.nd.waitall_async()
    task = asyncio.create_task(train(executor))
    lags = []
    while not task.done():
        start = time.perf_counter()
        await asyncio.sleep(TICK)
        lags.append((time.perf_counter() - start - TICK) * 1e3)
    lags.sort()
    print(
        json.dumps(
            {
                "median_ms": lags[len(lags) // 2],
                "p99_ms": lags[int(len(lags) * 0.99)],
                "max_ms": lags[-1],
                "steps_per_s": await task / SECONDS,
            }
        )
    )


mx.run(main())
