"""The operations of an actor that are ready: higher priority first, and in the order pushed among equals.

An operation may lie here twice, and one that runs already or was cancelled may lie here still: what counts is its
state, and what is not ready is left out. So putting one in again does no harm, and taking one is a single store.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from flowmx.engine.scheduler import READY, Operation


class Mailbox:
    """An actor's queue of ready operations.

    Attributes:
        plain: those of priority 0, the usual one: putting one in costs an append.
        ranked: a heap of all others, and of those whose priority was raised.
    """

    __slots__ = ("plain", "ranked")

    def __init__(self) -> None:
        self.plain: deque[Operation] = deque()
        self.ranked: list[tuple[int, int, Operation]] = []

    def put(self, op: Operation) -> None:
        """Add an operation."""
        if op.priority == 0:
            self.plain.append(op)
        else:
            heapq.heappush(self.ranked, (-op.priority, op.serial, op))

    def first(self) -> Operation | None:
        """The next operation, which stays in the mailbox; None where there is none."""
        plain, ranked = self.plain, self.ranked
        while ranked and ranked[0][2].state != READY:
            heapq.heappop(ranked)
        while plain and plain[0].state != READY:
            del plain[0]
        if ranked and (ranked[0][0] < 0 or not plain):
            return ranked[0][2]
        return plain[0] if plain else None

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Operation]:
        found = dict.fromkeys([*list(self.plain), *(op for _, _, op in list(self.ranked))])
        yield from (op for op in found if op.state == READY)
