"""Inputs and effects of a server's state machine.

Values and gradients are opaque: the machine passes them on and never reads them. Classes with an instance for every
push are named tuples, since a frozen dataclass takes four times as long to construct.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

from flowmx.kvstore.shards import Key

__all__ = [
    "Acknowledged",
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
    "Response",
    "Send",
    "StepSent",
    "StepsSent",
    "Tell",
    "Update",
    "Updates",
    "View",
]

Request: TypeAlias = Hashable
"""The shell's handle of a call that waits for a response."""


class Part(NamedTuple):
    """A range of a key's elements on one server: the key, the number of the range, and the rank of its home."""

    key: Key
    piece: int
    home: int


class Member(NamedTuple):
    """A counted worker: rounds wait for it, and staleness is measured against it.

    Attributes:
        rank: its position in the order of summation.
        joined: the epoch of the view in which it appeared.
    """

    rank: int
    joined: int


@dataclass(frozen=True)
class View:
    """Membership of the job: the servers and workers that are alive.

    Attributes:
        epoch: the number of the view.
        servers: the identity of each rank's live server, or None; a restarted server has a new identity.
        workers: the identities of the live workers.
        replicas: the number of backups of a value: 1, or 0 where values may be lost together with their server.
    """

    epoch: int
    servers: tuple[str | None, ...]
    workers: frozenset[str] = frozenset()
    replicas: int = 1

    def chain(self, home: int) -> list[str]:
        """Return the live servers in the order in which they serve a home: primary, backup, ..."""
        ring = self.servers[home:] + self.servers[:home]
        return [server for server in ring if server is not None]

    def primary(self, home: int) -> str | None:
        """Return the server that answers for a home."""
        return next(iter(self.chain(home)), None)

    def backup(self, home: int) -> str | None:
        """Return the server that has a copy of everything that the primary has acknowledged; None without one."""
        return self._backups[home]

    @cached_property
    def _backups(self) -> list[str | None]:
        return [next(iter(self.chain(home)[1 : 1 + self.replicas]), None) for home in range(len(self.servers))]


# -- steps: the changes of a part, in one order, on the primary and then on its backup ---------------------


class PartStep(NamedTuple):
    """One change of a part.

    Attributes:
        kind: ``create`` (the initial value), ``enrol`` and ``rest`` (a worker is counted, or no longer), ``update``
            (pushes are applied), ``load`` (the value is updated by other data, such as the states of an optimizer),
            or ``mirror`` (nothing changes, but a new backup needs a copy).
        number: the number of the change within the part.
        worker: for `enrol`, `rest` and `load`, the worker that requested it.
        turn: for `enrol`, `rest` and `load`, the number of the worker's request.
        member: for `enrol`, the worker's rank and epoch.
        start: for `enrol`, the number after which the worker's pushes continue.
        value: for `create`, the initial value.
        merged: for `update`, the sum of the gradients, once it is computed; for `load`, the data.
        marks: for `update`, its workers with the sequence numbers of their pushes, in the order of summation.
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
        part: the part.
        term: counts the primaries of the part: of two records the one with the later term is valid.
        number: the number of steps.
        round: the number of updates among them.
        marks: the sequence number of each worker's last push in the value.
        counted: the counted workers.
        turns: the turn of each worker's last enrolment, rest or load.
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


# -- messages between servers; each has the epoch of its sender's view --------------------------------------


@dataclass(frozen=True)
class StepSent:
    """Primary to backup: apply this step."""

    epoch: int
    part: Part
    term: int
    step: PartStep


@dataclass(frozen=True)
class StepsSent:
    """Several :class:`StepSent` of updates: the parts, their terms, the steps."""

    epoch: int
    parts: list[Part]
    terms: list[int]
    steps: list[PartStep]


@dataclass(frozen=True)
class Copy:
    """Replace the state of the part by this record."""

    epoch: int
    record: Record


@dataclass(frozen=True)
class Have:
    """Backup to primary: the step or copy with this number is applied."""

    epoch: int
    part: Part
    number: int


@dataclass(frozen=True)
class Haves:
    """Several :class:`Have`: the parts, and the step number of each."""

    epoch: int
    parts: list[Part]
    numbers: list[int]


@dataclass(frozen=True)
class Behind:
    """Backup to primary: the step cannot be applied; send a copy."""

    epoch: int
    part: Part


@dataclass(frozen=True)
class Ask:
    """New primary to all others: report your parts of this home, and accept nothing for it from an older view."""

    epoch: int
    home: int


@dataclass(frozen=True)
class Tell:
    """The response to :class:`Ask`: the term and number of each part; and the configuration with its version."""

    epoch: int
    home: int
    parts: Mapping[Part, tuple[int, int]]
    common: tuple[int, Any]


@dataclass(frozen=True)
class Fetch:
    """New primary to the server with the newest state: send a copy of this part."""

    epoch: int
    part: Part


Message: TypeAlias = StepSent | StepsSent | Copy | Have | Haves | Behind | Ask | Tell | Fetch


# -- answers to workers ------------------------------------------------------------------------------------


class Acknowledged(NamedTuple):
    """The request is done, also on the backup; the worker's pushes of this part continue after `number`."""

    number: int


class Content(NamedTuple):
    """The response to a pull: the value, and the number of updates in it."""

    value: Any
    round: int


@dataclass(frozen=True)
class Refused:
    """Refusal of a request; the caller's reaction depends on the kind.

    ``moved``: another server answers for the part: retry there, after the next view. ``not_counted``: the worker is not
    counted (any more): enrol first. ``not_initialized``: the part was never created. ``lost``: acknowledged pushes are
    missing on this server. ``update_failed``: an update raised; later requests fail too. ``invalid``: the request is
    invalid.
    """

    kind: Literal["moved", "not_counted", "not_initialized", "lost", "update_failed", "invalid"]
    text: str


Response: TypeAlias = Acknowledged | Content | Refused


# -- effects: the actions of the shell, in this order -------------------------------------------------------


class Reply(NamedTuple):
    """Answer a request."""

    request: Request
    response: Response


class Replies(NamedTuple):
    """Several :class:`Reply`."""

    responses: list[tuple[Request, Response]]


class Send(NamedTuple):
    """Send a message to another server; retry until it arrives or the receiver has left the view."""

    to: str
    message: Message


class Merge(NamedTuple):
    """Sum gradients in this order; then call ``merged``."""

    part: Part
    ticket: int
    gradients: list[Any]


class Merges(NamedTuple):
    """Several :class:`Merge`; then call ``merged_all``, or ``merged`` for some of them."""

    parts: list[Part]
    tickets: list[int]
    gradients: list[list[Any]]


class Update(NamedTuple):
    """Apply a merged gradient to a value, possibly in place; then call ``updated``, or ``failed``."""

    part: Part
    ticket: int
    value: Any
    merged: Any


class Updates(NamedTuple):
    """Several :class:`Update`; then call ``updated_all``, or for some of them ``updated`` or ``failed``."""

    parts: list[Part]
    tickets: list[int]
    values: list[Any]
    merged: list[Any]


@dataclass(frozen=True)
class Configure:
    """Use this configuration (the optimizer) from now on."""

    config: Any


Effect: TypeAlias = Reply | Replies | Send | Merge | Merges | Update | Updates | Configure
