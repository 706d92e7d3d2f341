"""A world of nodes around a `Members`: the possible events of a job, and its invariants.

The world is driven by numbers (from hypothesis, or from a seeded generator for the machines that are wrong on
purpose). Messages are delayed, reordered, duplicated and lost; nodes are killed, restarted and leave; the scheduler is
killed and restarts with its file, with an old one, or without. The invariants are checked after every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flowmx.comm.members import Denied, Job, JoinRequest, Members
from flowmx.comm.view import View

NAMES = ("init", "epoch")
TIMEOUT = 10.0


class Violation(AssertionError):
    """An invariant does not hold."""


def must(holds, law):
    if not holds:
        raise Violation(law)


@dataclass
class Client:
    """A node: a little of what `flowmx.comm.node` does, without a loop."""

    id: str
    role: str
    incarnation: int = 1
    running: bool = False
    beat: int = 0
    view: View | None = None
    member: object = None
    rounds: dict[str, int] = field(default_factory=dict)
    visited: set[str] = field(default_factory=set)
    waits: tuple[str, int, bool] | None = None
    passed: int = 0

    def start(self, incarnation):
        self.__init__(self.id, self.role, incarnation, running=True)

    def next_beat(self):
        self.beat += 1
        return self.beat

    def join(self):
        return (
            "join",
            self.id,
            self.incarnation,
            JoinRequest(
                self.id, self.role, self.incarnation, beat=self.next_beat(), view=self.view, rounds=dict(self.rounds)
            ),
        )

    def heartbeat(self):
        return ("heartbeat", self.id, self.incarnation, self.next_beat(), self.view.term if self.view else 0)


class World:
    """A job, its nodes, and an unreliable network."""

    def __init__(self, machine=Members, workers=2, servers=1, spare=2, policy="elastic"):
        self.machine = machine
        self.job = Job(workers, servers, TIMEOUT, policy, no_workers_timeout=TIMEOUT)
        self.now = 100.0
        self.term = 1
        self.members = machine(self.job, self.now, self.term, "job 1")
        roles = ["worker"] * (workers + spare) + ["server"] * (servers + 1)
        self.clients = {f"{role[0]}{i}": Client(f"{role[0]}{i}", role) for i, role in enumerate(roles)}
        self.network: list[tuple] = []
        self.file: object = None
        self.silent_since: dict[str, float] = {}
        self.views: dict[tuple[int, int], View] = {}
        self.failed_term: int | None = None
        self.entered: dict[tuple[str, int], set[str]] = {}
        self.known_newer: dict[str, int] = {}

    def form(self):
        """Most worlds begin with a job that runs."""
        for client in [c for c in self.clients.values() if c.role == "worker"][: self.job.workers]:
            self.start(list(self.clients).index(client.id), 0)
        if self.job.servers:
            self.start(len(self.clients) - 1, 0)
        for client in self.clients.values():
            self.beat(list(self.clients).index(client.id), 0)
        while self.network:
            self.arrive(self.network.pop(0))
            self.check()

    # What may happen

    def step(self, choice, a, b):
        """Apply one event: `choice` selects it, `a` its node, `b` its variant."""
        kinds = (
            self.start, self.beat, self.beat, self.deliver, self.deliver, self.deliver, self.duplicate, self.lose,
            self.kill, self.leave, self.barrier, self.barrier, self.retry, self.pass_time, self.pass_time, self.fail,
            self.restart_scheduler, self.save,
        )  # fmt: skip
        kinds[choice % len(kinds)](a, b)
        self.check()

    def client(self, a):
        return list(self.clients.values())[a % len(self.clients)]

    def start(self, a, b):
        client = self.client(a)
        if not client.running:
            client.start(client.incarnation + 1)
            self.silent_since.pop(client.id, None)
            self.network.append(client.join())

    def beat(self, a, b):
        client = self.client(a)
        if client.running:
            self.network.append(client.heartbeat())

    def deliver(self, a, b):
        if self.network:
            self.arrive(self.network.pop(a % len(self.network)))

    def duplicate(self, a, b):
        if self.network:
            self.arrive(self.network[a % len(self.network)])

    def lose(self, a, b):
        if self.network:
            self.network.pop(a % len(self.network))

    def kill(self, a, b):
        client = self.client(a)
        if client.running:
            client.running = False
            self.silent_since[client.id] = self.now

    def leave(self, a, b):
        client = self.client(a)
        if client.running:
            client.running = False
            self.network.append(("leave", client.id, client.incarnation))

    def barrier(self, a, b):
        client = self.client(a)
        if client.running and client.role == "worker" and client.view and client.waits is None:
            name = NAMES[b % len(NAMES)]
            client.waits = (name, client.rounds.get(name, 0), name not in client.visited)
            client.visited.add(name)
            self.network.append(("barrier", client.id, client.incarnation, client.view.term, *client.waits))

    def retry(self, a, b):
        client = self.client(a)
        if client.running and client.waits:
            self.network.append(("barrier", client.id, client.incarnation, client.view.term, *client.waits))

    def pass_time(self, a, b):
        self.now += (b % 8) / 2
        self.members.tick(self.now)

    def fail(self, a, b):
        if b % 3 == 0:
            client = self.client(a)
            self.network.append(("fail", client.id, client.incarnation))

    def save(self, a, b):
        self.file = self.members.snapshot()

    def restart_scheduler(self, a, b):
        """Restart the scheduler with the newest file, an old one, or none."""
        if b % 4 == 0:
            return
        if b % 4 == 1:
            self.file = self.members.snapshot()
        if b % 4 == 2:
            self.file = None
        self.term += 1
        self.members = self.machine(self.job, self.now, self.term, f"job {self.term}")
        if self.file is not None:
            self.members.restore(self.now, self.file)
        self.known_newer = {}
        # A request does not outlive the connection to the scheduler that it was sent to; the node sends another.
        self.network = [m for m in self.network if m[0] != "join" or m[3].view is self.clients[m[1]].view]
        for heard in self.silent_since:  # it must be noticed again
            self.silent_since[heard] = self.now

    # What the network and the nodes do

    def arrive(self, message):
        kind, node, incarnation, *rest = message
        client = self.clients[node]
        if node in self.silent_since:  # late, but the node is alive
            self.silent_since[node] = self.now
        answers = client.running and client.incarnation == incarnation
        adopted = self.members.adopted
        try:
            answer = getattr(self, f"on_{kind}")(node, incarnation, *rest)
        except Denied as denied:
            self.check_denied(denied)
            if answers and denied.code == "unregistered" and kind != "fail":
                self.network.append(client.join())
            if answers and denied.code in ("stale", "over", "other"):
                client.running = False
                self.silent_since[node] = self.now
            return
        finally:
            if self.members.adopted != adopted:  # the nodes that a node reported are waited for
                self.silent_since = dict.fromkeys(self.silent_since, self.now)
        if answers:
            self.answer(client, kind, answer, rest)

    def answer(self, client, kind, answer, rest):
        view, begun = self.members.view, client.view is not None and client.view.phase == "running"
        if kind == "join" and begun and (rest[0].view is None or rest[0].view.phase == "forming"):
            return  # an old request, whose answer nobody awaits
        if client.view is None or view.order > client.view.order:
            client.view = view
        if view.over:
            self.kill(list(self.clients).index(client.id), 0)  # requested by the launcher
        if kind == "join":
            must(answer.id == client.id, "who joins is told of itself")
            if begun:
                must(answer.rank == client.member.rank, "a node that registers again keeps its rank")
            if client.member is None:
                client.rounds = dict(self.members.barriers.rounds)
            client.member = answer
        if kind == "barrier" and answer is not None and client.waits == tuple(rest[1:]):
            name, after, first = client.waits
            must(answer >= after, "a barrier's rounds count up")
            client.rounds[name] = answer
            client.waits = None
            client.passed += 1
            self.check_passed(client, name, after, answer, first)

    def on_join(self, node, incarnation, hello):
        member = self.members.join(self.now, hello)
        client = self.clients[node]
        must(member.incarnation == incarnation, "who joins is a member with its own incarnation")
        if incarnation < client.incarnation:
            must(node not in self.known_newer or self.known_newer[node] <= incarnation, "a zombie does not join")
        self.known_newer[node] = max(incarnation, self.known_newer.get(node, 0))
        return member

    def on_heartbeat(self, node, incarnation, beat, term):
        self.members.heartbeat(self.now, node, incarnation, beat, term, f"beat {beat}")
        held = self.members.view.find(node)
        must(
            held and held.incarnation == incarnation and held.state == "alive",
            "heartbeats are taken from living members alone",
        )

    def on_leave(self, node, incarnation):
        self.members.leave(self.now, node, incarnation)
        held = self.members.view.find(node)
        must(held and held.state == "left", "who leaves has left")

    def on_fail(self, node, incarnation):
        self.members.fail(self.now, node, incarnation, "killed")
        must(self.job.policy == "elastic" or self.members.view.over, "under stop a failure ends the job")

    def on_barrier(self, node, incarnation, term, name, after, first):
        self.entered.setdefault((name, after + 1), set()).add(node)
        return self.members.barrier(self.now, node, incarnation, term, name, after, first)

    # What must hold

    def check(self):
        view = self.members.view
        self.check_view(view)
        self.check_history(view)
        self.check_silence(view)
        self.check_barriers(view)

    def check_view(self, view):
        places = [(member.role, member.rank) for member in view.members]
        must(len(set(places)) == len(places), "a place has one holder")
        ids = [member.id for member in view.members]
        must(len(set(ids)) == len(ids), "a node has one place")
        for member in view.members:
            must(0 <= member.rank < len(self.job.places(member.role)), "ranks are within the job")
            must(member.epoch <= view.epoch, "nothing is from the future")
        alive = len(view.workers) + len(view.servers)
        must(alive < self.job.workers + self.job.servers or view.phase != "forming" or self.term > 1, "a full job runs")
        must(view.phase != "failed" or view.failure, "a job that failed says why")
        if self.job.policy == "stop" and view.phase == "failed":
            must(any(member.name in view.failure for member in view.lost), "the culprit is named")

    def check_history(self, view):
        same = self.views.setdefault(view.order, view)
        must(same == view, "two views have two epochs")
        newest = max(order for order in self.views if order[0] == view.term)
        must(view.order == newest, "epochs grow")
        if self.failed_term == view.term:
            must(view.phase == "failed", "a job that failed stays so")
        if view.phase == "failed":
            self.failed_term = view.term
        if view.phase == "running" and self.job.policy == "stop":
            must(all(m.state != "gone" for m in view.members) or self.term > 1, "under stop a job without a node ends")

    def check_silence(self, view):
        """Check that a node dead for longer than the timeout (and a few ticks) is not alive in the view."""
        for member in (*view.workers, *view.servers):
            client = self.clients[member.id]
            dead = client.incarnation == member.incarnation and not client.running
            since = self.silent_since.get(member.id)
            if dead and since is not None and not self.pending(member.id):
                must(self.now - since <= 2 * TIMEOUT, f"{member.name} is silent and not declared gone")

    def pending(self, node):
        """Return whether the network still holds a message of a node, which may prove that it is alive."""
        if any(message[1] == node for message in self.network):
            self.silent_since[node] = self.now
            return True
        return False

    def check_barriers(self, view):
        if view.phase != "running":
            return
        workers = {member.id for member in view.workers}
        for name, waiting in self.members.barriers.waiting.items():
            must(waiting <= workers, "only living workers wait")
            must(not (workers and waiting >= workers), f"all wait at {name} and nobody is let through")

    def check_passed(self, client, name, after, number, first):
        """Check that no worker passes before all living workers have arrived at this round or a later one."""
        if number == after:
            must(first, "only a first visit is excused")
            return
        came = self.entered.get((name, number), set())
        for member in self.members.view.workers:
            other = self.clients[member.id]
            joined_later = other.member is None or other.incarnation > 2 or self.term > 1
            must(
                member.id in came or joined_later or other.rounds.get(name, 0) >= number,
                f"{client.id} passed round {number} of {name} before {member.id} came",
            )

    def check_denied(self, denied):
        must(denied.code in ("unregistered", "stale", "full", "over", "other", "wrong"), "a refusal has a code")
        must(str(denied), "a refusal says why")

    # The end: the network heals

    def heal(self):
        """Deliver all messages, send heartbeats and let time pass; check that the view is true and no barrier hangs."""
        for _ in range(40):
            for client in self.clients.values():
                self.beat_on(client)
            while self.network:
                self.arrive(self.network.pop(0))
                self.check()
            self.now += TIMEOUT / 8
            self.members.tick(self.now)
            self.check()
        view = self.members.view
        for member in (*view.workers, *view.servers):
            client = self.clients[member.id]
            must(
                client.running and client.incarnation == member.incarnation,
                f"{member.name} is dead, and alive in the view for ever",
            )
        for client in self.clients.values():
            if client.running and client.member is not None and client.view.phase != "forming":
                self.check_settled(client, view)

    def beat_on(self, client):
        if client.running:
            held = client.member is not None
            self.network.append(client.heartbeat() if held else client.join())
            self.retry(list(self.clients).index(client.id), 0)

    def check_settled(self, client, view):
        held = view.find(client.id)
        must(held is not None and held.state == "alive", f"{client.id} lives, and is no member")
        must(held.rank == client.member.rank, f"{client.id} has another rank than it was told")
        if view.phase == "running" and client.waits:
            others = [self.clients[member.id] for member in view.workers]
            must(
                any(other.waits is None or other.waits[0] != client.waits[0] for other in others),
                "all workers wait at one barrier for ever",
            )


def run(steps, machine=Members, policy="elastic", workers=2, servers=1):
    """Apply `steps` to a world, then heal it.

    Raises:
        Violation: a law was broken on the way.
    """
    world = World(machine, workers, servers, policy=policy)
    world.form()
    for choice, a, b in steps:
        world.step(choice, a, b)
    world.heal()
    return world
