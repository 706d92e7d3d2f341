"""The view of a job at one moment: its nodes, their ranks and states; and its encoding for the wire.

A view is complete in itself: a scheduler that starts anew, with or without a file of its own, goes on from the newest
view that any node kept.
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

MOST_MEMBERS = 65536


@dataclass(frozen=True, slots=True)
class Member:
    """A node, as the others see it.

    Attributes:
        id: its name for itself, a UUID in hexadecimal digits as a rule.
        role: ``"worker"`` or ``"server"``.
        rank: its number among those of its role.
        address: where it answers, such as ``"http://127.0.0.1:9000"``; empty where it does not.
        host: the machine that it runs on.
        incarnation: which start of this node it is: a later start has a higher number.
        state: ``"alive"``, ``"gone"`` (it fell silent, or failed) or ``"left"`` (it said goodbye).
        epoch: the view in which it became what it is.
        doing: its last known activity; only of nodes that are gone.
        why: why it is gone.
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
    def obituary(self) -> str:
        """A sentence about a lost node, for messages: its name and host, the reason, and its last known activity."""
        where = f" on {self.host}" if self.host else ""
        doing = f"; it was last known to do: {self.doing}" if self.doing else ""
        return f"{self.name}{where} (node {self.id[:12]}) is gone: {self.why or 'no reason is known'}{doing}"

    def to_wire(self) -> dict[str, Any]:
        """The member as values that msgpack can hold."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_wire(cls, found: object) -> Member:
        """Decode the member that :meth:`to_wire` encoded.

        Raises:
            ValueError: it is none.
        """
        wire = fields.mapping(found, "a member")
        return cls(
            id=fields.text(wire, "id", 64, least=1),
            role=cast("Role", fields.choice(wire, "role", ROLES)),
            rank=fields.whole(wire, "rank"),
            address=fields.text(wire, "address", 300),
            host=fields.text(wire, "host", 300),
            incarnation=fields.whole(wire, "incarnation"),
            state=cast("State", fields.choice(wire, "state", STATES)),
            epoch=fields.whole(wire, "epoch"),
            doing=fields.text(wire, "doing", 400),
            why=fields.text(wire, "why", 1000),
        )


@dataclass(frozen=True)
class View:
    """The nodes of a job at one epoch.

    Attributes:
        job: the job's own name, so that two jobs at one address are not mixed up.
        term: which start of the scheduler made the view.
        epoch: counts the views, over all terms.
        phase: ``"forming"`` until every place was taken once, then ``"running"``, at last ``"finished"`` (every worker
            left) or ``"failed"``.
        members: for every place, by role and rank, who holds it, or held it last.
        gone: the nodes that were lost lately, oldest first.
        failure: why the job failed; empty otherwise.
    """

    job: str
    term: int
    epoch: int
    phase: Phase
    members: tuple[Member, ...] = ()
    gone: tuple[Member, ...] = ()
    failure: str = ""

    @property
    def order(self) -> tuple[int, int]:
        """The view's version, (term, epoch): of two views the one with the greater is newer."""
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
        """The nodes of a role that are alive, by rank."""
        return tuple(member for member in self.members if member.role == role and member.state == "alive")

    def at(self, role: Role, rank: int) -> Member | None:
        """The member that holds a place, or held it last; None if nobody did."""
        return next((member for member in self.members if (member.role, member.rank) == (role, rank)), None)

    def find(self, node: str) -> Member | None:
        """The member of an id."""
        return next((member for member in self.members if member.id == node), None)

    def to_wire(self) -> dict[str, Any]:
        """The view as values that msgpack can hold."""
        return {
            "job": self.job,
            "term": self.term,
            "epoch": self.epoch,
            "phase": self.phase,
            "members": [member.to_wire() for member in self.members],
            "gone": [member.to_wire() for member in self.gone],
            "failure": self.failure,
        }

    @classmethod
    def from_wire(cls, found: object) -> View:
        """Decode the view that :meth:`to_wire` encoded.

        Raises:
            ValueError: it is none.
        """
        wire = fields.mapping(found, "a view")
        return cls(
            job=fields.text(wire, "job", 64, least=1),
            term=fields.whole(wire, "term"),
            epoch=fields.whole(wire, "epoch"),
            phase=cast("Phase", fields.choice(wire, "phase", PHASES)),
            members=_members(wire, "members"),
            gone=_members(wire, "gone"),
            failure=fields.text(wire, "failure", 4000),
        )


def _members(wire: Mapping[str, Any], name: str) -> tuple[Member, ...]:
    found: Sequence[Any] = fields.sequence(wire, name, MOST_MEMBERS)
    return tuple(Member.from_wire(item) for item in found)
