"""Inputs and effects of a server's state machine.

Values and gradients are opaque here: the machine moves them about and never looks into them. What is made for every
push is a named tuple, since a frozen dataclass takes four times as long to make.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

from flowmx.kvstore.shards import Key

__all__ = [
    "Acknowledged",
    "Answer",
    "Ask",
    "Behind",
    "Configure",
    "Content",
    "Copy",
    "Effect",
    "Fetch",
    "Have",
    "Haves",
    "Member",
    "Merge",
    "Merges",
    "Message",
    "Part",
    "PartStep",
    "Record",
    "Refused",
    "Replies",
    "Reply",
    "Request",
    "Send",
    "StepSent",
    "StepsSent",
    "Tell",
    "Update",
    "Updates",
    "View",
]

Request: TypeAlias = Hashable
"""The shell's handle of a call that waits for its answer."""


class Part(NamedTuple):
    """A range of a key's elements that one server keeps: the key, its number among the key's, and the home's rank."""

    key: Key
    piece: int
    home: int


class Member(NamedTuple):
    """A worker that counts: rounds wait for it, and staleness is measured against it.

    Attributes:
        rank: its place in the order of summation.
        joined: the epoch of the view in which it appeared.
    """

    rank: int
    joined: int


@dataclass(frozen=True)
class View:
    """Membership of the job: the servers and workers that are alive.

    Attributes:
        epoch: counts the views.
        servers: by rank the identity of the server that is alive, or None; a restarted server has a new identity.
        workers: the identities of the workers that are alive.
        replicas: how many other servers keep a copy of a value: 1, or 0 where what a server has may be lost with it.
    """

    epoch: int
    servers: tuple[str | None, ...]
    workers: frozenset[str] = frozenset()
    replicas: int = 1

    def chain(self, home: int) -> list[str]:
        """The servers that are alive in the order in which they stand in for a home: primary, backup, ..."""
        ring = self.servers[home:] + self.servers[:home]
        return [server for server in ring if server is not None]

    def primary(self, home: int) -> str | None:
        """The server that answers for a home."""
        return next(iter(self.chain(home)), None)

    def backup(self, home: int) -> str | None:
        """The server that keeps a copy of what the primary has acknowledged, if any does."""
        return self._backups[home]

    @cached_property
    def _backups(self) -> list[str | None]:
        return [next(iter(self.chain(home)[1 : 1 + self.replicas]), None) for home in range(len(self.servers))]


# -- steps: what changes a part, in one order, on the primary and then on its backup -----------------------


class PartStep(NamedTuple):
    """One change of a part.

    Attributes:
        kind: ``create`` (the first value), ``enrol`` and ``rest`` (a worker counts, or no longer), ``update`` (pushes
            are applied), ``load`` (the value takes in what is no gradient, such as the states of an optimizer), or
            ``mirror`` (nothing changes, but a new backup needs a copy).
        number: counts the part's changes.
        worker: who asked for `enrol`, `rest` or `load`.
        turn: which of the worker's requests of these kinds it is.
        member: for `enrol`.
        start: for `enrol`, the number that the worker's pushes go on from.
        value: for `create`.
        merged: for `update`, the sum of the gradients, once it is known; for `load`, what is taken in.
        marks: for `update`, whose pushes are in it, with their sequence numbers, in the order of summation.
    """

    kind: Literal["create", "enrol", "rest", "update", "load", "mirror"]
    number: int = 0
    worker: str = ""
    turn: int = 0
    member: Member | None = None
    start: int = 0
    value: Any = None
    merged: Any = None
    marks: tuple[tuple[str, int], ...] = ()

    @property
    def computes(self) -> bool:
        """True for kinds of steps that compute a new value."""
        return self.kind in ("update", "load")


@dataclass(frozen=True)
class Record:
    """The whole state of a part at one moment, for another server or a snapshot.

    Attributes:
        part: which.
        term: counts the primaries that the part has had: of two records the later term is right.
        number: steps taken.
        round: updates among them.
        marks: by worker, the sequence number of its last push that is in the value.
        counted: the workers that count.
        turns: by worker, the turn of its last enrolment, rest or load.
        value: the value with its optimizer's state.
    """

    part: Part
    term: int
    number: int
    round: int
    marks: Mapping[str, int]
    counted: Mapping[str, Member]
    turns: Mapping[str, int]
    value: Any


