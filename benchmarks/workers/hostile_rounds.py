"""A worker of a job: for each line of its input, which is a number of seconds, it has rounds for so long.

It prints their times as JSON.


    FLOWMX_SCHEDULER=... python hostile_rounds.py

Each round pushes 64,000 numbers to the servers and pulls them; the sum must be right.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

import flowmx as mx

SIZE = 64_000


def main() -> None:
    """Have rounds until the input ends."""
    store = mx.kv.create("dist_sync")
    store.init(0, mx.nd.zeros((SIZE,)))
    out, number = mx.nd.zeros((SIZE,)), 0
    print("ready", flush=True)
    for line in sys.stdin:
        taken, end = list[float](), time.perf_counter() + float(line)
        while (start := time.perf_counter()) < end:
            number += 1
            store.push(0, mx.nd.ones((SIZE,)) * number)
            store.pull(0, out=out)
            assert (out.asnumpy() == number * store.num_workers).all(), number
            taken.append(1e3 * (time.perf_counter() - start))
        print(json.dumps({"ms_a_round": float(np.mean(taken)), "p99_ms": float(np.quantile(taken, 0.99))}), flush=True)
    store.close()


if __name__ == "__main__":
    main()
