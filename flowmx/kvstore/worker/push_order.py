"""The order in which the program pushes a store's keys; servers, which apply pushes in any order, need it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from flowmx.kvstore.shards import Key
from flowmx.optimizer.base_optimizer import Optimizer
from flowmx.optimizer.update_counts import Order, is_ordered

__all__ = ["PushOrder", "PushRecord"]


class PushRecord:
    """A push in the order of the program; without a key, a marker in that order.

    Attributes:
        key: the key, or None.
        before: the optimizer's state before the push, once computed, or None if servers know it.
        done: whether the state is computed.
    """

    __slots__ = ("before", "done", "key")

    def __init__(self, key: Key | None) -> None:
        self.key = key
        self.before: list[Any] | None = None
        self.done = False


class PushOrder:
    """Records pushes in the order of the program, and computes the optimizer's state before each when it is sent."""

    def __init__(self) -> None:
        self.active = False
        self._log: deque[PushRecord] = deque()
        self._order: Order | None = None
        self._config: Mapping[str, Any] = {}
        self._lock = threading.Lock()

    def follow(self, optimizer: Optimizer) -> PushRecord | None:
        """Start or continue recording if the optimizer needs it; return a marker for this point."""
        self.active = is_ordered(optimizer)
        return self.record(None) if self.active else None

    def record(self, key: Key | None) -> PushRecord:
        """Record a push, or a marker."""
        entry = PushRecord(key)
        with self._lock:
            self._log.append(entry)
        return entry

    def begin(self, config: Mapping[str, object], counts: Mapping[Key, int], marker: PushRecord) -> None:
        """Continue from the update counts of servers; drop the records before the marker."""
        with self._lock:
            while self._log and self._log.popleft() is not marker:
                pass
            self._order = Order(config, counts)

    def change(self, config: Mapping[str, object]) -> None:
        """Continue with another description of the optimizer."""
        with self._lock:
            if self._order is not None:
                self._order.use(config)

    def add(self, counts: Mapping[Key, int]) -> None:
        """Add new keys."""
        with self._lock:
            if self._order is not None:
                self._order.add(counts)

    def skip(self, pushes: Sequence[PushRecord]) -> None:
        """Remove pushes that were not sent from the order."""
        for entry in pushes:
            entry.key = None

    def before(self, pushes: Sequence[PushRecord]) -> list[list[Any] | None]:
        """Return the optimizer's state before each of some pushes that are about to be sent."""
        with self._lock:
            while self._log and not all(entry.done for entry in pushes):
                entry = self._log.popleft()
                entry.done = True
                if entry.key is not None and self._order is not None:
                    entry.before = self._order.next(entry.key)
        return [entry.before for entry in pushes]
