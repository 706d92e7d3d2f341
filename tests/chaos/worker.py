"""The worker program, called with ``<ledger> <writer> <mode> <rounds> <pause>``. It records its answers in a ledger.

Gradients encode their origin. A key's array consists of equal blocks. A block has a row for each *writer* (a start of a
worker) and a column for each of its pushes. Push number 7 of a writer adds 1 to column 6 of its row, in every block,
and 7 to the row's last column, a checksum. So a pulled array shows how often each push was applied, and so does every
part of an array that is split over servers. The gradients of some keys are row_sparse.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["BOUND", "COLUMNS", "KEYS", "STALENESS", "WRITERS", "main", "read_block"]

WRITERS, COLUMNS, STALENESS = 10, 64, 3
BLOCK = WRITERS * (COLUMNS + 1)
BOUND = 3 * BLOCK  # arrays of at least as many elements are split over servers


class Key(NamedTuple):
    """The training of a key.

    Attributes:
        blocks: the number of blocks of its array.
        pushes: the number of pushes in a step.
        pushpull: whether the last push of a step and the pull are one call.
        row_sparse: whether its gradients are row_sparse, with the writer's row of each block, and it is pulled by rows.
    """

    blocks: int
    pushes: int
    pushpull: bool
    row_sparse: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its array."""
        return (self.blocks * WRITERS, COLUMNS + 1) if self.row_sparse else (self.blocks * BLOCK,)


KEYS = {
    "plain": Key(1, 1, True),
    "apart": Key(1, 1, False),
    "twice": Key(1, 2, False),
    "big": Key(6, 1, True),
    "rows": Key(1, 1, False, True),
    "many rows": Key(6, 1, False, True),
}


class Ledger:
    """A file of JSON lines. Each is written before the worker continues, so a killed process loses none."""

    def __init__(self, path: str, writer: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._writer = writer

    def write(self, kind: str, **fields: Any) -> None:
        record = {"kind": kind, "writer": self._writer, "time": time.monotonic(), **fields}
        os.write(self._file, json.dumps(record).encode() + b"\n")


def gradient(key: Key, writer: int, number: int) -> Any:
    """Return the gradient of a writer's push; numbers start at 1."""
    block = np.zeros((WRITERS, COLUMNS + 1), np.float32)
    block[writer, number - 1] = 1
    block[writer, COLUMNS] = number
    return np.tile(block.reshape(-1), key.blocks)


def read_block(block: Any) -> tuple[list[int], list[str]]:
    """Return the number of each writer's pushes in a block, and the errors: pushes not applied once and in order."""
    cells, sums = block[:, :COLUMNS], block[:, COLUMNS]
    counts = [int(count) for count in cells.sum(axis=1)]
    errors = []
    for writer, count in enumerate(counts):
        for number in range(COLUMNS):
            actual, expected = float(cells[writer, number]), float(number < count)
            if actual != expected:
                errors.append(f"push {number + 1} of writer {writer} was applied {actual:g} times")
        if sums[writer] != count * (count + 1) // 2 and not errors:
            errors.append(f"the checksum of writer {writer} is {sums[writer]:g} after {count} pushes")
    return counts, errors


class Training:
    """The training of one worker."""

    def __init__(self, kv: Any, ledger: Ledger, writer: int) -> None:
        import flowmx as mx

        self._nd = mx.nd
        self._kv = kv
        self._ledger = ledger
        self._writer = writer
        self._numbers = dict.fromkeys(KEYS, 0)

    def begin(self) -> None:
        """Initialize all keys, and wait until the servers have the optimizer."""
        import flowmx as mx

        start = time.monotonic()
        zeros = [self._nd.zeros(key.shape) for key in KEYS.values()]
        self._kv.init(list(KEYS), zeros)
        self._kv.set_optimizer(mx.optimizer.create("test"))
        _ = self._kv.step  # waits
        self._nd.waitall()
        starts = {}
        for name, key in KEYS.items():
            numbers = self._kv._entries[name].numbers
            starts[name] = [number for number in numbers for _ in range(key.blocks // len(numbers))]
        self._ledger.write("ready", rank=self._kv.rank, starts=starts, start=start)

    def step(self) -> None:
        """Push and pull every key."""
        start = time.monotonic()
        arrays = {name: self._enqueue(name, key) for name, key in KEYS.items()}
        for name, out in arrays.items():
            self._record("pulled", name, out, start)

    def finish(self) -> None:
        """Pull every key once more after all workers have finished."""
        start = time.monotonic()
        self._kv._barrier()
        self._ledger.write("barrier", start=start)
        start = time.monotonic()
        for name, key in KEYS.items():
            out = self._pull(name, key)
            self._record("final", name, out, start)
        self._ledger.write("lag", lag=self._kv.stats()["largest_lag"])
        self._kv._barrier()

    def _enqueue(self, name: str, key: Key) -> Any:
        out = self._nd.empty(key.shape)
        for push in range(key.pushes):
            self._numbers[name] += 1
            number = self._numbers[name]
            self._ledger.write("pushed", key=name, number=number)
            value = self._nd.array(gradient(key, self._writer, number)).reshape(key.shape)
            if key.row_sparse:
                value = value.tostype("row_sparse")
            if key.pushpull and push == key.pushes - 1:
                self._kv.pushpull(name, value, out=out)
            else:
                self._kv.push(name, value)
        return out if key.pushpull else self._pull(name, key)

    def _pull(self, name: str, key: Key) -> Any:
        """Start a pull, and return the array that it fills."""
        if key.row_sparse:
            out = self._nd.zeros(key.shape, stype="row_sparse")
            self._kv.row_sparse_pull(name, out=out, row_ids=self._nd.arange(key.shape[0]))
        else:
            out = self._nd.empty(key.shape)
            self._kv.pull(name, out=out)
        return out

    def _record(self, kind: str, name: str, out: Any, start: float) -> None:
        blocks = out.asnumpy().reshape(-1, WRITERS, COLUMNS + 1)
        readings = [read_block(block) for block in blocks]
        counts, errors = [counts for counts, _ in readings], [text for _, texts in readings for text in texts]
        self._ledger.write(kind, key=name, number=self._numbers[name], start=start, counts=counts, errors=errors)


def main(arguments: Sequence[str]) -> int:
    """Train, and return the exit status."""
    import flowmx as mx

    path, writer, mode, rounds, pause = (
        arguments[0],
        int(arguments[1]),
        arguments[2],
        int(arguments[3]),
        float(arguments[4]),
    )
    ledger = Ledger(path, writer)
    options = {"max_staleness": STALENESS} if mode == "stale" else {}
    kv = mx.kv.create("dist_sync" if mode == "sync" else "dist_async", **options)
    try:
        training = Training(kv, ledger, writer)
        training.begin()
        steps = 0
        while (kv.step if mode == "sync" else steps) < rounds:
            training.step()
            time.sleep(pause)  # stands for computation
            steps += 1
        training.finish()
        kv.close()
    except Exception as error:
        ledger.write("failed", error=f"{type(error).__name__}: {error}")
        raise
    ledger.write("ended")
    return 0
