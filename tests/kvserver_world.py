"""A random world for the servers' state machine: a network, workers, views and crashes.

Values are histories: an update appends the merged pushes, so a value shows its pushes and their order. `World` asserts
that each answer to a worker agrees with every earlier answer to any worker; `World.check` checks the end of a run.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from flowmx.kvstore.server import modes
from flowmx.kvstore.server import protocol as p
from flowmx.kvstore.server.state_machine import Core

LIMIT = 60_000

TRAINING = ("push", "pull", "pushpull")


class Wrong(AssertionError):
    """A violation of the servers' guarantees."""


def demand(truth: bool, what: str) -> None:
    if not truth:
        raise Wrong(what)


class Value:
    """A history; `busy` during an update in place, when it must not be read."""

    def __init__(self, history: tuple[Any, ...] = ()) -> None:
        self._history = history
        self.busy = False

    @property
    def history(self) -> tuple[Any, ...]:
        demand(not self.busy, "a value was read while an update worked on it")
        return self._history


@dataclass(eq=False)
class Worker:
    """A worker that enrols in every part, pushes and pulls step by step, and finally rests or leaves."""

    name: str
    rank: int
    joined: int
    steps: int
    founder: bool = True
    ending: str = "rest"
    state: str = "enrol"
    done: int = 0
    start: dict[p.Part, int] = field(default_factory=dict)
    waiting: set[p.Part] = field(default_factory=set)
    view: p.View | None = None
    attempt: int = 0
    alive: bool = True

    def sequence(self, part: p.Part) -> int:
        return self.start[part] + self.done + 1


@dataclass(frozen=True)
class Scenario:
    """The limits of a random run."""

    mode: str = "sync"
    bound: int | None = None
    servers: int = 2
    workers: int = 2
    parts: int = 2
    steps: tuple[int, ...] = (3,)
    late: int = 0
    crashes: int = 0
    deaths: int = 0
    duplicates: float = 0.1
    joined: float = 0.5
    endings: tuple[str, ...] = ("rest", "leave")


