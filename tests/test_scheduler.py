"""The pure scheduler against a serial run: random operations, completed in random legal orders.

Each operation computes a digest of what it reads into what it writes. The serial run does so at the push; the
model does it when the scheduler lets the operation start and complete, with a torn value in between, so that
a read beside a write, or in the wrong order, never goes unseen.
"""

import random
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowmx.engine.scheduler import DONE, READY, RUNNING, WAITING, Operation, Scheduler, Variable

TORN = object()


class Part(NamedTuple):
    """One operation as the serial run saw it; several of them in a bulk."""

    order: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    expected: list[int]

    def conflicts(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> bool:
        mine = set(self.writes)
        return bool(mine & {*reads, *writes} or set(self.reads) & set(writes))


class Model:
    """A scheduler, the values of a serial run, and the values that its own schedule gives."""

    def __init__(self, variables: int = 6, scheduler: type[Scheduler] = Scheduler) -> None:
        self.scheduler = scheduler()
        self.variables = [Variable(f"v{i}") for i in range(variables)]
        self.serial = list(range(variables))
        self.values: list[object] = list(range(variables))
        self.parts: dict[Operation, list[Part]] = {}
        self.inputs: dict[Operation, dict[int, object]] = {}
        self.open: Operation | None = None
        self.ready: list[Operation] = []
        self.running: list[Operation] = []
        self.steps = self.waited = self.passed = 0

    # -- events ----------------------------------------------------------------------------------------

    def push(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        op = self._operation(reads, writes)
        self.parts[op] = [self._next(reads, writes)]
        self._ready(op, self.scheduler.push(op))

    def push_light(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        """What the engine does with an operation that takes microseconds."""
        op = self._operation(reads, writes)
        free = self.scheduler.is_free(op)
        assert free == (not self._conflicting(reads, writes)), "is_free must say what a look at everything says"
        if not free:
            return self.push(reads, writes)
        self.scheduler.pass_through(op)
        self.parts[op] = [self._next(reads, writes)]
        self.passed += 1
        self._begin(op)
        self._end(op)
        return None

    def add_to_bulk(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        if self.open is not None and any(
            op.serial > self.open.serial for op in self._conflicting(reads, writes) if op is not self.open
        ):
            self.close_bulk()
        if self.open is None:
            self.open = self._operation((), ())
            self.parts[self.open] = []
            assert not self.scheduler.push(self.open, hold=1)
        op = self.open
        part = self._operation(reads, writes)
        self.scheduler.tag(op, part.reads, part.writes)
        op.reads += part.reads
        op.writes += part.writes
        self.parts[op].append(self._next(reads, writes))

    def close_bulk(self) -> None:
        op, self.open = self.open, None
        if op is not None:
            self._ready(op, self.scheduler.unhold(op))

    def start(self, index: int) -> None:
        op = _swap_out(self.ready, index)
        self.scheduler.start(op)
        self.running.append(op)
        self._begin(op)

    def complete(self, index: int) -> None:
        op = _swap_out(self.running, index)
        self._end(op)
        self._complete(op)

    def cancel(self, index: int) -> None:
        """Complete an operation that never started."""
        op = _swap_out(self.ready, index)
        self._begin(op)
        self._end(op)
        self._complete(op)

    def prune_soon(self, variable: int) -> None:
        """Have the readers' list of a variable cleared of completed ones at the next read."""
        self.variables[variable].prune_at = 1

    def rebuild(self) -> None:
        versions = [variable.version for variable in self.variables]
        assert set(self.scheduler.rebuild()) == set(self.ready)
        assert versions == [variable.version for variable in self.variables]

    def drain(self) -> None:
        self.close_bulk()
        while self.ready or self.running:
            if self.ready:
                self.start(-1)
            else:
                self.complete(-1)
        assert not self.scheduler.pending, "operations were forgotten"
        assert self.values == self.serial
        assert self.scheduler.completed == self.scheduler.serial

    # -- what must hold --------------------------------------------------------------------------------

    def check(self) -> None:
        """Exactly those operations wait that conflict with an earlier pending one."""
        self.scheduler.check_invariants()
        for op in self.scheduler.pending:
            waits = op is self.open or any(
                self._conflicting(part.reads, part.writes, before=part.order, but=op) for part in self.parts[op]
            )
            assert (op.state == WAITING) == waits, f"{op} must {'' if waits else 'not '}wait"

    # -- how -------------------------------------------------------------------------------------------

    def _operation(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> Operation:
        def tags(indexes: tuple[int, ...]) -> tuple[Variable, ...]:
            return tuple(self.variables[i] for i in indexes)

        return Operation(_digest, (), tags(reads), tags(writes), None, "op")

    def _next(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> Part:
        """Run the operation serially."""
        self.steps += 1
        part = Part(self.steps, reads, writes, [self.serial[i] for i in reads])
        for i in writes:
            self.serial[i] = _digest(part.order, i, part.expected)
        return part

    def _conflicting(
        self, reads: tuple[int, ...], writes: tuple[int, ...], before: int | None = None, but: Operation | None = None
    ) -> list[Operation]:
        return [
            op
            for op in self.scheduler.pending
            if op is not but
            and any(
                (before is None or part.order < before) and part.conflicts(reads, writes) for part in self.parts[op]
            )
        ]

    def _ready(self, op: Operation, ready: bool) -> None:
        assert op.state == (READY if ready else WAITING)
        if ready:
            self.ready.append(op)
        else:
            self.waited += 1

    def _begin(self, op: Operation) -> None:
        self.inputs[op] = {i: self.values[i] for part in self.parts[op] for i in part.reads}
        for part in self.parts[op]:
            for i in part.writes:
                self.values[i] = TORN

    def _end(self, op: Operation) -> None:
        inputs, written = self.inputs.pop(op), dict[int, object]()
        parts = self.parts[op]
        if op.state == DONE:  # it was passed through
            del self.parts[op]
        for part in parts:
            seen = [written.get(i, inputs[i]) for i in part.reads]
            assert seen == part.expected, f"{op} did not read what the serial run read"
            for i in part.writes:
                written[i] = _digest(part.order, i, part.expected)
        for i, value in inputs.items():
            assert i in written or self.values[i] == value, f"v{i} changed under {op}, which reads it"
        for i, value in written.items():
            assert self.values[i] is TORN, f"two operations wrote v{i} at once"
            self.values[i] = value

    def _complete(self, op: Operation) -> None:
        released = self.scheduler.complete(op)
        assert op.state == DONE
        del self.parts[op]
        single = [each.serial for each in released if len(self.parts[each]) == 1]
        assert single == sorted(single)
        for each in released:
            assert each.state == READY
            self.ready.append(each)


def _digest(order: int, variable: int, read: list[int]) -> int:
    return hash((order, variable, *read))


def _swap_out(ops: list[Operation], index: int) -> Operation:
    ops[index], ops[-1] = ops[-1], ops[index]
    return ops.pop()


TAGS = st.lists(st.integers(0, 5), max_size=4).map(tuple)


class Interleavings(RuleBasedStateMachine):
    """Every order of events that a user of the scheduler may bring about."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    @rule(reads=TAGS, writes=TAGS)
    def push(self, reads, writes):
        self.model.push(reads, writes)

    @rule(reads=TAGS, writes=TAGS)
    def push_light(self, reads, writes):
        self.model.push_light(reads, writes)

    @rule(reads=TAGS, writes=TAGS)
    def add_to_bulk(self, reads, writes):
        self.model.add_to_bulk(reads, writes)

    @rule()
    def close_bulk(self):
        self.model.close_bulk()

    @rule(variable=st.integers(0, 5))
    def prune_soon(self, variable):
        self.model.prune_soon(variable)

    @rule()
    def rebuild(self):
        self.model.rebuild()

    @precondition(lambda self: self.model.ready)
    @rule(data=st.data())
    def start(self, data):
        self.model.start(data.draw(st.integers(0, len(self.model.ready) - 1)))

    @precondition(lambda self: self.model.ready)
    @rule(data=st.data())
    def cancel(self, data):
        self.model.cancel(data.draw(st.integers(0, len(self.model.ready) - 1)))

    @precondition(lambda self: self.model.running)
    @rule(data=st.data())
    def complete(self, data):
        self.model.complete(data.draw(st.integers(0, len(self.model.running) - 1)))

    @invariant()
    def holds(self):
        self.model.check()

    def teardown(self):
        self.model.drain()


class TestInterleavings(Interleavings.TestCase):  # type: ignore[valid-type, misc]
    settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def drive(model: Model, rng: random.Random, events: int, look_every: int, look=None) -> Model:
    """A run of random events with few or many operations pending, then all of them completed."""
    look = look or model.scheduler.check_invariants
    count = len(model.variables)
    most = 40
    for event in range(events):
        choice = rng.random()
        if choice < 0.001:
            most = rng.choice((1, 5, 40))
        if len(model.scheduler.pending) >= most:
            choice = max(choice, 0.45)
        if choice < 0.45:
            tags = [tuple(rng.randrange(count) for _ in range(rng.choice((0, 1, 1, 2, 4)))) for _ in range(2)]
            push = model.push if choice < 0.3 else model.push_light if choice < 0.37 else model.add_to_bulk
            push(*tags)
        elif choice < 0.47:
            model.close_bulk()
        elif choice < 0.48:
            model.prune_soon(rng.randrange(count))
        elif model.running and (choice < 0.74 or not model.ready):
            model.complete(rng.randrange(len(model.running)))
        elif model.ready:
            (model.cancel if choice > 0.99 else model.start)(rng.randrange(len(model.ready)))
        else:
            model.close_bulk()
        if event % look_every == 0:
            look()
    model.drain()
    return model


@pytest.mark.parametrize("events", [1_000_000])
def test_a_long_run_equals_the_serial_one(events):
    model = drive(Model(12), random.Random(events), events, look_every=1000)
    assert model.waited > events / 20, "the run must be a real test: many operations wait"
    assert model.passed > events / 200


def test_many_short_runs_wait_for_exactly_what_they_must():
    for seed in range(150):
        rng = random.Random(seed)
        model = Model(rng.randrange(1, 8))
        drive(model, rng, 80, look_every=1, look=model.check)


def test_rebuilding_at_any_time_changes_nothing():
    for seed in range(50):
        rng = random.Random(seed)
        model = Model(4)
        drive(model, rng, 60, look_every=3, look=model.rebuild)


def test_a_push_or_a_completion_that_was_broken_off_is_made_good():
    """The state is damaged as an interrupt may damage it; what operations declare is enough to go on."""
    for seed in range(50):
        rng = random.Random(seed)
        model = Model(4)
        drive_until_busy(model, rng)
        for op in model.scheduler.pending:
            if rng.random() < 0.3:
                op.dependents = None
            if rng.random() < 0.3 and op.state == WAITING:
                op.blockers += rng.choice((-1, 1))
        for variable in model.variables:
            if rng.random() < 0.3:
                variable.writer = None
            if rng.random() < 0.3:
                variable.readers = None
        assert set(model.scheduler.rebuild()) == set(model.ready)
        model.check()
        model.drain()


def drive_until_busy(model: Model, rng: random.Random) -> None:
    while model.waited < 10:
        model.push(*(tuple(rng.randrange(len(model.variables)) for _ in range(rng.randrange(3))) for _ in range(2)))
        if model.ready and rng.random() < 0.3:
            model.start(rng.randrange(len(model.ready)))


def test_reads_between_two_writes_are_ready_together():
    model = Model()
    model.push((), (0,))
    for _ in range(100):
        model.push((0,), ())
    model.push((), (0,))
    assert len(model.ready) == 1
    model.start(0)
    model.complete(0)
    assert len(model.ready) == 100
    while model.ready:
        model.start(0)
    while len(model.running) > 1:
        model.complete(0)
        assert not model.ready
    model.complete(0)
    assert len(model.ready) == 1


def test_a_million_reads_without_a_write_keep_no_list():
    scheduler, variable = Scheduler(), Variable()
    for _ in range(20_000):
        op = Operation(_digest, (), (variable,), (), None, "read")
        assert scheduler.push(op)
        scheduler.start(op)
        scheduler.complete(op)
    assert len(variable.readers or ()) <= 64


# -- the checker itself ------------------------------------------------------------------------------------


class ForgetsReaders(Scheduler):
    __slots__ = ()

    def tag(self, op, reads, writes):
        for variable in writes:
            variable.readers = None
        super().tag(op, reads, writes)


class ForgetsTheWriterForReads(Scheduler):
    __slots__ = ()

    def tag(self, op, reads, writes):
        writers = {variable: variable.writer for variable in reads if variable not in writes}
        for variable in writers:
            variable.writer = None
        super().tag(op, reads, writes)
        for variable, writer in writers.items():
            variable.writer = writer


class ForgetsTheWriterForWrites(Scheduler):
    __slots__ = ()

    def tag(self, op, reads, writes):
        for variable in writes:
            if variable not in reads:
                variable.writer = None
        super().tag(op, reads, writes)


class PrunesPendingReaders(Scheduler):
    __slots__ = ()

    def tag(self, op, reads, writes):
        for variable in reads:
            if variable.readers and len(variable.readers) >= variable.prune_at:
                variable.readers.clear()
        super().tag(op, reads, writes)


class ForgetsADependent(Scheduler):
    __slots__ = ()

    def complete(self, op):
        if op.dependents and len(op.dependents) > 2:
            op.dependents.pop()
        return super().complete(op)


class ReleasesEarly(Scheduler):
    __slots__ = ()

    def complete(self, op):
        early = [each for each in op.dependents or () if each.blockers == 2 and each.state == WAITING]
        ready = super().complete(op)
        for each in early:
            if each.state == WAITING and each.blockers == 1 and not each.held:
                each.state, each.blockers = READY, 0
                return sorted([*ready, each], key=lambda op: op.serial)
        return ready


class ReleasesInTheWrongOrder(Scheduler):
    __slots__ = ()

    def complete(self, op):
        return super().complete(op)[::-1]


class LetsEverythingPass(Scheduler):
    __slots__ = ()

    def is_free(self, op):
        return all(variable.writer is None for variable in (*op.reads, *op.writes))


class LetsNothingPass(Scheduler):
    __slots__ = ()

    def is_free(self, op):
        return not self.pending and super().is_free(op)


class ForgetsTheHold(Scheduler):
    __slots__ = ()

    def tag(self, op, reads, writes):
        super().tag(op, reads, writes)
        if op.held and op.blockers == op.held and op.writes:
            op.state, op.blockers = READY, 0


@pytest.mark.parametrize(
    "wrong",
    [
        ForgetsReaders,
        ForgetsTheWriterForReads,
        ForgetsTheWriterForWrites,
        PrunesPendingReaders,
        ForgetsADependent,
        ReleasesEarly,
        ReleasesInTheWrongOrder,
        LetsEverythingPass,
        LetsNothingPass,
        ForgetsTheHold,
    ],
)
def test_a_wrong_scheduler_is_found_out(wrong):
    def run():
        for seed in range(20):
            drive(Model(5, wrong), random.Random(seed), 2000, look_every=1)

    with pytest.raises(AssertionError):
        run()


@pytest.mark.parametrize("state", [READY, RUNNING, DONE])
def test_the_invariants_find_a_state_that_contradicts_itself(state):
    model = Model()
    model.push((), (0,))
    model.push((0,), ())
    model.scheduler.check_invariants()
    list(model.scheduler.pending)[1].state = state
    with pytest.raises(AssertionError):
        model.scheduler.check_invariants()
