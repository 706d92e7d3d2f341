"""The program that trains: ``<ledger> <writer> <mode> <rounds> <pause>``. It keeps a ledger of its answers.

Gradients say where they come from. A key's array is made of equal blocks; a block has a row for each *writer* (a start
of a worker) and a column for each of its pushes. Push number 7 of a writer adds 1 to column 6 of its row, in every
block, and 7 to the row's last column, a checksum. So an array that is pulled tells of every push how often it was
applied, and so does every part of an array that is split over servers. The gradients of some keys are row_sparse.
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
BOUND = 3 * BLOCK  # elements from which an array is split over servers


class Key(NamedTuple):
    """The training of a key.

    Attributes:
        blocks: of which its array is made.
        pushes: in one step.
        together: whether the last push and the pull are one.
        by_rows: whether its gradients are row_sparse, with the writer's row of each block, and it is pulled by rows.
    """

    blocks: int
    pushes: int
    together: bool
    by_rows: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its array."""
        return (self.blocks * WRITERS, COLUMNS + 1) if self.by_rows else (self.blocks * BLOCK,)


KEYS = {
    "plain": Key(1, 1, True),
    "apart": Key(1, 1, False),
    "twice": Key(1, 2, False),
    "big": Key(6, 1, True),
    "rows": Key(1, 1, False, True),
    "many rows": Key(6, 1, False, True),
}


class Ledger:
    """Lines of JSON, each in the system's hands before the next thing happens: a killed process loses none."""

    def __init__(self, path: str, writer: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._writer = writer

    def write(self, kind: str, **found: Any) -> None:
        record = {"kind": kind, "writer": self._writer, "at": time.monotonic(), **found}
        os.write(self._file, json.dumps(record).encode() + b"\n")


def gradient(key: Key, writer: int, number: int) -> Any:
    """Push `number`, from 1, of a writer."""
    block = np.zeros((WRITERS, COLUMNS + 1), np.float32)
    block[writer, number - 1] = 1
    block[writer, COLUMNS] = number
    return np.tile(block.reshape(-1), key.blocks)


def read_block(block: Any) -> tuple[list[int], list[str]]:
    """The number of pushes of each writer in a block, and every sign that one was not applied once and in order."""
    cells, sums = block[:, :COLUMNS], block[:, COLUMNS]
    counts = [int(count) for count in cells.sum(axis=1)]
    odd = []
    for writer, count in enumerate(counts):
        for number in range(COLUMNS):
            found, expected = float(cells[writer, number]), float(number < count)
            if found != expected:
                odd.append(f"push {number + 1} of writer {writer} is in it {found:g} times")
        if sums[writer] != count * (count + 1) // 2 and not odd:
            odd.append(f"the checksum of writer {writer} is {sums[writer]:g} after {count} pushes")
    return counts, odd


class Training:
    """Steps of one worker."""

    def __init__(self, kv: Any, ledger: Ledger, writer: int) -> None:
        import flowmx as mx

        self._nd = mx.nd
        self._kv = kv
        self._ledger = ledger
        self._writer = writer
        self._numbers = dict.fromkeys(KEYS, 0)

    def begin(self) -> None:
        """Start all keys, and wait until the servers update them."""
        import flowmx as mx

        since = time.monotonic()
        zeros = [self._nd.zeros(key.shape) for key in KEYS.values()]
        self._kv.init(list(KEYS), zeros)
        self._kv.set_optimizer(mx.optimizer.create("test"))
        _ = self._kv.step  # waits
        self._nd.waitall()
        starts = {}
        for name, key in KEYS.items():
            numbers = self._kv._entries[name].numbers
            starts[name] = [number for number in numbers for _ in range(key.blocks // len(numbers))]
        self._ledger.write("ready", rank=self._kv.rank, starts=starts, since=since)

    def step(self) -> None:
        """Push and pull every key."""
        since = time.monotonic()
        found = {name: self._enqueue(name, key) for name, key in KEYS.items()}
        for name, out in found.items():
            self._record("pulled", name, out, since)

    def finish(self) -> None:
        """Pull every key once more, when all have come to their end."""
        since = time.monotonic()
        self._kv._barrier()
        self._ledger.write("met", since=since)
        since = time.monotonic()
        for name, key in KEYS.items():
            out = self._pulled(name, key)
            self._record("final", name, out, since)
        self._ledger.write("lag", lag=self._kv.stats()["largest_lag"])
        self._kv._barrier()

    def _enqueue(self, name: str, key: Key) -> Any:
        out = self._nd.empty(key.shape)
        for push in range(key.pushes):
            self._numbers[name] += 1
            number = self._numbers[name]
            self._ledger.write("pushed", key=name, number=number)
            value = self._nd.array(gradient(key, self._writer, number)).reshape(key.shape)
            if key.by_rows:
                value = value.tostype("row_sparse")
            if key.together and push == key.pushes - 1:
                self._kv.pushpull(name, value, out=out)
            else:
                self._kv.push(name, value)
        return out if key.together else self._pulled(name, key)

    def _pulled(self, name: str, key: Key) -> Any:
        """The key's array, being pulled."""
        if key.by_rows:
            out = self._nd.zeros(key.shape, stype="row_sparse")
            self._kv.row_sparse_pull(name, out=out, row_ids=self._nd.arange(key.shape[0]))
        else:
            out = self._nd.empty(key.shape)
            self._kv.pull(name, out=out)
        return out

    def _record(self, kind: str, name: str, out: Any, since: float) -> None:
        blocks = out.asnumpy().reshape(-1, WRITERS, COLUMNS + 1)
        found = [read_block(block) for block in blocks]
        counts, odd = [counts for counts, _ in found], [text for _, texts in found for text in texts]
        self._ledger.write(kind, key=name, number=self._numbers[name], since=since, counts=counts, odd=odd)


def main(arguments: Sequence[str]) -> int:
    """Train."""
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
            time.sleep(pause)  # it computes
            steps += 1
        training.finish()
        kv.close()
    except Exception as error:
        ledger.write("failed", error=f"{type(error).__name__}: {error}")
        raise
    ledger.write("ended")
    return 0
