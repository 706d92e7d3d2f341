"""Membership of a job: a pure state machine.

Events go in with the time at which they happen (:meth:`Members.join`, ``heartbeat``, ``leave``, ``fail``, ``barrier``,
``tick``); what follows from them is read off: ``epoch`` grows when the :class:`~flowmx.comm.view.View` changes,
``version`` when anything changes that a request may wait for. There is no clock, no loop and no I/O in this module, so
that tests drive it through any order of joins, losses, delays, duplicates and restarts.

How it works
------------
A job has a fixed number of *places*: ranks of workers and of servers. A node that joins is given a free one. Once all
places were taken the job runs. A node is *alive* while it or its process is heard of; silent for ``timeout`` seconds it
is *gone*; one that says goodbye has *left*, which is no failure. Under the policy ``"stop"`` a running job that loses a
node has failed, for good. Under ``"elastic"`` it goes on, and a new node may take the place of one that is gone or has
left.

Every start of a node has a greater *incarnation*. What an older one says is refused, as is what a node says after it
was declared gone: such a zombie must join anew.

Every start of the scheduler has a greater *term*. A node that calls a new term is refused, and registers again with
the newest view that it has (and a file, if there is one, holds another). The newest view of all wins: what it says of a
place is believed until the holder is heard of, or has been silent for ``timeout``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

from flowmx.comm import fields
from flowmx.comm.barriers import MOST_NAMES, Barriers
from flowmx.comm.view import ROLES, Member, Phase, Role, View

__all__ = ["POLICIES", "Code", "Denied", "Hello", "Job", "Members", "Policy"]

Policy = Literal["stop", "elastic"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

Code = Literal["unregistered", "stale", "full", "over", "other", "wrong"]
Key = tuple[Role, int]
T = TypeVar("T")

REMEMBERED = 32  # nodes lost lately that a view contains
LAST = 1 << 62  # of terms, epochs and rounds, all of which must be able to grow
MOST_ROUNDS = 1 << 62
PAST = 4096  # nodes without a place of which we still know that they had one


class Denied(Exception):
    """An event that the state machine refuses.

    Attributes:
        code: ``unregistered``: register (again); ``stale``: this incarnation has no place any more; ``full``: no place
            is free now; ``over``: the job has ended; ``other``: this is another job; ``wrong``: never possible.
    """

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Job:
    """The size of a job, and its policy for lost nodes.

    Args:
        workers: places of workers, at least one.
        servers: places of servers.
        timeout: seconds of silence after which a node is gone.
        policy: ``"stop"`` or ``"elastic"``.
        busy: seconds for which a node whose process runs may be too busy to say anything itself.
        deserted: seconds for which an elastic job without workers waits for one.
    """

    workers: int
    servers: int = 0
    timeout: float = 10.0
    policy: Policy = "stop"
    busy: float = 600.0
    deserted: float = 600.0

    def __post_init__(self) -> None:
        if self.workers < 1 or self.servers < 0:
            raise ValueError(f"a job has at least 1 worker and 0 servers, not {self.workers} and {self.servers}")
        if not self.timeout > 0:
            raise ValueError(f"the timeout of a job is a number of seconds above 0, not {self.timeout}")
        if self.policy not in POLICIES:
            raise ValueError(f"the policy of a job is one of {', '.join(POLICIES)}, not {self.policy!r}")

    def places(self, role: Role) -> range:
        """The ranks of a role."""
        return range(self.workers if role == "worker" else self.servers)


@dataclass(frozen=True)
class Hello:
    """A node's description of itself in its registration.

    Args:
        id: its name for itself.
        role: ``"worker"`` or ``"server"``.
        incarnation: which start of the node this is.
        address: where it answers.
        host: its machine.
        rank: the place that it would like, if free.
        beat: counts what the node sends, so that what arrives late or twice is not taken for a sign of life.
        known: the newest view that it has, if it was in the job already.
        rounds: the rounds of barriers that it knows of.
    """

    id: str
    role: Role
    incarnation: int
    address: str = ""
    host: str = ""
    rank: int | None = None
    beat: int = 0
    known: View | None = None
    rounds: Mapping[str, int] = field(default_factory=dict)


@dataclass
class PlaceState:
    """The state machine's knowledge of the holder of one place.

    Attributes:
        member: the holder.
        heard: when it was last heard of.
        basis: the view (term and epoch) that the knowledge comes from.
        confirmed: whether the holder itself was heard of in this term.
        late: whether it joined a running job.
        since: of each meeting that it has come to or attends, if it was late, the rounds that had ended then.
        beat: the newest sign of life.
        spoke: when its program itself was last heard of.
        pulse: the newest word that its process runs.
        doing: its last known activity.
    """

    member: Member
    heard: float
    basis: tuple[int, int]
    confirmed: bool = True
    late: bool = False
    since: dict[str, int] = field(default_factory=dict)
    beat: int = 0
    spoke: float = field(init=False)
    pulse: int = 0
    doing: str = ""

    def __post_init__(self) -> None:
        self.spoke = self.heard


class Members:
    """The nodes of one job.

    Args:
        job: what the job consists of.
        now: the time.
        term: greater than that of every earlier scheduler of this job.
        name: the job's name for itself.

    Attributes:
        epoch: grows with every change of the view.
        version: grows with every change of the view, and at the end of every round of a barrier.
        phase: as in :class:`View`.
        failure: why the job failed.
    """

    def __init__(self, job: Job, now: float, term: int = 1, name: str = "job") -> None:
        self.job = job
        self.term = term
        self.name = name
        self.epoch = 0
        self.version = 0
        self.phase: Phase = "forming"
        self.failure = ""
        self.barriers = Barriers()
        self.places: dict[Key, PlaceState] = {}
        self.past: dict[str, Member] = {}
        self.newest: dict[str, int] = {}  # the incarnation of each node that joined last
        self.gone: list[Member] = []
        self.ticked = now
        self.adopted = (0, 0)
        self._deserted: float | None = None
        self._view: View | None = None

    @property
    def view(self) -> View:
        """The current view of the job."""
        if self._view is None:
            order = sorted(self.places, key=lambda key: (ROLES.index(key[0]), key[1]))
            self._view = View(
                job=self.name,
                term=self.term,
                epoch=self.epoch,
                phase=self.phase,
                members=tuple(self.places[key].member for key in order),
                gone=tuple(self.gone),
                failure=self.failure,
            )
        return self._view

    def join(self, now: float, hello: Hello) -> Member:
        """Register a node, for the first time or again; return it with its rank.

        Raises:
            Denied: it cannot be a member.
        """
        self._adopt(now, hello.known, hello.rounds)
        self._refuse_stale(hello)
        place = self._place(hello.id)
        if place and place.member.state == "alive" and place.member.incarnation == hello.incarnation:
            self._hear(now, place, hello.beat)
            self._settle(now)
            return place.member
        self._refuse_over()
        key = self._assign(hello)
        if place and place.member.state == "alive":  # an older start of the same node
            self._lose(place, "it was started again, and had not said goodbye", fatal=False)
        self._remember(key)
        _put(self.newest, hello.id, hello.incarnation)
        member = Member(
            hello.id, hello.role, key[1], hello.address, hello.host, hello.incarnation, "alive", self.epoch + 1
        )
        late = self.phase == "running"
        self.places[key] = PlaceState(member, now, (self.term, self.epoch + 1), late=late, beat=hello.beat)
        self.barriers.forget(hello.id)  # what an earlier incarnation waited for
        self._changed(now)
        return member

    def heartbeat(self, now: float, node: str, incarnation: int, beat: int, term: int, doing: str = "") -> None:
        """Note a heartbeat of a node.

        Raises:
            Denied: it must register first, or has no place any more.
        """
        place = self._alive(node, incarnation, term)
        if beat > place.beat:
            self._hear(now, place, beat)
            place.doing = doing

    def pulse(self, now: float, node: str, incarnation: int, count: int) -> None:
        """Note that a node's process runs, though its program may be too busy for a heartbeat.

        Raises:
            Denied: it must register first, or has no place any more.
        """
        place = self._place(node)
        if place is None or place.member.state != "alive" or place.member.incarnation != incarnation:
            raise Denied("unregistered", f"incarnation {incarnation} of node {node[:12]} is not registered")
        if count > place.pulse and now - place.spoke <= self.job.busy:
            place.pulse, place.heard = count, max(now, place.heard)

    def leave(self, now: float, node: str, incarnation: int | None = None) -> None:
        """Note that a node has left, by its own word, or by its launcher's, which names no incarnation.

        Raises:
            Denied: it is unknown, or gone.
        """
        place = self._place(node)
        if place and place.member.state == "left" and incarnation in (None, place.member.incarnation):
            return
        place = self._alive(node, incarnation)
        place.member = replace(place.member, state="left", epoch=self.epoch + 1)
        self.barriers.forget(node)
        self._changed(now)

    def fail(self, now: float, node: str, incarnation: int | None = None, why: str = "") -> None:
        """Note that a node has failed, by its own word or by its launcher's, which may know better than a goodbye.

        Raises:
            Denied: it is unknown, or gone already.
        """
        fatal = self.job.policy == "stop" and self.phase in ("forming", "running")
        place = self._place(node)
        if place is None or place.member.state != "left" or incarnation is not None:
            place = self._alive(node, incarnation)
        self._lose(place, why or "it failed", fatal)
        self._changed(now)

    def barrier(
        self, now: float, node: str, incarnation: int, term: int, name: str, after: int = 0, first: bool = False,
        meet: bool = False,
    ) -> int | None:  # fmt: skip
        """Enter a worker at a barrier; return the round that it has passed, or None: it waits.

        Call it again with the same arguments when ``version`` has changed.

        Args:
            now: the time.
            node: the worker.
            incarnation: which start of it.
            term: the scheduler that it is registered with.
            name: the barrier's name. ``"name 3"`` belongs to round 3 of the meeting ``"name"``: who came to that
                later is not waited for here either.
            after: the last round of this name that the worker knows.
            first: whether this process comes here for the first time.
            meet: whether this is a meeting: who joined late is not waited for until it comes by itself, and is not
                excused from its first.

        Raises:
            Denied: it is no worker of this job, or the job has failed.
        """
        place = self._attending(node, incarnation, term)
        if len(self.barriers.waiting) >= MOST_NAMES and name not in self.barriers.waiting:
            raise Denied("wrong", f"at most {MOST_NAMES} barriers can be waited for at once")
        before = self.barriers.rounds.get(name, 0)
        if meet:
            after = self._met(place, name, after)
        passed = self.barriers.enter(node, name, after, excused=first and place.late and not meet)
        self.version += self.barriers.rounds.get(name, 0) != before
        if passed is None:
            self._settle(now)
            passed = after + 1 if self.barriers.rounds.get(name, 0) > after else None
        return passed

    def _met(self, place: PlaceState, name: str, after: int) -> int:
        """Note that a worker comes to a meeting; return the round after which it really comes."""
        if len(self.barriers.meetings) >= MOST_NAMES and name not in self.barriers.meetings:
            raise Denied("wrong", f"at most {MOST_NAMES} meetings can be waited for at once")
        self.barriers.meetings.add(name)
        if place.late and len(place.since) < MOST_NAMES and _meeting(name)[1] is None:
            place.since.setdefault(name, self.barriers.rounds.get(name, 0))
        return max(after, place.since.get(name, 0))

    def attend(self, now: float, node: str, incarnation: int, term: int, name: str) -> int:
        """Let a worker be waited for at a meeting from now on, though it has not come to it.

        Returns:
            The last round that it is no part of, since it joined late; otherwise 0.

        Raises:
            Denied: it is no worker of this job, or the job has failed.
        """
        place = self._attending(node, incarnation, term)
        return self._met(place, name, 0)

    def _attending(self, node: str, incarnation: int, term: int) -> PlaceState:
        """The place of a worker of a job that goes on."""
        place = self._alive(node, incarnation, term)
        if place.member.role != "worker":
            raise Denied("wrong", f"barriers are for workers, and {place.member.name} is none")
        if self.phase == "failed":
            raise Denied("over", self.failure)
        return place

    def _newcomers(self, name: str) -> list[str]:
        """The workers that joined late and have not come to a meeting yet, or came later than to the round it is of."""
        meeting, number = _meeting(name)
        before = MOST_ROUNDS if number is None else number
        return [
            place.member.id
            for place in self._living("worker")
            if place.late and place.since.get(meeting, MOST_ROUNDS) >= before
        ]

    def withdraw(self, node: str, incarnation: int, name: str) -> None:
        """Withdraw a worker from a barrier.

        Raises:
            Denied: it is no member of this job.
        """
        self._alive(node, incarnation)
        self.barriers.withdraw(node, name)

    def missing(self, name: str) -> list[Member]:
        """The workers that a barrier waits for, each with what it is doing."""
        waiting = self.barriers.waiting.get(name, set())
        return [
            replace(place.member, doing=place.doing)
            for place in self._living("worker")
            if place.member.id not in waiting
        ]

    def tick(self, now: float) -> None:
        """Advance to the time ``now``. Call it several times within ``timeout``: longer gaps are our own."""
        gap = now - self.ticked
        self.ticked = now
        if gap > self.job.timeout / 2:
            self._excuse(gap)
        silent = [place for place in self._living() if now - place.heard > self.job.timeout]
        fatal = self.job.policy == "stop" and self.phase == "running"
        for place in silent:
            self._lose(place, f"silent for {now - place.spoke:.1f} s", fatal)
        if silent:
            self._changed(now)
        if self._deserted is not None and self.phase == "running" and now - self._deserted > self.job.deserted:
            self._end("failed", "every worker is gone, and none came to replace them")
            self._changed(now)

    def snapshot(self) -> dict[str, Any]:
        """A snapshot for a scheduler that starts anew, of values that msgpack can hold; see :meth:`restore`."""
        return {"version": 1, "view": self.view.to_wire(), "rounds": self.barriers.to_wire()}

    def restore(self, now: float, found: object) -> None:
        """Go on from a snapshot.

        Raises:
            ValueError: it is none of this version.
            Denied: it is of another job.
        """
        wire = fields.mapping(found, "a snapshot")
        if wire.get("version") != 1:
            raise ValueError(f"the snapshot is of version {wire.get('version')!r}; this is version 1")
        self._adopt(now, View.from_wire(wire.get("view")), rounds_from_wire(wire))

    # What nodes and files know of earlier terms

    def _adopt(self, now: float, known: View | None, rounds: Mapping[str, int]) -> None:
        if known is None:
            return
        if max(known.order) > LAST:  # later ones could not be distinguished from it
            raise Denied("wrong", f"a view of term {known.term} and epoch {known.epoch}; no job comes beyond {LAST}")
        self._refuse_other(known)
        self.version += self.barriers.learn(rounds)
        if known.term == self.term or known.order <= self.adopted:
            return
        self.name, self.adopted = known.job, known.order
        self.term = max(self.term, known.term + 1)  # a clock that was set back must not make old views win
        if self.phase == "forming" and known.phase != "forming":
            self.places.clear()  # who came before the running job's own nodes registers again
        for key in [key for key, place in self.places.items() if place.basis < known.order]:
            self._reconsider(key, known)
        for member in known.members:
            self._believe(now, member, known)
        if self.phase in ("forming", "running"):
            self.phase, self.failure = known.phase, known.failure
        mine = {(member.id, member.incarnation) for member in known.gone}
        self.gone = [*known.gone, *(m for m in self.gone if (m.id, m.incarnation) not in mine)][-REMEMBERED:]
        self.past.update((member.id, member) for member in known.gone if self._place(member.id) is None)
        self.barriers.keep(place.member.id for place in self._living("worker"))
        self.epoch = max(self.epoch, known.epoch)
        self._changed(now)

    def _reconsider(self, key: Key, known: View) -> None:
        """Drop an older view's entry of a place, unless the newer one has the same."""
        member, there = self.places[key].member, known.at(*key)
        same = there and (there.id, there.incarnation, there.state) == (member.id, member.incarnation, member.state)
        if not same:
            del self.places[key]

    def _believe(self, now: float, member: Member, known: View) -> None:
        key = (member.role, member.rank)
        if key not in self.places and self._place(member.id) is None and member.rank in self.job.places(member.role):
            self.places[key] = PlaceState(member, now, known.order, confirmed=False)

    # What happens to places

    def _assign(self, hello: Hello) -> Key:
        held = self._place(hello.id)
        if held is not None:
            return hello.role, held.member.rank
        known = hello.known.find(hello.id) if hello.known and hello.known.phase == "running" else None
        if known is not None and known.incarnation == hello.incarnation and not self._free(known.role, known.rank):
            raise Denied("stale", f"the place of {known.name} was given away while the scheduler started anew")
        free = [rank for rank in self.job.places(hello.role) if self._free(hello.role, rank)]
        if not free:
            total = len(self.job.places(hello.role))
            raise Denied("full", f"all {total} places of {hello.role}s are taken")
        wanted = known.rank if known is not None else hello.rank
        return hello.role, wanted if wanted in free else free[0]

    def _free(self, role: Role, rank: int) -> bool:
        place = self.places.get((role, rank))
        if place is None:
            return True
        return place.member.state != "alive" and (self.job.policy == "elastic" or self.phase == "forming")

    def _remember(self, key: Key) -> None:
        """Remember the former holder of a place that another takes."""
        if key in self.places:
            member = self.places[key].member
            _put(self.past, member.id, member)

    def _hear(self, now: float, place: PlaceState, beat: int) -> None:
        place.confirmed = True
        if beat > place.beat:
            place.beat, place.heard = beat, max(now, place.heard)
            place.spoke = place.heard

    def _lose(self, place: PlaceState, why: str, fatal: bool) -> None:
        place.member = replace(place.member, state="gone", epoch=self.epoch + 1, doing=place.doing, why=why)
        self.gone = [*self.gone, place.member][-REMEMBERED:]
        self.barriers.forget(place.member.id)
        if fatal:
            more = f"{self.failure}\n" if self.failure else ""
            self._end("failed", (more + place.member.obituary)[:4000])

    def _end(self, phase: Phase, failure: str = "") -> None:
        if self.phase != "finished":
            self.phase, self.failure = phase, failure

    def _excuse(self, gap: float) -> None:
        """Leave out time in which the scheduler itself did not run, and so heard nobody."""
        for place in self.places.values():
            place.heard += gap
            place.spoke += gap
        if self._deserted is not None:
            self._deserted += gap

    def _changed(self, now: float) -> None:
        self.epoch += 1
        self.version += 1
        self._view = None
        self._settle(now)

    def _settle(self, now: float) -> None:
        """Apply the rules: form or finish the job, and end complete barriers."""
        before = self.phase
        workers = [place.member.id for place in self._living("worker")]
        here = sum(place.confirmed for place in self._living())
        if self.phase == "forming" and here == self.job.workers + self.job.servers:
            self.phase = "running"
        if self.phase == "running":
            self._deserted = None if workers else self._deserted if self._deserted is not None else now
            if not workers and any(place.member.state == "left" for place in self._held("worker")):
                self._end("finished")
            late = {place.member.id for place in self._living("worker") if place.late}
            self.version += bool(self.barriers.settle(workers, self._newcomers)) or self.barriers.release(workers, late)
        if self.phase != before:
            self.epoch += 1
            self.version += 1
            self._view = None

    # Who is who

    def _held(self, role: Role) -> list[PlaceState]:
        return [place for place in self.places.values() if place.member.role == role]

    def _living(self, role: Role | None = None) -> Iterator[PlaceState]:
        return (
            place
            for place in self.places.values()
            if place.member.state == "alive" and role in (None, place.member.role)
        )

    def _place(self, node: str) -> PlaceState | None:
        return next((place for place in self.places.values() if place.member.id == node), None)

    def _alive(self, node: str, incarnation: int | None, term: int | None = None) -> PlaceState:
        place = self._place(node)
        if place is None:
            self._refuse_past(node, incarnation)
            raise Denied("unregistered", f"node {node[:12]} is not registered")
        member = place.member
        if incarnation is None and not place.confirmed and member.state == "alive":
            return place  # its launcher knows, though it was not heard of in this term
        if incarnation is None:
            incarnation = member.incarnation
        if incarnation < member.incarnation or (incarnation == member.incarnation and member.state != "alive"):
            raise _stale(member, incarnation)
        if incarnation > member.incarnation or not place.confirmed:
            raise Denied("unregistered", f"incarnation {incarnation} of node {node[:12]} is not registered")
        if term not in (None, self.term):
            raise Denied("unregistered", f"the scheduler started anew (term {self.term}): register again")
        return place

    def _refuse_past(self, node: str, incarnation: int | None) -> None:
        past = self.past.get(node)
        if past is not None and (incarnation is None or incarnation <= past.incarnation):
            raise _stale(past, past.incarnation if incarnation is None else incarnation)

    def _refuse_stale(self, hello: Hello) -> None:
        newest = self.newest.get(hello.id, 0)
        if hello.incarnation < newest:
            raise Denied("stale", f"incarnation {hello.incarnation} of a node that was started again ({newest})")
        place = self._place(hello.id)
        if place is None:
            self._refuse_past(hello.id, hello.incarnation)
            return
        member = place.member
        if hello.role != member.role:
            raise Denied("wrong", f"node {hello.id[:12]} joins as a {hello.role}, and is a {member.role} already")
        newer = hello.incarnation > member.incarnation
        same = hello.incarnation == member.incarnation and member.state == "alive"
        if not (newer or same):
            raise _stale(member, hello.incarnation)

    def _refuse_other(self, known: View) -> None:
        if known.job != self.name and (self.phase != "forming" or self.adopted != (0, 0)):
            raise Denied("other", f"this is the scheduler of job {self.name}, not of {known.job}")

    def _refuse_over(self) -> None:
        if self.phase == "failed":
            raise Denied("over", f"the job has failed: {self.failure}")
        if self.phase == "finished":
            raise Denied("over", "the job has finished")