class World:
    def __init__(self, scenario: Scenario, seed: int, core: type[Core] = Core) -> None:
        self.scenario, self.random, self.core = scenario, random.Random(seed), core
        self.mode = modes.create(scenario.mode, scenario.bound)
        self.epoch = 0
        self.starts = [0] * scenario.servers
        self.ids: list[str | None] = [f"s{rank}.0" for rank in range(scenario.servers)]
        self.cores = {name: core(name, self.mode) for name in self.ids if name is not None}
        self.dead: set[int] = set()
        self.network: list[tuple[Any, ...]] = []
        self.parts = [p.Part(f"k{i}", 0, i % scenario.servers) for i in range(scenario.parts)]
        self.truth: dict[p.Part, tuple[Any, ...]] = dict.fromkeys(self.parts, ())
        self.acked: dict[p.Part, set[tuple[str, int]]] = {part: set() for part in self.parts}
        steps = scenario.steps
        self.workers = [
            Worker(f"w{i}", i, 1, steps[i % len(steps)], ending=self.random.choice(scenario.endings))
            for i in range(scenario.workers)
        ]
        self.late, self.crashes, self.deaths = scenario.late, scenario.crashes, scenario.deaths
        self.snapshots: list[list[Any]] = [[] for _ in range(scenario.servers)]
        self.new_view()

    # -- the scheduler ---------------------------------------------------------------------------------

    def new_view(self) -> None:
        self.epoch += 1
        members = frozenset(worker.name for worker in self.workers if worker.alive)
        self.view = p.View(self.epoch, tuple(self.ids), members)
        self.network += [("view", name, self.view) for name in self.cores]
        self.network += [("worker view", worker, self.view) for worker in self.workers if worker.alive]

    def is_safe(self) -> bool:
        """True if one server may be lost: everything acknowledged is on two servers."""
        if self.dead or sum(name is not None for name in self.ids) < 2:
            return False
        for home in range(len(self.ids)):
            primary = self.view.primary(home)
            assert primary is not None
            core = self.cores[primary]
            if core.state.epoch != self.epoch or home not in core.state.active:
                return False
            if any(slot.number and not slot.mirrored for slot in core.state.of_home(home)):
                return False
        return True

    def snapshot(self) -> None:
        rank = self.random.randrange(len(self.ids))
        if (core := self.cores.get(self.ids[rank] or "")) is not None:
            records = [core.record(part) for part, slot in core.state.slots.items() if slot.number]
            whole = [vars(record) for record in records if record is not None]
            self.snapshots[rank] = [p.Record(**{**item, "value": item["value"].history}) for item in whole]

    def crash(self) -> None:
        rank = self.random.choice([rank for rank, name in enumerate(self.ids) if name is not None])
        self.crashes -= 1
        if self.random.random() < 0.7:
            name = self.ids[rank]
            assert name is not None
            del self.cores[name]
            self.dead.add(rank)  # the scheduler finds out later
            unsent = [event for event in self.network if event[:2] == ("message", name) and self.random.random() < 0.5]
            self.network = [event for event in self.network if event not in unsent]
        else:
            self.ids[rank] = None  # declared dead, but alive
            self.new_view()

    def bury(self) -> None:
        rank = self.dead.pop()
        self.ids[rank] = None
        if self.random.random() < 0.5:
            self.restart(rank)
        else:
            self.new_view()

    def restart(self, rank: int) -> None:
        self.starts[rank] += 1
        name = f"s{rank}.{self.starts[rank]}"
        self.ids[rank] = name
        self.cores[name] = self.core(name, self.mode)
        if self.random.random() < 0.5:  # from a snapshot, which may be old, or hold what was never acknowledged
            fields = [{**vars(record), "value": Value(record.value)} for record in self.snapshots[rank]]
            self.cores[name].restore([p.Record(**item) for item in fields])
        self.new_view()

    # -- what may happen -------------------------------------------------------------------------------

    def run(self) -> World:
        for _ in range(LIMIT):
            if self.is_over():
                break
            self.happen()
        else:
            raise Wrong(f"no end after {LIMIT} events: {self.stuck()}")
        self.deliver_all()
        self.check()
        return self

    def happen(self) -> None:
        chance = self.random.random()
        if chance < 0.02 and self.crashes and self.is_safe():
            self.crash()
        elif chance < 0.04 and self.dead:
            self.bury()
        elif chance < 0.05 and None in self.ids and not self.dead:
            self.restart(self.ids.index(None))
        elif chance < 0.06 and self.late:
            self.late -= 1
            rank = len(self.workers)
            self.workers.append(Worker(f"w{rank}", rank, self.epoch + 1, 2, founder=False))
            self.new_view()
        elif chance < 0.07 and self.deaths and any(self.is_mid_way(worker) for worker in self.workers):
            self.deaths -= 1
            worker = self.random.choice([worker for worker in self.workers if self.is_mid_way(worker)])
            worker.alive = False
            self.new_view()
        elif chance < 0.09 and self.scenario.crashes:
            self.snapshot()
        elif chance < 0.17 or not self.network:
            self.nudge()
        else:
            self.deliver()

    def is_mid_way(self, worker: Worker) -> bool:
        return worker.alive and worker.state in TRAINING and worker.rank > 0

    def nudge(self) -> None:
        """Send the requests that a worker waits for, whether they were sent before or not."""
        busy = [worker for worker in self.workers if worker.alive and worker.state != "over"]
        if not busy:
            return
        worker = self.random.choice(busy)
        if not self.network and self.dead:
            self.bury()
        if not self.network:
            worker.view = self.view
        if len(self.network) < 60:
            self.ask(worker)

    def deliver(self) -> None:
        i = self.random.randrange(len(self.network))
        event = self.network[i]
        if event[0] in ("request", "reply", "message") and self.random.random() < self.scenario.duplicates:
            pass  # it stays, and is delivered again
        else:
            self.network[i] = self.network[-1]
            self.network.pop()
        getattr(self, "on_" + event[0].replace(" ", "_"))(*event[1:])

    def deliver_all(self) -> None:
        while self.network:
            self.deliver()

    def is_over(self) -> bool:
        return all(worker.state == "over" or not worker.alive for worker in self.workers)

    def stuck(self) -> str:
        return ", ".join(
            f"{worker.name} in {worker.state} {worker.done} for {sorted(map(str, worker.waiting))}"
            for worker in self.workers
            if worker.alive and worker.state != "over"
        )

    # -- servers ---------------------------------------------------------------------------------------

    def on_view(self, name: str, view: p.View) -> None:
        if name in self.cores:
            self.carry_out(name, self.cores[name].view(view))

    def on_message(self, sender: str, name: str, message: p.Message) -> None:
        if name in self.cores:
            self.carry_out(name, self.cores[name].deliver(sender, message))

    def on_merge(self, name: str, effect: p.Merge) -> None:
        if name in self.cores:
            self.carry_out(name, self.cores[name].merged(effect.part, effect.ticket, tuple(effect.gradients)))

    def on_update(self, name: str, effect: p.Update) -> None:
        if name in self.cores:
            effect.value.busy = False
            value = Value((*effect.value.history, effect.merged))
            effect.value.busy = True
            self.carry_out(name, self.cores[name].updated(effect.part, effect.ticket, value))

    def on_request(self, name: str, method: str, arguments: tuple[Any, ...]) -> None:
        if name in self.cores:
            self.carry_out(name, getattr(self.cores[name], method)(*arguments))

    def on_merges(self, name: str, effect: p.Merges) -> None:
        if name in self.cores:
            merged = [tuple(gradients) for gradients in effect.gradients]
            self.computed(name, "merged", list(zip(effect.parts, effect.tickets, merged, strict=True)))

    def on_updates(self, name: str, effect: p.Updates) -> None:
        if name in self.cores:
            values = []
            for value, merged in zip(effect.values, effect.merged, strict=True):
                value.busy = False
                values.append(Value((*value.history, merged)))
                value.busy = True
            self.computed(name, "updated", list(zip(effect.parts, effect.tickets, values, strict=True)))

    def computed(self, name: str, what: str, result: list[tuple[Any, ...]]) -> None:
        """Pass the results of computations to a server, most of them together; some may take longer."""
        later = [item for item in result if self.random.random() < 0.1]
        self.network += [("late", name, what, item) for item in later]
        now = [item for item in result if item not in later]
        if now:
            self.carry_out(name, getattr(self.cores[name], f"{what}_all")(*map(list, zip(*now, strict=True))))

    def on_late(self, name: str, what: str, result: tuple[Any, ...]) -> None:
        if name in self.cores:
            self.carry_out(name, getattr(self.cores[name], what)(*result))

    def carry_out(self, name: str, effects: list[p.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, p.Send):
                self.network.append(("message", name, effect.to, self.captured(effect.message)))
            elif isinstance(effect, p.Reply):
                self.reply(effect.request, effect.response)
            elif isinstance(effect, p.Replies):
                for request, answer in effect.responses:
                    self.reply(request, answer)
            elif isinstance(effect, p.Merges):
                self.network.append(("merges", name, effect))
            elif isinstance(effect, p.Updates):
                for value in effect.values:
                    demand(not value.busy, "two updates of one value at once")
                    value.busy = True
                self.network.append(("updates", name, effect))
            elif isinstance(effect, p.Merge):
                self.network.append(("merge", name, effect))
            elif isinstance(effect, p.Update):
                demand(not effect.value.busy, "two updates of one value at once")
                effect.value.busy = True
                self.network.append(("update", name, effect))

    def reply(self, request: Any, answer: p.Response) -> None:
        if isinstance(answer, p.Content):
            answer = p.Content(answer.value.history, answer.round)
        self.network.append(("reply", request, answer))

    def captured(self, message: p.Message) -> p.Message:
        if isinstance(message, p.Copy):
            record = message.record
            fields = {**vars(record), "value": Value(record.value.history)}
            return p.Copy(message.epoch, p.Record(**fields))
        if isinstance(message, p.StepSent) and message.step.kind == "create":
            step = message.step._replace(value=Value(message.step.value.history))
            return p.StepSent(message.epoch, message.part, message.term, step)
        return message

    # -- workers ---------------------------------------------------------------------------------------

    def on_worker_view(self, worker: Worker, view: p.View) -> None:
        if worker.view is None or view.epoch > worker.view.epoch:
            worker.view = view

    def ask(self, worker: Worker) -> None:
        if worker.view is None:
            return
        if worker.state == "enrol" and not worker.waiting and not worker.start:
            worker.waiting = set(self.parts)
        if worker.state == "barrier":
            if all(other.state != "enrol" for other in self.workers if other.founder and other.alive):
                self.enter(worker, self.step())
            return
        parts: dict[str, list[p.Part]] = {}
        for part in sorted(worker.waiting):
            if (target := worker.view.primary(part.home)) is not None:
                parts.setdefault(target, []).append(part)
        for target, result in parts.items():
            if worker.state in TRAINING and self.random.random() < self.scenario.joined:
                self.network.append(("request", target, *self.joined_call(worker, result)))
                continue
            for part in result:
                self.network.append(("request", target, *self.call(worker, part, self.request(worker, part))))

    def request(self, worker: Worker, part: p.Part) -> Any:
        worker.attempt += 1
        return (worker, part, worker.state, worker.done, worker.attempt)

    def joined_call(self, worker: Worker, parts: list[p.Part]) -> tuple[str, tuple[Any, ...]]:
        """Return the joined request of a worker for many parts, equal to several :meth:`call`."""
        requests = [self.request(worker, part) for part in parts]
        calls = [self.call(worker, *item)[1] for item in zip(parts, requests, strict=True)]
        if worker.state == "pull":
            _, _, _, wanted, acknowledged = zip(*calls, strict=True)
            return "pull_all", (requests, worker.name, parts, wanted, acknowledged)
        _, _, _, sequences, gradients, acknowledged = zip(*calls, strict=True)
        pulls = worker.state == "pushpull"
        return "push_all", (requests, worker.name, parts, sequences, gradients, acknowledged, pulls)

    def call(self, worker: Worker, part: p.Part, request: Any) -> tuple[str, tuple[Any, ...]]:
        if worker.state == "enrol":
            member = p.Member(worker.rank, worker.joined)
            value = Value() if worker.rank == 0 else None
            return "enrol", (request, worker.name, 1, part, member, value)
        if worker.state == "rest":
            return "rest", (request, worker.name, 2, part)
        sequence = worker.sequence(part)
        if worker.state in ("push", "pushpull"):
            return worker.state, (request, worker.name, part, sequence, (worker.name, sequence), sequence - 1)
        return "pull", (request, worker.name, part, sequence, sequence)

    def on_reply(self, request: Any, answer: p.Response) -> None:
        worker, part, state, done, _ = request
        if not worker.alive:
            return
        if isinstance(answer, p.Content):
            self.see(part, answer.value)
        if (worker.state, worker.done) != (state, done) or part not in worker.waiting:
            return  # the answer to an earlier attempt
        if isinstance(answer, p.Refused):
            demand(answer.kind == "moved", f"{worker.name} was refused: {answer.text}")
            return
        self.believe(worker, part, answer)
        worker.waiting.discard(part)
        if not worker.waiting:
            self.go_on(worker)

    def believe(self, worker: Worker, part: p.Part, answer: Any) -> None:
        if worker.state == "enrol":
            worker.start[part] = answer.number
        elif worker.state == "push":
            self.acked[part].add((worker.name, worker.sequence(part)))
        elif worker.state in ("pull", "pushpull"):
            self.acked[part].add((worker.name, worker.sequence(part)))
            update_key = (worker.name, worker.sequence(part))
            demand(
                any(update_key in update for update in answer.value),
                f"{update_key} is missing in what {worker.name} pulled",
            )
            if self.scenario.mode == "stale":
                self.check_staleness(worker, part, answer.value)

    def go_on(self, worker: Worker) -> None:
        if worker.state == "enrol":
            self.enter(worker, "barrier" if worker.founder else self.step())
        elif worker.state == "push":
            self.enter(worker, "pull")
        elif worker.state in ("pull", "pushpull"):
            worker.done += 1
            more = worker.done < worker.steps
            self.enter(worker, self.step() if more else worker.ending)
        elif worker.state == "rest":
            worker.state = "over"

    def step(self) -> str:
        """Draw the first request of a worker's step: a push with a pull after it, or both in one."""
        return self.random.choice(["push", "pushpull"])

    def enter(self, worker: Worker, state: str) -> None:
        worker.state = state
        if state == "leave":
            worker.state, worker.alive = "over", False
            self.new_view()
        elif state != "barrier":
            worker.waiting = set(self.parts)
            self.ask(worker)

    # -- what must hold --------------------------------------------------------------------------------

    def see(self, part: p.Part, history: tuple[Any, ...]) -> None:
        groups = self.truth[part]
        shorter = min(len(groups), len(history))
        demand(groups[:shorter] == history[:shorter], f"{part.key}: {history} was seen, and before it {groups}")
        self.truth[part] = max(groups, history, key=len)
        pushes = [push for update in history for push in update]
        demand(len(pushes) == len(set(pushes)), f"{part.key}: a push was applied twice: {history}")
        if self.scenario.mode == "sync":
            for number, update in enumerate(history, 1):
                demand(all(sequence == number for _, sequence in update), f"rounds are mixed: {history}")
                demand(list(update) == sorted(update, key=lambda push: int(push[0][1:])), f"no order: {history}")

    def check_staleness(self, worker: Worker, part: p.Part, history: tuple[Any, ...]) -> None:
        """Check that a pulled value lacks at most `bound` pushes of each worker that was always counted."""
        assert self.scenario.bound is not None
        for other in self.workers:
            if other.founder and other.alive and other.state in TRAINING:
                have = other.start[part] + sum(name == other.name for update in history for name, _ in update)
                ahead = worker.sequence(part) - have
                demand(ahead <= self.scenario.bound, f"{worker.name} is {ahead} ahead of {other.name}")

    def check(self) -> None:
        for part in self.parts:
            final = self.final(part)
            self.see(part, final)
            pushes = {push for update in final for push in update}
            demand(self.acked[part] <= pushes, f"{part.key}: {self.acked[part] - pushes} were acknowledged and lost")
            if self.scenario.mode == "sync" and not (self.late or self.scenario.late or self.scenario.deaths):
                demand(final == self.serial(), f"{part.key}: {final}, one after another {self.serial()}")
        lags = [core.state.largest_lag for core in self.cores.values()]
        demand(self.scenario.mode != "stale" or max(lags) <= (self.scenario.bound or 0), f"lags of {lags}")

    def final(self, part: p.Part) -> tuple[Any, ...]:
        name = self.view.primary(part.home)
        assert name is not None
        if self.dead:
            self.bury()
            self.deliver_all()
            return self.final(part)
        slot = self.cores[name].state.slots[part]
        demand(slot.step is None and not slot.gradients, f"{part.key}: something is still in progress at the end")
        demand(part.home in self.cores[name].state.active, f"nobody answers for {part.key}")
        history: tuple[Any, ...] = slot.value.history
        return history

    def serial(self) -> tuple[Any, ...]:
        """Return the result of a single process."""
        rounds = max(worker.steps for worker in self.workers)
        return tuple(
            tuple((worker.name, number) for worker in self.workers if worker.steps >= number)
            for number in range(1, rounds + 1)
        )
