"""One part on one server: its value, the counted workers, the waiting requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flowmx.kvstore.server.protocol import Member, Part, PartStep, Record, Request, View

__all__ = ["Admin", "Pending", "Slot"]


class Pending(NamedTuple):
    """A gradient that is not applied yet, and its worker's rank."""

    rank: int
    gradient: Any


class Admin(NamedTuple):
    """A waiting step other than an update, and its request."""

    step: PartStep
    request: Request


@dataclass
class Slot:
    """The state of a part.

    The first group of fields is copied into a :class:`Record`; the others are used only on the primary.

    Attributes:
        counted: the counted workers in the order of summation: by rank.
        step: the step in progress, until it is computed here and confirmed by the backup.
        computing: whether a computation changes the value, so that it must not be read.
        confirmed: whether the backup has the step (or there is no backup).
        sent_epoch: the epoch of the message to the backup.
        mirrored: whether the backup has all steps before it.
        ticket: distinguishes results of the current computation from those of abandoned ones.
        gradients: pushed gradients that are not applied yet, in the order of arrival.
        admin: waiting steps other than updates.
        pushes: requests to acknowledge once their push is applied: request -> (worker, sequence number).
        pulls: requests for the value: request -> (worker, minimum number). A request that is also in `pushes` is
            answered only with the value.
        error: the reason why the part cannot be used any more.
    """

    part: Part
    term: int = 0
    number: int = 0
    round: int = 0
    marks: dict[str, int] = field(default_factory=dict)
    counted: dict[str, Member] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    value: Any = None

    step: PartStep | None = None
    computing: bool = False
    confirmed: bool = False
    sent_epoch: int = -1
    mirrored: bool = False
    ticket: int = 0
    gradients: dict[tuple[str, int], Pending] = field(default_factory=dict)
    admin: deque[Admin] = field(default_factory=deque)
    pushes: dict[Request, tuple[str, int]] = field(default_factory=dict)
    pulls: dict[Request, tuple[str, int]] = field(default_factory=dict)
    error: str = ""

    @property
    def version(self) -> tuple[int, int]:
        """Term and step number; a greater version is newer, and a part that was never created is the oldest."""
        return (self.term, self.number) if self.number else (-1, 0)

    def pushers(self, sequence: int) -> dict[str, int]:
        """Return the workers with a waiting push of this number, and their ranks."""
        return {worker: pending.rank for (worker, number), pending in self.gradients.items() if number == sequence}

    def has_push(self, worker: str, sequence: int) -> bool:
        """Return whether a push is in the value, being applied, or waiting."""
        in_progress = self.step is not None and (worker, sequence) in self.step.marks
        return in_progress or sequence <= self.marks.get(worker, 0) or (worker, sequence) in self.gradients

    def missing(self) -> list[str]:
        """Return the counted workers without a waiting push, sorted: a synchronous round waits for them."""
        have = {worker for worker, _ in self.gradients}
        return sorted(worker for worker in self.counted if worker not in have)

    def slowest(self) -> int | None:
        """Return the minimum number of applied pushes among the counted workers."""
        return min([self.marks.get(worker, 0) for worker in self.counted], default=None)

    def apply(self, step: PartStep) -> None:
        """Apply a step, except the value that an update computes."""
        self.number = step.number
        if step.kind == "create":
            self.value = step.value
        elif step.kind == "enrol":
            assert step.member is not None
            self.counted = _sort_by_rank({**self.counted, step.worker: step.member})
            self.marks[step.worker] = step.start
        elif step.kind == "rest":
            self.counted.pop(step.worker, None)
        elif step.kind == "update":
            self.round += 1
            self.marks.update(step.marks)
        if step.worker:
            self.turns[step.worker] = step.turn

    def evict(self, view: View) -> list[str]:
        """Stop counting the workers that are not in a view; return them.

        Workers that joined after the view are not in any view that this server knows, and stay counted.
        """
        lost = [
            worker
            for worker, member in self.counted.items()
            if worker not in view.workers and member.joined <= view.epoch
        ]
        for worker in lost:
            self._evict(worker)
        return lost

    def _evict(self, worker: str) -> None:
        # Pushes that can still be applied stay.
        self.counted.pop(worker, None)
        next_one = self.marks.get(worker, 0) + 1
        while (worker, next_one) in self.gradients:
            next_one += 1
        for push in [push for push in self.gradients if push[0] == worker and push[1] > next_one]:
            del self.gradients[push]

    @property
    def updating(self) -> bool:
        """True while the value itself is being computed, not only the sum of gradients."""
        return self.computing and self.step is not None and self.step.merged is not None

    def record(self) -> Record:
        """Return a record of the part's current state."""
        assert not self.updating, "a value cannot be copied during an update"
        return Record(
            self.part, self.term, self.number, self.round,
            dict(self.marks), dict(self.counted), dict(self.turns), self.value,
        )  # fmt: skip

    def load(self, record: Record) -> None:
        """Replace the state by a record, and drop the step in progress."""
        self.term, self.number, self.round = record.term, record.number, record.round
        self.marks, self.counted, self.turns = dict(record.marks), _sort_by_rank(record.counted), dict(record.turns)
        self.value = record.value
        self.error = ""
        self.abandon_step()

    def abandon_step(self) -> None:
        """Abandon the step in progress; results of its computations will be ignored."""
        self.step = None
        self.computing = self.confirmed = self.mirrored = False
        self.ticket += 1

    def waiting(self) -> list[Request]:
        """Return all requests without a response."""
        return [*(self.pushes | self.pulls), *(admin.request for admin in self.admin)]

    def forget(self, request: Request) -> None:
        """Forget a request; its pushed gradient stays."""
        self.pushes.pop(request, None)
        self.pulls.pop(request, None)
        for i, admin in enumerate(self.admin):
            if admin.request == request:
                self.admin[i] = admin._replace(request=None)

    def drop_requests(self) -> None:
        """Forget all requests and pending gradients."""
        for waiting in (self.pushes, self.pulls, self.admin, self.gradients):
            waiting.clear()


def _sort_by_rank(counted: Mapping[str, Member]) -> dict[str, Member]:
    """Return workers in the order of summation."""
    return dict(sorted(counted.items(), key=lambda item: (item[1].rank, item[0])))