def _put(found: dict[str, T], key: str, value: T) -> None:
    """Put an entry last, and drop the first where there are too many."""
    found.pop(key, None)
    found[key] = value
    while len(found) > PAST:
        del found[next(iter(found))]


def _meeting(name: str) -> tuple[str, int | None]:
    """The meeting that a barrier belongs to, and of which of its rounds it is."""
    meeting, _, number = name.rpartition(" ")
    return (meeting, int(number)) if meeting and number.isdecimal() and len(number) < 19 else (name, None)


def rounds_from_wire(wire: Mapping[str, Any]) -> dict[str, int]:
    """The rounds of barriers in a header or a snapshot.

    Raises:
        ValueError: they are none.
    """
    found = fields.mapping(wire.get("rounds", {}), "the rounds")
    if len(found) > MOST_NAMES:
        raise ValueError(f"there are {len(found)} rounds of barriers; at most {MOST_NAMES} are taken")
    return {fields.text({"name": name}, "name", 200): fields.whole(found, name, most=LAST) for name in found}


def _stale(member: Member, incarnation: int) -> Denied:
    if incarnation < member.incarnation:
        text = f"incarnation {incarnation} of {member.name} was replaced by incarnation {member.incarnation}"
    elif member.state == "left":
        text = f"{member.name} has left the job"
    else:
        text = member.obituary if member.state == "gone" else f"{member.name} has lost its place"
    return Denied("stale", text)
