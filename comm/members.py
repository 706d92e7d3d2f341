"""Membership of a job: a pure state machine.

Events are passed in with their time (:meth:`Members.join`, ``heartbeat``, ``leave``, ``fail``, ``barrier``, ``tick``).
``epoch`` grows when the :class:`~flowmx.comm.view.View` changes; ``version`` grows when anything changes that a request
may wait for. This module has no clock, no event loop and no I/O, so tests can drive it through any order of joins,
losses, delays, duplicates and restarts.

How it works
------------
A job has a fixed number of *places*: ranks of workers and of servers. A node that joins gets a free one. The job runs
once all places have been taken. A node is *alive* while it or its process sends reports. After ``timeout`` seconds of
silence it is *gone*. After a leave message it has *left*, which is not a failure. Under the policy ``"stop"`` a running
job that loses a node has failed, permanently. Under ``"elastic"`` it continues, and a new node may take the place of
one that is gone or has left.

Every start of a node has a greater *incarnation*. Messages of an older incarnation are refused. So are messages of a
node that was declared gone: it must join again.

Every start of the scheduler has a greater *term*. A node that calls a scheduler of a new term is refused, and registers
again with its newest view (a snapshot file, if any, contains another). The newest of all views is adopted. Its entry
for a place is kept until the holder reports, or has been silent for ``timeout``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar, get_args

from flowmx.comm import fields
from flowmx.comm.barriers import MAX_NAMES, Barriers
from flowmx.comm.view import ROLES, Member, Phase, Role, View

__all__ = ["MAX_NAME", "POLICIES", "Code", "Denied", "Job", "JoinRequest", "Members", "Policy"]

Policy = Literal["stop", "elastic"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

Code = Literal["unregistered", "stale", "full", "over", "other", "wrong"]
Key = tuple[Role, int]
T = TypeVar("T")

MAX_LOST = 32  # recently lost nodes in a view
MAX_NUMBER = 1 << 62  # of received terms, epochs and rounds; they must still be able to grow
MAX_ROUNDS = 1 << 62
MAX_NAME = 200  # characters of a job's name
MAX_FORMER = 4096  # stored former holders of places


class Denied(Exception):
    """An event that the state machine refuses.

    Attributes:
        code: ``unregistered``: register (again); ``stale``: this incarnation has lost its place; ``full``: no place is
            free now; ``over``: the job has ended; ``other``: this is another job; ``wrong``: the event is invalid.
    """

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Job:
    """The size of a job, and its policy for lost nodes.

    Args:
        workers: the number of workers, at least one.
        servers: the number of servers.
        timeout: seconds of silence after which a node is gone.
        policy: ``"stop"`` or ``"elastic"``.
        busy: seconds for which a node may send no heartbeats while its process is reported alive.
        no_workers_timeout: seconds for which an elastic job without workers waits for one.
        name: the name that nodes pass when they join; may be empty.
    """

    workers: int
    servers: int = 0
    timeout: float = 10.0
    policy: Policy = "stop"
    busy: float = 600.0
    no_workers_timeout: float = 600.0
    name: str = ""

    def __post_init__(self) -> None:
        if self.workers < 1 or self.servers < 0:
            raise ValueError(f"a job has at least 1 worker and 0 servers, not {self.workers} and {self.servers}")
        if not self.timeout > 0:
            raise ValueError(f"the timeout of a job is a number of seconds above 0, not {self.timeout}")
        if self.policy not in POLICIES:
            raise ValueError(f"the policy of a job is one of {', '.join(POLICIES)}, not {self.policy!r}")

    def refuse_foreign(self, request: JoinRequest) -> None:
        """Refuse a node of another job.

        Raises:
            Denied: it names another job, or one of another size.
        """
        where = f" on {request.host}" if request.host else ""
        who = f"{request.role}{where} (node {request.id[:12]})"
        if request.job != self.name:
            raise Denied(
                "other",
                f"this is the scheduler of {_job_text(self.name)}, and {who} belongs to {_job_text(request.job)}: "
                "two jobs have the same address, or a process is left over from an earlier attempt. Give each job its "
                "own port, and set FLOWMX_JOB to the same value for the scheduler and all nodes of a job",
            )
        if request.size is not None and request.size != (self.workers, self.servers):
            own_size, other_size = (_size_text(*size) for size in ((self.workers, self.servers), request.size))
            raise Denied(
                "other",
                f"this is the scheduler of a job of {own_size}, and {who} belongs to one of {other_size}: give each "
                "job its own port, and all its processes the same numbers (FLOWMX_NUM_WORKERS, FLOWMX_NUM_SERVERS, "
                "or DMLC's)",
            )

    def places(self, role: Role) -> range:
        """The ranks of a role."""
        return range(self.workers if role == "worker" else self.servers)


@dataclass(frozen=True)
class JoinRequest:
    """A node's registration.

    Args:
        id: its id.
        role: ``"worker"`` or ``"server"``.
        incarnation: the number of this start of the node; it grows with each start.
        address: the address of its service.
        host: its machine.
        rank: the preferred rank.
        beat: the number of its last heartbeat, by which late and repeated ones are recognized.
        view: its newest view, if it has been in the job before.
        rounds: the rounds of barriers that it knows of.
        job: the name of its job; empty if it has none.
        size: the expected numbers of workers and servers, if known.
    """

    id: str
    role: Role
    incarnation: int
    address: str = ""
    host: str = ""
    rank: int | None = None
    beat: int = 0
    view: View | None = None
    rounds: Mapping[str, int] = field(default_factory=dict)
    job: str = ""
    size: tuple[int, int] | None = None


@dataclass
class PlaceState:
    """The state of one place.

    Attributes:
        member: the holder.
        last_report: the time of the last report by the holder or its process.
        basis: the view (term and epoch) that this entry comes from.
        confirmed: whether the holder has reported in this term.
        late: whether it joined a running job.
        first_meetings: for a late holder, by meeting, the number of rounds that had ended when it first took part.
        beat: the number of the newest heartbeat.
        last_heartbeat: the time of the last heartbeat by the program itself.
        pulse: the number of the newest report that its process is alive.
        doing: its last known activity.
    """

    member: Member
    last_report: float
    basis: tuple[int, int]
    confirmed: bool = True
    late: bool = False
    first_meetings: dict[str, int] = field(default_factory=dict)
    beat: int = 0
    last_heartbeat: float = field(init=False)
    pulse: int = 0
    doing: str = ""

    def __post_init__(self) -> None:
        self.last_heartbeat = self.last_report


class Members:
    """The nodes of one job.

    Args:
        job: the job's size and policy.
        now: the time.
        term: a number greater than that of every earlier scheduler of this job.
        name: a random name of the job.

    Attributes:
        epoch: grows with every change of the view.
        version: grows with every change of the view, and at the end of every round of a barrier.
        phase: as in :class:`View`.
        failure: the reason of the job's failure.
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
        self.newest: dict[str, int] = {}  # the newest incarnation of each node
        self.lost: list[Member] = []
        self.ticked = now
        self.adopted = (0, 0)
        self._empty_since: float | None = None
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
                lost=tuple(self.lost),
                failure=self.failure,
            )
        return self._view

    def join(self, now: float, request: JoinRequest) -> Member:
        """Register a node, for the first time or again; return its entry, with its rank.

        Raises:
            Denied: it cannot be a member.
        """
        self.job.refuse_foreign(request)
        self._adopt(now, request.view, request.rounds)
        self._refuse_stale(request)
        place = self._place(request.id)
        if place and place.member.state == "alive" and place.member.incarnation == request.incarnation:
            self._record_beat(now, place, request.beat)
            self._apply_rules(now)
            return place.member
        self._refuse_over()
        key = self._assign(request)
        if place and place.member.state == "alive":  # an earlier incarnation of the node
            self._mark_lost(place, "it was restarted without leaving the job", fatal=False)
        self._record_former(key)
        _put_bounded(self.newest, request.id, request.incarnation)
        member = Member(
            request.id,
            request.role,
            key[1],
            request.address,
            request.host,
            request.incarnation,
            "alive",
            self.epoch + 1,
        )
        late = self.phase == "running"
        self.places[key] = PlaceState(member, now, (self.term, self.epoch + 1), late=late, beat=request.beat)
        self.barriers.forget(request.id)  # an earlier incarnation may wait there
        self._on_change(now)
        return member

    def heartbeat(self, now: float, node: str, incarnation: int, beat: int, term: int, doing: str = "") -> None:
        """Record a heartbeat of a node.

        Raises:
            Denied: it must register first, or has lost its place.
        """
        place = self._alive(node, incarnation, term)
        if beat > place.beat:
            self._record_beat(now, place, beat)
            place.doing = doing

    def pulse(self, now: float, node: str, incarnation: int, count: int) -> None:
        """Record a report that a node's process is alive; its program may be too busy for a heartbeat.

        Raises:
            Denied: it must register first, or has lost its place.
        """
        place = self._place(node)
        if place is None or place.member.state != "alive" or place.member.incarnation != incarnation:
            raise Denied("unregistered", f"incarnation {incarnation} of node {node[:12]} is not registered")
        if count > place.pulse and now - place.last_heartbeat <= self.job.busy:
            place.pulse, place.last_report = count, max(now, place.last_report)

    def leave(self, now: float, node: str, incarnation: int | None = None) -> None:
        """Record a leave message of a node, or of its launcher, which passes no incarnation.

        Raises:
            Denied: the node is unknown or gone.
        """
        place = self._place(node)
        if place and place.member.state == "left" and incarnation in (None, place.member.incarnation):
            return
        place = self._alive(node, incarnation)
        place.member = replace(place.member, state="left", epoch=self.epoch + 1)
        self.barriers.forget(node)
        self._on_change(now)

    def fail(self, now: float, node: str, incarnation: int | None = None, why: str = "") -> None:
        """Record a failure reported by a node, or by its launcher, which overrides a leave message.

        Raises:
            Denied: the node is unknown or already gone.
        """
        fatal = self.job.policy == "stop" and self.phase in ("forming", "running")
        place = self._place(node)
        if place is None or place.member.state != "left" or incarnation is not None:
            place = self._alive(node, incarnation)
        self._mark_lost(place, why or "it failed", fatal)
        self._on_change(now)

    def barrier(
        self, now: float, node: str, incarnation: int, term: int, name: str, after: int = 0, first: bool = False,
        meet: bool = False,
    ) -> int | None:  # fmt: skip
        """Enter a worker at a barrier; return the round that it has passed, or None if it must wait.

        Call it again with the same arguments when ``version`` has changed.

        Args:
            now: the time.
            node: the worker.
            incarnation: its incarnation.
            term: the term of the scheduler that it is registered with.
            name: the barrier's name. ``"name 3"`` belongs to round 3 of the meeting ``"name"``: it does not wait for
                workers that came to a later round of that meeting first.
            after: the last round of this name that the worker knows.
            first: whether this process arrives here for the first time.
            meet: whether this is a meeting. A meeting waits for a worker that joined late only after the worker's
                first arrival, and the worker does not skip its first round.

        Raises:
            Denied: it is not a worker of this job, or the job has failed.
        """
        place = self._worker_place(node, incarnation, term)
        if len(self.barriers.waiting) >= MAX_NAMES and name not in self.barriers.waiting:
            raise Denied("wrong", f"at most {MAX_NAMES} barriers can be in use at once")
        before = self.barriers.rounds.get(name, 0)
        if meet:
            after = self._enter_meeting(place, name, after)
        passed = self.barriers.enter(node, name, after, excused=first and place.late and not meet)
        self.version += self.barriers.rounds.get(name, 0) != before
        if passed is None:
            self._apply_rules(now)
            passed = after + 1 if self.barriers.rounds.get(name, 0) > after else None
        return passed

    def _enter_meeting(self, place: PlaceState, name: str, after: int) -> int:
        """Record that a worker takes part in a meeting; return the last round that ended without it."""
        if len(self.barriers.meetings) >= MAX_NAMES and name not in self.barriers.meetings:
            raise Denied("wrong", f"at most {MAX_NAMES} meetings can be in use at once")
        self.barriers.meetings.add(name)
        if place.late and len(place.first_meetings) < MAX_NAMES and _meeting(name)[1] is None:
            place.first_meetings.setdefault(name, self.barriers.rounds.get(name, 0))
        return max(after, place.first_meetings.get(name, 0))

    def attend(self, now: float, node: str, incarnation: int, term: int, name: str) -> int:
        """Make a meeting wait for a worker that has not arrived there yet.

        Returns:
            The last round that it missed because it joined late; otherwise 0.

        Raises:
            Denied: it is not a worker of this job, or the job has failed.
        """
        place = self._worker_place(node, incarnation, term)
        return self._enter_meeting(place, name, 0)

    def _worker_place(self, node: str, incarnation: int, term: int) -> PlaceState:
        """Return the place of a worker.

        Raises:
            Denied: it is not a worker of this job, or the job has failed.
        """
        place = self._alive(node, incarnation, term)
        if place.member.role != "worker":
            raise Denied("wrong", f"barriers are for workers only, and this is {place.member.name}")
        if self.phase == "failed":
            raise Denied("over", self.failure)
        return place

    def _newcomers(self, name: str) -> list[str]:
        """Return the late workers that have not arrived at a meeting yet, or arrived after this barrier's round."""
        meeting, number = _meeting(name)
        before = MAX_ROUNDS if number is None else number
        return [
            place.member.id
            for place in self._live_places("worker")
            if place.late and place.first_meetings.get(meeting, MAX_ROUNDS) >= before
        ]

    def withdraw(self, node: str, incarnation: int, name: str) -> None:
        """Withdraw a worker from a barrier.

        Raises:
            Denied: it is not a member of this job.
        """
        self._alive(node, incarnation)
        self.barriers.withdraw(node, name)

    def missing(self, name: str) -> list[Member]:
        """Return the workers that a barrier waits for, with their activities."""
        waiting = self.barriers.waiting.get(name, set())
        return [
            replace(place.member, doing=place.doing)
            for place in self._live_places("worker")
            if place.member.id not in waiting
        ]

    def tick(self, now: float) -> None:
        """Advance to the time ``now``; call it several times within ``timeout``.

        In a longer gap this process was not running, so the gap is excluded.
        """
        gap = now - self.ticked
        self.ticked = now
        if gap > self.job.timeout / 2:
            self._skip_time(gap)
        silent = [place for place in self._live_places() if now - place.last_report > self.job.timeout]
        fatal = self.job.policy == "stop" and self.phase == "running"
        for place in silent:
            self._mark_lost(place, f"silent for {now - place.last_heartbeat:.1f} s", fatal)
        if silent:
            self._on_change(now)
        if (
            self._empty_since is not None
            and self.phase == "running"
            and now - self._empty_since > self.job.no_workers_timeout
        ):
            self._end("failed", "every worker is gone, and no new one has joined")
            self._on_change(now)

    def snapshot(self) -> dict[str, object]:
        """Return a snapshot for a restarted scheduler, to be encoded with msgpack; see :meth:`restore`."""
        return {
            "version": 1, "job": self.job.name, "view": self.view.to_wire(), "rounds": self.barriers.to_wire(),
        }  # fmt: skip

    def restore(self, now: float, snapshot: object) -> None:
        """Resume from a snapshot.

        Raises:
            ValueError: it is invalid, or of another version.
            Denied: it is of another job.
        """
        wire = fields.mapping(snapshot, "a snapshot")
        if wire.get("version") != 1:
            raise ValueError(f"the snapshot is of version {wire.get('version')!r}, expected version 1")
        name = fields.text(wire, "job", MAX_NAME)
        if name != self.job.name:
            raise Denied("other", f"the snapshot is of {_job_text(name)}, and this is {_job_text(self.job.name)}")
        self._adopt(now, View.from_wire(wire.get("view")), rounds_from_wire(wire))

    # Views of earlier terms, from nodes and files

    def _adopt(self, now: float, view: View | None, rounds: Mapping[str, int]) -> None:
        if view is None:
            return
        if max(view.order) > MAX_NUMBER:  # later views could not be distinguished from it
            raise Denied("wrong", f"a view of term {view.term} and epoch {view.epoch}; both are at most {MAX_NUMBER}")
        self._refuse_other(view)
        self.version += self.barriers.learn(rounds)
        if view.term == self.term or view.order <= self.adopted:
            return
        self.name, self.adopted = view.job, view.order
        self.term = max(self.term, view.term + 1)  # a clock that was set back must not make old views newer
        if self.phase == "forming" and view.phase != "forming":
            self.places.clear()  # nodes that came before those of the running job register again
        for key in [key for key, place in self.places.items() if place.basis < view.order]:
            self._drop_if_changed(key, view)
        for member in view.members:
            self._adopt_member(now, member, view)
        if self.phase in ("forming", "running"):
            self.phase, self.failure = view.phase, view.failure
        lost = {(member.id, member.incarnation) for member in view.lost}
        self.lost = [*view.lost, *(m for m in self.lost if (m.id, m.incarnation) not in lost)][-MAX_LOST:]
        self.past.update((member.id, member) for member in view.lost if self._place(member.id) is None)
        self.barriers.retain(place.member.id for place in self._live_places("worker"))
        self.epoch = max(self.epoch, view.epoch)
        self._on_change(now)

    def _drop_if_changed(self, key: Key, view: View) -> None:
        """Drop the entry of a place from an older view, unless the newer view has the same."""
        member, other = self.places[key].member, view.at(*key)
        is_same = other and (other.id, other.incarnation, other.state) == (member.id, member.incarnation, member.state)
        if not is_same:
            del self.places[key]

    def _adopt_member(self, now: float, member: Member, view: View) -> None:
        key = (member.role, member.rank)
        if key not in self.places and self._place(member.id) is None and member.rank in self.job.places(member.role):
            self.places[key] = PlaceState(member, now, view.order, confirmed=False)

    # Changes of places

    def _assign(self, request: JoinRequest) -> Key:
        place = self._place(request.id)
        if place is not None:
            return request.role, place.member.rank
        former = request.view.find(request.id) if request.view and request.view.phase == "running" else None
        if (
            former is not None
            and former.incarnation == request.incarnation
            and not self._is_free(former.role, former.rank)
        ):
            raise Denied("stale", f"the place of {former.name} was taken while the scheduler restarted")
        free = [rank for rank in self.job.places(request.role) if self._is_free(request.role, rank)]
        if not free:
            total = len(self.job.places(request.role))
            raise Denied("full", f"all {total} places of {request.role}s are taken")
        preferred = former.rank if former is not None else request.rank
        return request.role, preferred if preferred in free else free[0]

    def _is_free(self, role: Role, rank: int) -> bool:
        place = self.places.get((role, rank))
        if place is None:
            return True
        return place.member.state != "alive" and (self.job.policy == "elastic" or self.phase == "forming")

    def _record_former(self, key: Key) -> None:
        """Record the former holder of a place that another node takes."""
        if key in self.places:
            member = self.places[key].member
            _put_bounded(self.past, member.id, member)

    def _record_beat(self, now: float, place: PlaceState, beat: int) -> None:
        place.confirmed = True
        if beat > place.beat:
            place.beat, place.last_report = beat, max(now, place.last_report)
            place.last_heartbeat = place.last_report

    def _mark_lost(self, place: PlaceState, why: str, fatal: bool) -> None:
        place.member = replace(place.member, state="gone", epoch=self.epoch + 1, doing=place.doing, why=why)
        self.lost = [*self.lost, place.member][-MAX_LOST:]
        self.barriers.forget(place.member.id)
        if fatal:
            more = f"{self.failure}\n" if self.failure else ""
            self._end("failed", (more + place.member.loss_message)[:4000])

    def _end(self, phase: Phase, failure: str = "") -> None:
        if self.phase != "finished":
            self.phase, self.failure = phase, failure

    def _skip_time(self, gap: float) -> None:
        """Exclude time in which the scheduler did not run and could receive no reports."""
        for place in self.places.values():
            place.last_report += gap
            place.last_heartbeat += gap
        if self._empty_since is not None:
            self._empty_since += gap

    def _on_change(self, now: float) -> None:
        self.epoch += 1
        self.version += 1
        self._view = None
        self._apply_rules(now)

    def _apply_rules(self, now: float) -> None:
        """Apply the rules: form or finish the job, and end complete barriers."""
        before = self.phase
        workers = [place.member.id for place in self._live_places("worker")]
        confirmed_count = sum(place.confirmed for place in self._live_places())
        if self.phase == "forming" and confirmed_count == self.job.workers + self.job.servers:
            self.phase = "running"
        if self.phase == "running":
            self._empty_since = None if workers else self._empty_since if self._empty_since is not None else now
            if not workers and any(place.member.state == "left" for place in self._places_of("worker")):
                self._end("finished")
            late = {place.member.id for place in self._live_places("worker") if place.late}
            completed = self.barriers.complete_rounds(workers, self._newcomers)
            self.version += bool(completed) or self.barriers.release(workers, late)
        if self.phase != before:
            self.epoch += 1
            self.version += 1
            self._view = None

    # Look-ups and checks

    def _places_of(self, role: Role) -> list[PlaceState]:
        return [place for place in self.places.values() if place.member.role == role]

    def _live_places(self, role: Role | None = None) -> Iterator[PlaceState]:
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
            return place  # the launcher knows it, although it has not reported in this term
        if incarnation is None:
            incarnation = member.incarnation
        if incarnation < member.incarnation or (incarnation == member.incarnation and member.state != "alive"):
            raise _stale(member, incarnation)
        if incarnation > member.incarnation or not place.confirmed:
            raise Denied("unregistered", f"incarnation {incarnation} of node {node[:12]} is not registered")
        if term not in (None, self.term):
            raise Denied("unregistered", f"the scheduler was restarted (term {self.term}): register again")
        return place

    def _refuse_past(self, node: str, incarnation: int | None) -> None:
        past = self.past.get(node)
        if past is not None and (incarnation is None or incarnation <= past.incarnation):
            raise _stale(past, past.incarnation if incarnation is None else incarnation)

    def _refuse_stale(self, request: JoinRequest) -> None:
        newest = self.newest.get(request.id, 0)
        if request.incarnation < newest:
            raise Denied("stale", f"incarnation {request.incarnation} of a node that was restarted as {newest}")
        place = self._place(request.id)
        if place is None:
            self._refuse_past(request.id, request.incarnation)
            return
        member = place.member
        if request.role != member.role:
            raise Denied("wrong", f"node {request.id[:12]} joins as a {request.role}, but is already a {member.role}")
        newer = request.incarnation > member.incarnation
        same = request.incarnation == member.incarnation and member.state == "alive"
        if not (newer or same):
            raise _stale(member, request.incarnation)

    def _refuse_other(self, view: View) -> None:
        if view.job != self.name and (self.phase != "forming" or self.adopted != (0, 0)):
            raise Denied("other", f"this is the scheduler of job {self.name}, not of {view.job}")

    def _refuse_over(self) -> None:
        if self.phase == "failed":
            raise Denied("over", f"the job has failed: {self.failure}")
        if self.phase == "finished":
            raise Denied("over", "the job has finished")


