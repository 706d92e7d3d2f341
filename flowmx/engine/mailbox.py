"""The ready operations of an actor: higher priority first, and in push order among equals.

The mailbox may hold an operation twice, or one that already runs or was cancelled: only operations in state READY are
returned. So adding one again does no harm, and taking one is a single store.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from flowmx.engine.scheduler import READY, Operation


class Mailbox:
    """An actor's queue of ready operations.

    Attributes:
        plain: operations of priority 0, the default: adding one costs an append.
        ranked: a heap of all others, and of operations whose priority was raised.
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
        """Return the next operation, which stays in the mailbox, or None."""
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
        operations = dict.fromkeys([*list(self.plain), *(op for _, _, op in list(self.ranked))])
        yield from (op for op in operations if op.state == READY)
