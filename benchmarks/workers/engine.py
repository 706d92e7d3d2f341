"""Tiny operations: a chain, independent ones, push and wait, push and await."""

import json
import sys
import time

SYSTEM = sys.argv[1]
if SYSTEM == "mxnet":
    import mxnet as mx
else:
    import flowmx as mx

COUNT, WAITS = 20_000, 4_000


def chain():
    x = mx.nd.ones((16,))
    for _ in range(COUNT):
        x = x + 1
    mx.nd.waitall()
    return COUNT


def independent():
    a, b = mx.nd.ones((16,)), mx.nd.ones((16,))
    for _ in range(COUNT):
        c = a + b
    mx.nd.waitall()
    del c
    return COUNT


def push_and_wait():
    x = mx.nd.ones((16,))
    for _ in range(WAITS):
        (x + 1).wait_to_read()
    return WAITS


def best_of(work, repeat=3):
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        count = work()
        times.append((time.perf_counter() - start) / count * 1e6)
    return min(times)


figures = {
    "chain_us": best_of(chain),
    "independent_us": best_of(independent),
    "push_and_wait_us": best_of(push_and_wait),
}
if SYSTEM == "flowmx":

    async def push_and_await():
        x = mx.nd.ones((16,))
        for _ in range(WAITS):
            await (x + 1)
        return WAITS

    figures["push_and_await_us"] = best_of(lambda: mx.run(push_and_await()))
print(json.dumps(figures))
