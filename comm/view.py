"""The view of a job at one moment: its nodes, their ranks and states; and its wire encoding.

A view is self-contained: a restarted scheduler, with or without a snapshot file, resumes from the newest view of any
node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast, get_args

from flowmx.comm import fields

__all__ = ["PHASES", "ROLES", "Member", "Phase", "Role", "State", "View"]

Role = Literal["worker", "server"]
State = Literal["alive", "gone", "left"]
Phase = Literal["forming", "running", "finished", "failed"]

ROLES: tuple[Role, ...] = get_args(Role)
STATES: tuple[State, ...] = get_args(State)
PHASES: tuple[Phase, ...] = get_args(Phase)

MAX_MEMBERS = 65536


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a job.

    Attributes:
        id: its id, usually a UUID in hexadecimal digits.
        role: ``"worker"`` or ``"server"``.
        rank: its number among the nodes of its role.
        address: the address of its service, such as ``"http://127.0.0.1:9000"``; empty if it has none.
        host: its machine.
        incarnation: the number of this start of the node; it grows with each start.
        state: ``"alive"``, ``"gone"`` (silent or failed) or ``"left"`` (it sent a leave message).
        epoch: the epoch of its last change.
        doing: its last known activity; only for nodes that are gone.
        why: the reason of its loss.
    """

    id: str
    role: Role
    rank: int
    address: str = ""
    host: str = ""
    incarnation: int = 0
    state: State = "alive"
    epoch: int = 0
    doing: str = ""
    why: str = ""

    @property
    def name(self) -> str:
        """The member's display name: ``"worker 1"``."""
        return f"{self.role} {self.rank}"

    @property
    def loss_message(self) -> str:
        """The message about a lost node: its name and host, the reason, and its last known activity."""
        where = f" on {self.host}" if self.host else ""
        doing = f"; last known activity: {self.doing}" if self.doing else ""
        return f"{self.name}{where} (node {self.id[:12]}) is gone: {self.why or 'unknown reason'}{doing}"

    def to_wire(self) -> dict[str, object]:
        """Encode the member for msgpack."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_wire(cls, value: object) -> Member:
        """Decode the result of :meth:`to_wire`.

        Raises:
            ValueError: the value is invalid.
        """
        wire = fields.mapping(value, "a member")
        return cls(
            id=fields.text(wire, "id", 64, min_length=1),
            role=cast("Role", fields.choice(wire, "role", ROLES)),
            rank=fields.integer(wire, "rank"),
            address=fields.text(wire, "address", 300),
            host=fields.text(wire, "host", 300),
            incarnation=fields.integer(wire, "incarnation"),
            state=cast("State", fields.choice(wire, "state", STATES)),
            epoch=fields.integer(wire, "epoch"),
            doing=fields.text(wire, "doing", 400),
            why=fields.text(wire, "why", 1000),
        )


@dataclass(frozen=True)
class View:
    """The nodes of a job at one epoch.

    Attributes:
        job: a random name, by which two jobs at one address are distinguished.
        term: the number of the scheduler's start that created the view.
        epoch: the number of the view, over all terms.
        phase: ``"forming"`` until every place has been taken once, then ``"running"``, finally ``"finished"`` (every
            worker left) or ``"failed"``.
        members: the current or last holder of every place, by role and rank.
        lost: recently lost nodes, oldest first; ``gone`` on the wire.
        failure: the reason of the job's failure; empty otherwise.
    """

    job: str
    term: int
    epoch: int
    phase: Phase
    members: tuple[Member, ...] = ()
    lost: tuple[Member, ...] = ()
    failure: str = ""

    @property
    def order(self) -> tuple[int, int]:
        """The view's version, (term, epoch): a newer view has a greater one."""
        return self.term, self.epoch

    @property
    def over(self) -> bool:
        """True once the job has ended, finished or failed."""
        return self.phase in ("finished", "failed")

    @cached_property
    def workers(self) -> tuple[Member, ...]:
        """The workers that are alive, by rank."""
        return self.alive("worker")

    @cached_property
    def servers(self) -> tuple[Member, ...]:
        """The servers that are alive, by rank."""
        return self.alive("server")

    def alive(self, role: Role) -> tuple[Member, ...]:
        """Return the nodes of a role that are alive, by rank."""
        return tuple(member for member in self.members if member.role == role and member.state == "alive")

    def at(self, role: Role, rank: int) -> Member | None:
        """Return the current or last holder of a place, or None."""
        return next((member for member in self.members if (member.role, member.rank) == (role, rank)), None)

    def find(self, node: str) -> Member | None:
        """Return the member with an id, or None."""
        return next((member for member in self.members if member.id == node), None)

    def to_wire(self) -> dict[str, object]:
        """Encode the view for msgpack."""
        return {
            "job": self.job,
            "term": self.term,
            "epoch": self.epoch,
            "phase": self.phase,
            "members": [member.to_wire() for member in self.members],
            "gone": [member.to_wire() for member in self.lost],
            "failure": self.failure,
        }

    @classmethod
    def from_wire(cls, value: object) -> View:
        """Decode the result of :meth:`to_wire`.

        Raises:
            ValueError: the value is invalid.
        """
        wire = fields.mapping(value, "a view")
        return cls(
            job=fields.text(wire, "job", 64, min_length=1),
            term=fields.integer(wire, "term"),
            epoch=fields.integer(wire, "epoch"),
            phase=cast("Phase", fields.choice(wire, "phase", PHASES)),
            members=_members(wire, "members"),
            lost=_members(wire, "gone"),
            failure=fields.text(wire, "failure", 4000),
        )


def _members(wire: Mapping[str, object], name: str) -> tuple[Member, ...]:
    value: Sequence[Any] = fields.sequence(wire, name, MAX_MEMBERS)
    return tuple(Member.from_wire(item) for item in value)
