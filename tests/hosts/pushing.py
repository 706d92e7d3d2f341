"""A worker that checks the sums: ``pushing.py <rounds>``; in each round every worker pushes (rank + 1) * round.

It prints ``round <n>`` when a round begins, and at the end that all sums were right.
"""

from __future__ import annotations

import logging
import sys

import flowmx as mx

SHAPES = {"small": (5,), "rows": (30, 40), "big": (400, 50)}  # the last is split if the bound is low


def train(rounds: int) -> None:
    """Push and pull every key in each round."""
    kv = mx.kv.create("dist_sync")
    total = sum(range(1, kv.num_workers + 1))
    values = {key: mx.nd.zeros(shape) for key, shape in SHAPES.items()}
    kv.init(list(values), list(values.values()))
    for number in range(1, rounds + 1):
        print(f"round {number}", flush=True)
        for index, (key, value) in enumerate(values.items()):
            kv.pushpull(key, mx.nd.ones(SHAPES[key]) * (kv.rank + 1) * number, out=value, priority=-index)
        for key, value in values.items():
            assert (value.asnumpy() == total * number).all(), f"round {number}: {key} is {value}"
    print(f"all {rounds} rounds were right", flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    train(int(sys.argv[1]))
