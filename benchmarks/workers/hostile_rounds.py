"""A worker of a job. For each number of seconds in its input, it runs rounds for that time.

It prints their times as JSON.

    FLOWMX_SCHEDULER=... python hostile_rounds.py

Each round pushes 64,000 numbers to the servers, pulls them, and checks the sum.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

import flowmx as mx

SIZE = 64_000


def main() -> None:
    """Run rounds until the input ends."""
    store = mx.kv.create("dist_sync")
    store.init(0, mx.nd.zeros((SIZE,)))
    out, number = mx.nd.zeros((SIZE,)), 0
    print("ready", flush=True)
    for line in sys.stdin:
        durations, end = list[float](), time.perf_counter() + float(line)
        while (start := time.perf_counter()) < end:
            number += 1
            store.push(0, mx.nd.ones((SIZE,)) * number)
            store.pull(0, out=out)
            assert (out.asnumpy() == number * store.num_workers).all(), number
            durations.append(1e3 * (time.perf_counter() - start))
        print(
            json.dumps({"ms_a_round": float(np.mean(durations)), "p99_ms": float(np.quantile(durations, 0.99))}),
            flush=True,
        )
    store.close()


if __name__ == "__main__":
    main()