# -- messages between servers; each carries the epoch of the view that its sender acted in -----------------


@dataclass(frozen=True)
class StepSent:
    """Primary to backup: take this step too."""

    epoch: int
    part: Part
    term: int
    step: PartStep


@dataclass(frozen=True)
class StepsSent:
    """Many :class:`StepSent` at once, of updates: the parts, their terms, the steps."""

    epoch: int
    parts: list[Part]
    terms: list[int]
    steps: list[PartStep]


@dataclass(frozen=True)
class Copy:
    """Take this record for the part, whatever you have."""

    epoch: int
    record: Record


@dataclass(frozen=True)
class Have:
    """Backup to primary: I have taken this step, or this copy."""

    epoch: int
    part: Part
    number: int


@dataclass(frozen=True)
class Haves:
    """Many :class:`Have` at once: the parts, and the step of each."""

    epoch: int
    parts: list[Part]
    numbers: list[int]


@dataclass(frozen=True)
class Behind:
    """Backup to primary: I can not take this step; send a copy."""

    epoch: int
    part: Part


@dataclass(frozen=True)
class Ask:
    """New primary to all others: tell me what you have of this home, and take nothing for it from an older view."""

    epoch: int
    home: int


@dataclass(frozen=True)
class Tell:
    """The answer: by part its term and number; and the configuration with its version."""

    epoch: int
    home: int
    parts: Mapping[Part, tuple[int, int]]
    common: tuple[int, Any]


@dataclass(frozen=True)
class Fetch:
    """New primary to who has the newest: send a copy of this part."""

    epoch: int
    part: Part


Message: TypeAlias = StepSent | StepsSent | Copy | Have | Haves | Behind | Ask | Tell | Fetch


# -- answers to workers ------------------------------------------------------------------------------------


class Acknowledged(NamedTuple):
    """Done, and on the backup; `number` is what the worker's pushes of this part go on from."""

    number: int


class Content(NamedTuple):
    """The answer to a pull: the value, and how many updates are in it."""

    value: Any
    round: int


@dataclass(frozen=True)
class Refused:
    """Refusal of a request; the caller's reaction depends on the kind.

    ``moved``: another server answers for the part: ask again there, after the next view. ``not_counted``: the worker
    does not count (any more): enrol first. ``not_initialized``: the part was never created. ``lost``: this server has
    less than was once acknowledged. ``update_failed``: an update raised, and so does everything after it. ``invalid``:
    the request makes no sense.
    """

    kind: Literal["moved", "not_counted", "not_initialized", "lost", "update_failed", "invalid"]
    text: str


Answer: TypeAlias = Acknowledged | Content | Refused


# -- effects: what the shell is to do, in this order -------------------------------------------------------


class Reply(NamedTuple):
    """Answer a request."""

    request: Request
    answer: Answer


class Replies(NamedTuple):
    """Many :class:`Reply` at once."""

    answers: list[tuple[Request, Answer]]


class Send(NamedTuple):
    """Send a message to another server, again and again until it arrives or the receiver has left the view."""

    to: str
    message: Message


class Merge(NamedTuple):
    """Sum gradients in this order; then call ``merged``."""

    part: Part
    ticket: int
    gradients: list[Any]


class Merges(NamedTuple):
    """Many :class:`Merge` at once; then call ``merged_all``, or ``merged`` for some of them."""

    parts: list[Part]
    tickets: list[int]
    gradients: list[list[Any]]


class Update(NamedTuple):
    """Apply a merged gradient to a value, which may be done in place; then call ``updated``, or ``failed``."""

    part: Part
    ticket: int
    value: Any
    merged: Any


class Updates(NamedTuple):
    """Many :class:`Update` at once; then call ``updated_all``, or for some of them ``updated`` or ``failed``."""

    parts: list[Part]
    tickets: list[int]
    values: list[Any]
    merged: list[Any]


@dataclass(frozen=True)
class Configure:
    """Use this configuration (the optimizer) from now on."""

    config: Any


Effect: TypeAlias = Reply | Replies | Send | Merge | Merges | Update | Updates | Configure
