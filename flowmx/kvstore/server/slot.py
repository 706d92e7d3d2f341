"""One part on one server: its value, the counted workers, the waiting requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flowmx.kvstore.server.protocol import Member, Part, PartStep, Record, Request, View

__all__ = ["Admin", "Pending", "Slot"]


class Pending(NamedTuple):
    """A gradient that is not in the value yet, and its worker's rank."""

    rank: int
    gradient: Any


class Admin(NamedTuple):
    """A step other than an update that waits for its turn, and who asked for it."""

    step: PartStep
    request: Request


@dataclass
class Slot:
    """The state of a part.

    The first group of fields is what a :class:`Record` carries; the rest lives on the primary alone.

    Attributes:
        counted: in the order of summation: by rank.
        step: the step in progress: from when it is chosen until it is computed here and confirmed by the backup.
        computing: whether its value is being worked on, so that nobody may read it.
        confirmed: whether the backup has it (or there is none).
        sent_epoch: the epoch of the message that tells the backup.
        mirrored: whether the backup has everything before it.
        ticket: tells the results of a computation that was given up from those of the present one.
        gradients: what was pushed and is not applied, in the order of arrival.
        admin: steps that wait.
        pushes: requests to acknowledge once their push is applied: request -> (worker, sequence number).
        pulls: requests for the value: request -> (worker, wanted number). One that is among the pushes too is answered
            with the value alone.
        error: why the part can not be used any more.
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
        """Term and step number; the greater of two versions is newer, and a part that was never created is oldest."""
        return (self.term, self.number) if self.number else (-1, 0)

    def pushed(self, sequence: int) -> dict[str, int]:
        """The workers whose push of this number waits, each with its rank."""
        return {worker: found.rank for (worker, number), found in self.gradients.items() if number == sequence}

    def knows(self, worker: str, sequence: int) -> bool:
        """Tell whether a push is in the value, being applied, or waiting."""
        in_progress = self.step is not None and (worker, sequence) in self.step.marks
        return in_progress or sequence <= self.marks.get(worker, 0) or (worker, sequence) in self.gradients

    def missing(self) -> list[str]:
        """Counted workers without a waiting push, sorted: those that a synchronous round waits for."""
        have = {worker for worker, _ in self.gradients}
        return sorted(worker for worker in self.counted if worker not in have)

    def slowest(self) -> int | None:
        """The least number of applied pushes among the counted workers."""
        return min([self.marks.get(worker, 0) for worker in self.counted], default=None)

    def take(self, step: PartStep) -> None:
        """Apply a step, but for the value that an update computes."""
        self.number = step.number
        if step.kind == "create":
            self.value = step.value
        elif step.kind == "enrol":
            assert step.member is not None
            self.counted = _in_order({**self.counted, step.worker: step.member})
            self.marks[step.worker] = step.start
        elif step.kind == "rest":
            self.counted.pop(step.worker, None)
        elif step.kind == "update":
            self.round += 1
            self.marks.update(step.marks)
        if step.worker:
            self.turns[step.worker] = step.turn

    def evict(self, view: View) -> list[str]:
        """Stop counting the workers that a view does not have; returns these.

        One that joined after the view is in no view yet that this server knows.
        """
        evicted = [
            who for who, member in self.counted.items() if who not in view.workers and member.joined <= view.epoch
        ]
        for worker in evicted:
            self._evict(worker)
        return evicted

    def _evict(self, worker: str) -> None:
        # Of what it pushed, what still can be applied is.
        self.counted.pop(worker, None)
        next_one = self.marks.get(worker, 0) + 1
        while (worker, next_one) in self.gradients:
            next_one += 1
        for push in [push for push in self.gradients if push[0] == worker and push[1] > next_one]:
            del self.gradients[push]

    @property
    def updating(self) -> bool:
        """True while the value itself is being computed, not only the sum that it will be updated by."""
        return self.computing and self.step is not None and self.step.merged is not None

    def record(self) -> Record:
        """All of the part as it is now."""
        assert not self.updating, "a value that is being worked on can not be copied"
        return Record(
            self.part, self.term, self.number, self.round,
            dict(self.marks), dict(self.counted), dict(self.turns), self.value,
        )  # fmt: skip

    def load(self, record: Record) -> None:
        """Replace the state by a record's, and drop the step in progress."""
        self.term, self.number, self.round = record.term, record.number, record.round
        self.marks, self.counted, self.turns = dict(record.marks), _in_order(record.counted), dict(record.turns)
        self.value = record.value
        self.error = ""
        self.give_up()

    def give_up(self) -> None:
        """Forget the step in progress; what is still computed for it will be ignored."""
        self.step = None
        self.computing = self.confirmed = self.mirrored = False
        self.ticket += 1

    def waiting(self) -> list[Request]:
        """Every request that has no answer yet."""
        return [*(self.pushes | self.pulls), *(admin.request for admin in self.admin)]

    def forget(self, request: Request) -> None:
        """Forget a request; what was pushed stays pushed."""
        self.pushes.pop(request, None)
        self.pulls.pop(request, None)
        for i, admin in enumerate(self.admin):
            if admin.request == request:
                self.admin[i] = admin._replace(request=None)

    def drop_requests(self) -> None:
        """Forget every request, and what was pushed."""
        for waiting in (self.pushes, self.pulls, self.admin, self.gradients):
            waiting.clear()


def _in_order(counted: Mapping[str, Member]) -> dict[str, Member]:
    """Workers in the order of summation."""
    return dict(sorted(counted.items(), key=lambda item: (item[1].rank, item[0])))