def _job_text(name: str) -> str:
    return f"the job {name!r}" if name else "a job without a name (FLOWMX_JOB is not set)"


def _size_text(workers: int, servers: int) -> str:
    return f"{workers} workers and {servers} servers"


def _put_bounded(entries: dict[str, T], key: str, value: T) -> None:
    """Put an entry last, and drop the oldest if there are too many."""
    entries.pop(key, None)
    entries[key] = value
    while len(entries) > MAX_FORMER:
        del entries[next(iter(entries))]


def _meeting(name: str) -> tuple[str, int | None]:
    """Return the meeting of a barrier, and the round of the meeting (None if the barrier is the meeting)."""
    meeting, _, number = name.rpartition(" ")
    return (meeting, int(number)) if meeting and number.isdecimal() and len(number) < 19 else (name, None)


def rounds_from_wire(wire: Mapping[str, object]) -> dict[str, int]:
    """Return the rounds of barriers in a header or a snapshot.

    Raises:
        ValueError: they are invalid.
    """
    rounds = fields.mapping(wire.get("rounds", {}), "the rounds")
    if len(rounds) > MAX_NAMES:
        raise ValueError(f"there are rounds of {len(rounds)} barriers; at most {MAX_NAMES} are allowed")
    return {
        fields.text({"name": name}, "name", 200): fields.integer(rounds, name, maximum=MAX_NUMBER) for name in rounds
    }


def _stale(member: Member, incarnation: int) -> Denied:
    if incarnation < member.incarnation:
        text = f"incarnation {incarnation} of {member.name} was replaced by incarnation {member.incarnation}"
    elif member.state == "left":
        text = f"{member.name} has left the job"
    else:
        text = member.loss_message if member.state == "gone" else f"{member.name} has lost its place"
    return Denied("stale", text)
