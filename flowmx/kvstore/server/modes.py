"""Consistency modes, sequential, eventual and bounded: the conditions to apply a push and to answer a pull."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from flowmx.kvstore.server.slot import Slot

__all__ = ["Async", "Mode", "Stale", "Sync", "create"]

Push: TypeAlias = tuple[str, int]
"""A worker and the sequence number of its push."""


class Mode:
    """Base class of consistency modes."""

    name: str

    def choose(self, slot: Slot) -> list[Push]:
        """The pushes that make up the next update, in the order of summation; none while it must wait."""
        raise NotImplementedError

    def start(self, slot: Slot, worker: str) -> int:
        """The number that the pushes of a worker continue from if it enrols now."""
        return slot.marks.get(worker, 0)

    def may_pull(self, slot: Slot, worker: str, wanted: int) -> bool:
        """Tell whether the value is new enough for a worker whose last push was number `wanted`."""
        return slot.marks.get(worker, 0) >= wanted


class Sync(Mode):
    """Rounds: round r is the sum of what every worker that counts pushed as its number r."""

    name = "sync"

    def choose(self, slot: Slot) -> list[Push]:
        if len(slot.gradients) < len(slot.counted):  # most often so, and quickly seen
            return []
        ready = slot.pushed(slot.round + 1)
        if slot.counted.keys() - ready.keys():
            return []
        return [(worker, slot.round + 1) for worker in sorted(ready, key=lambda worker: (ready[worker], worker))]

    def start(self, slot: Slot, worker: str) -> int:
        return slot.round

    def may_pull(self, slot: Slot, worker: str, wanted: int) -> bool:
        return slot.round >= wanted


class Async(Mode):
    """Each push is an update of its own; those of one worker in the order of their numbers."""

    name = "async"

    def choose(self, slot: Slot) -> list[Push]:
        return next(([push] for push in slot.gradients if self._is_next(slot, *push)), [])

    def _is_next(self, slot: Slot, worker: str, sequence: int) -> bool:
        return sequence == slot.marks.get(worker, 0) + 1


class Stale(Async):
    """As :class:`Async`, but no worker gets more than `bound` pushes ahead of the slowest that counts."""

    name = "stale"

    def __init__(self, bound: int) -> None:
        if bound < 1:
            raise ValueError(f"max_staleness is {bound}, expected at least 1 (for 0 there is the synchronous store)")
        self.bound = bound

    def start(self, slot: Slot, worker: str) -> int:
        # Who joins late starts level with the slowest, so that the others need not wait until it caught up.
        return max(slot.marks.get(worker, 0), slot.slowest() or 0)

    def may_pull(self, slot: Slot, worker: str, wanted: int) -> bool:
        slowest = slot.slowest()
        return super().may_pull(slot, worker, wanted) and (slowest is None or slowest >= wanted - self.bound)

    def _is_next(self, slot: Slot, worker: str, sequence: int) -> bool:
        slowest = slot.slowest()
        return super()._is_next(slot, worker, sequence) and (slowest is None or sequence - slowest <= self.bound)


def create(name: str, max_staleness: int | None = None) -> Mode:
    """The mode of a name: ``"sync"``, ``"async"``, or ``"stale"`` with its bound.

    Raises:
        ValueError: there is no such mode, or the bound is missing or too much.
    """
    if (name == "stale") != (max_staleness is not None):
        raise ValueError(f"mode {name!r} with max_staleness={max_staleness}: the mode 'stale' takes one, no other does")
    if name == "stale" and max_staleness is not None:
        return Stale(max_staleness)
    kinds: dict[str, type[Mode]] = {"sync": Sync, "async": Async}
    if name not in kinds:
        raise ValueError(f"there is no mode {name!r}: expected sync, async or stale")
    return kinds[name]()
