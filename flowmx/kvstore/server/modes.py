"""Consistency modes (sequential, eventual, bounded staleness): when pushes are applied and pulls answered."""

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
        """Return the pushes of the next update, in the order of summation; none while it must wait."""
        raise NotImplementedError

    def start(self, slot: Slot, worker: str) -> int:
        """Return the number after which the pushes of a worker continue if it enrols now."""
        return slot.marks.get(worker, 0)

    def may_pull(self, slot: Slot, worker: str, minimum: int) -> bool:
        """Return whether the value is new enough for a worker whose last push was number `minimum`."""
        return slot.marks.get(worker, 0) >= minimum


class Sync(Mode):
    """Rounds: round r is the sum of push number r of every counted worker."""

    name = "sync"

    def choose(self, slot: Slot) -> list[Push]:
        if len(slot.gradients) < len(slot.counted):  # the common case, decided quickly
            return []
        ready = slot.pushers(slot.round + 1)
        if slot.counted.keys() - ready.keys():
            return []
        return [(worker, slot.round + 1) for worker in sorted(ready, key=lambda worker: (ready[worker], worker))]

    def start(self, slot: Slot, worker: str) -> int:
        return slot.round

    def may_pull(self, slot: Slot, worker: str, minimum: int) -> bool:
        return slot.round >= minimum


class Async(Mode):
    """Each push is a separate update; pushes of one worker are applied in the order of their numbers."""

    name = "async"

    def choose(self, slot: Slot) -> list[Push]:
        return next(([push] for push in slot.gradients if self._is_next(slot, *push)), [])

    def _is_next(self, slot: Slot, worker: str, sequence: int) -> bool:
        return sequence == slot.marks.get(worker, 0) + 1


class Stale(Async):
    """Like :class:`Async`, but no worker gets more than `bound` pushes ahead of the slowest counted worker."""

    name = "stale"

    def __init__(self, bound: int) -> None:
        if bound < 1:
            raise ValueError(f"max_staleness is {bound}, expected at least 1 (for 0 use the synchronous store)")
        self.bound = bound

    def start(self, slot: Slot, worker: str) -> int:
        # A late worker starts level with the slowest one, so that the others need not wait until it has caught up.
        return max(slot.marks.get(worker, 0), slot.slowest() or 0)

    def may_pull(self, slot: Slot, worker: str, minimum: int) -> bool:
        slowest = slot.slowest()
        return super().may_pull(slot, worker, minimum) and (slowest is None or slowest >= minimum - self.bound)

    def _is_next(self, slot: Slot, worker: str, sequence: int) -> bool:
        slowest = slot.slowest()
        return super()._is_next(slot, worker, sequence) and (slowest is None or sequence - slowest <= self.bound)


def create(name: str, max_staleness: int | None = None) -> Mode:
    """Make the mode ``"sync"``, ``"async"``, or ``"stale"`` with its bound.

    Raises:
        ValueError: the mode is unknown, or the bound is missing or not allowed.
    """
    if (name == "stale") != (max_staleness is not None):
        raise ValueError(
            f"mode {name!r} with max_staleness={max_staleness}: only the mode 'stale' takes it, and needs it"
        )
    if name == "stale" and max_staleness is not None:
        return Stale(max_staleness)
    kinds: dict[str, type[Mode]] = {"sync": Sync, "async": Async}
    if name not in kinds:
        raise ValueError(f"unknown mode {name!r}: expected sync, async or stale")
    return kinds[name]()
