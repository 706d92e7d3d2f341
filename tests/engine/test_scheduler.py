"""The scheduler compared with a serial run: random operations, completed in random valid orders.

Each operation computes a digest of the values it reads and writes it. The serial run does so at the push; the model
does it when the scheduler lets the operation start and complete, with a torn value in between. So a read concurrent
with a write, or in the wrong order, is always detected.
"""

import random
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowmx.engine import scheduler as scheduler_module
from flowmx.engine.scheduler import DONE, READY, RUNNING, WAITING, Operation, Scheduler, Variable
from tests.interruptions import strike

Tags = tuple[int, ...]

TORN = object()


class Part(NamedTuple):
    """One operation as in the serial run; a bulk contains several."""

    order: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    expected: list[int]

    def conflicts(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> bool:
        ours = set(self.writes)
        return bool(ours & {*reads, *writes} or set(self.reads) & set(writes))


class Model:
    """A scheduler, the values of a serial run, and the values of its schedule."""

    def __init__(self, variables: int = 6, scheduler: type[Scheduler] = Scheduler) -> None:
        self.scheduler = scheduler(self._handed_over)
        self.variables = [Variable(f"v{i}") for i in range(variables)]
        self.serial = list(range(variables))
        self.values: list[object] = list(range(variables))
        self.parts: dict[Operation, list[Part]] = {}
        self.inputs: dict[Operation, dict[int, object]] = {}
        self.open: Operation | None = None
        self.ready: list[Operation] = []
        self.released: list[Operation] = []
        self.running: list[Operation] = []
        self.steps = self.waited = self.passed = 0

    # -- events ----------------------------------------------------------------------------------------

    def push(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        op = self._operation(reads, writes)
        self.parts[op] = [self._next(reads, writes)]
        self.scheduler.push(op)
        self._pushed(op)

    def push_light(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        """Push a light operation, as the engine does."""
        op = self._operation(reads, writes)
        free = not self._conflicting(reads, writes)
        assert self.scheduler.enter(op) == free, "it must say what a look at everything says"
        if not free:
            return self.push(reads, writes)
        self.parts[op] = [self._next(reads, writes)]
        self.passed += 1
        self._begin(op)
        self._end(op)
        assert self.scheduler.leave(op)
        return None

    def push_inside(self, outer: tuple[Tags, Tags], inner: tuple[Tags, Tags]) -> None:
        """Run an operation at its push, during which a finalizer or handler pushes another."""
        op = self._operation(*outer)
        if not self.scheduler.enter(op):
            return self.push(*outer)
        self.parts[op] = [self._next(*outer)]
        self._begin(op)
        self.scheduler.recover()
        self.push(*inner)
        self.scheduler.check_invariants()
        self._end(op)
        assert not self.scheduler.leave(op)
        self._complete(op)
        return None

    def add_to_bulk(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        if self.open is not None and any(
            op.serial > self.open.serial for op in self._conflicting(reads, writes) if op is not self.open
        ):
            self.close_bulk()
        if self.open is None:
            self.open = self._operation((), ())
            self.parts[self.open] = []
            self.scheduler.push(self.open, hold=True)
            assert self.open.state == WAITING
        op = self.open
        part = self._operation(reads, writes)
        assert self.scheduler.extend(op, part, [])
        self.parts[op].append(self._next(reads, writes))

    def close_bulk(self) -> None:
        op, self.open = self.open, None
        if op is not None:
            self.scheduler.unhold(op)
            self._pushed(op)

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

    # -- invariants ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that exactly those operations wait that conflict with an earlier pending one."""
        self.scheduler.check_invariants()
        for op in self.scheduler.pending:
            waits = op is self.open or any(
                self._conflicting(part.reads, part.writes, before=part.order, but=op) for part in self.parts[op]
            )
            assert (op.state == WAITING) == waits, f"{op} must {'' if waits else 'not '}wait"

    # -- helpers ---------------------------------------------------------------------------------------

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

    def _handed_over(self, op: Operation) -> None:
        assert op.state == READY
        self.released.append(op)

    def _pushed(self, op: Operation) -> None:
        assert self.released == ([op] if op.state == READY else [])
        self.ready += self.released
        self.waited += op.state == WAITING
        self.released = []

    def _begin(self, op: Operation) -> None:
        self.inputs[op] = {i: self.values[i] for part in self.parts[op] for i in part.reads}
        for part in self.parts[op]:
            for i in part.writes:
                self.values[i] = TORN

    def _end(self, op: Operation) -> None:
        inputs, written = self.inputs.pop(op), dict[int, object]()
        parts = self.parts[op]
        if op.state == DONE:  # the values of a read-only part are unchanged
            del self.parts[op]
        for part in parts:
            read = [written.get(i, inputs[i]) for i in part.reads]
            assert read == part.expected, f"{op} did not read what the serial run read"
            for i in part.writes:
                written[i] = _digest(part.order, i, part.expected)
        for i, value in inputs.items():
            assert i in written or self.values[i] == value, f"v{i} changed under {op}, which reads it"
        for i, value in written.items():
            assert self.values[i] is TORN, f"two operations wrote v{i} at once"
            self.values[i] = value

    def _complete(self, op: Operation) -> None:
        self.scheduler.complete(op)
        assert op.state == DONE
        del self.parts[op]
        released, self.released = self.released, []
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
    """Every order of events that a user of the scheduler may cause."""

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

    @rule(outer=st.tuples(TAGS, TAGS), inner=st.tuples(TAGS, TAGS))
    def push_inside(self, outer, inner):
        self.model.push_inside(outer, inner)

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
    """Run random events with few or many operations pending, then complete all of them."""
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
            a, b, c, d = (tuple(rng.randrange(count) for _ in range(2)) for _ in range(4))
            model.push_inside((a, b), (c, d))
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


@pytest.mark.parametrize("events", [200_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_a_long_run_equals_the_serial_one(events):
    model = drive(Model(12), random.Random(events), events, look_every=1000)
    assert model.waited > events / 20, "the run must be a real test: many operations wait"
    assert model.passed > events / 200


def test_many_short_runs_wait_for_exactly_what_they_must():
    for seed in range(150):
        rng = random.Random(seed)
        model = Model(rng.randrange(1, 8))
        drive(model, rng, 80, look_every=1, look=model.check)


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


def test_completed_operations_are_released():
    scheduler, variable = Scheduler(lambda op: None), Variable()
    for _ in range(1000):
        op = Operation(_digest, (), (variable,), (), None, "read")
        scheduler.push(op)
        scheduler.start(op)
        scheduler.complete(op)
    assert not variable.readers
    writer = Operation(_digest, (), (), (variable,), None, "write")
    scheduler.push(writer)
    scheduler.complete(writer)
    assert variable.writer is None


# -- interruptions -----------------------------------------------------------------------------------------


class Traffic:
    """Operations without values, some of them pending: those that conflict with an earlier one must wait."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.handed_over: set[Operation] = set()
        self.scheduler = Scheduler(self.handed_over.add)
        self.variables = [Variable(f"v{i}") for i in range(4)]
        for _ in range(8):
            self.scheduler.push(self.operation())

    def operation(self) -> Operation:
        reads, writes = ([v for v in self.variables if self.rng.random() < 0.4] for _ in range(2))
        return Operation(_digest, (), tuple(reads), tuple(writes), None, "op")

    def end_one(self) -> None:
        """Complete the oldest operation; it never waits."""
        oldest = next(iter(self.scheduler.pending), None)
        if oldest is not None and oldest.state != DONE:
            self.scheduler.complete(oldest)

    def push_light(self) -> None:
        op = self.operation()
        if not self.scheduler.enter(op):
            self.scheduler.push(op)
        elif not self.scheduler.leave(op):
            self.scheduler.complete(op)

    def extend(self) -> None:
        op, more = self.operation(), self.operation()
        self.scheduler.push(op, hold=True)
        parts: list[Operation] = []
        if not self.scheduler.extend(op, more, parts):
            self.scheduler.push(more)
        assert len(parts) == (more.state == WAITING and not more.serial)
        self.scheduler.unhold(op)

    def work(self) -> None:
        """Run each kind of step."""
        self.scheduler.push(self.operation())
        self.end_one()
        self.push_light()
        self.extend()
        self.end_one()

    def check(self) -> None:
        self.scheduler.check_invariants()
        pending = list(self.scheduler.pending)
        for index, op in enumerate(pending):
            waits = any(_conflict(earlier, op) for earlier in pending[:index])
            assert (op.state == WAITING) == waits, f"{op} must {'' if waits else 'not '}wait"
            assert op.state == WAITING or op in self.handed_over
        while self.scheduler.pending:
            self.end_one()
        assert all(not v.readers and v.writer is None for v in self.variables), (
            "a completed operation is still referenced"
        )


def _conflict(a: Operation, b: Operation) -> bool:
    written = {*a.writes}
    return bool(written & {*b.reads, *b.writes} or {*a.reads} & {*b.writes})


INNER = {
    "a push": lambda traffic: traffic.scheduler.push(traffic.operation()),
    "a push of a light one": Traffic.push_light,
    "a completion": Traffic.end_one,
    "the end of all": lambda traffic: [traffic.end_one() for _ in range(99)],
    "much": lambda traffic: [traffic.work() for _ in range(3)],
}


@pytest.mark.parametrize("inner", INNER)
def test_interrupting_calls_see_and_leave_complete_steps(inner):
    """A finalizer or handler runs at each moment of every kind of step, and uses the scheduler itself."""

    def come_in_between():
        traffic.scheduler.recover()
        INNER[inner](traffic)

    moments = 0
    for seed in range(4):
        for moment in range(100_000):
            traffic = Traffic(seed)
            if not strike(traffic.work, moment, {scheduler_module.__file__}, come_in_between):
                break
            moments += 1
            traffic.check()
    assert moments > 300


def test_an_interrupted_step_is_finished_by_the_next_caller():
    def interrupt():
        raise KeyboardInterrupt

    moments = 0
    for seed in range(8):
        for moment in range(100_000):
            traffic = Traffic(seed)
            try:
                if not strike(traffic.work, moment, {scheduler_module.__file__}, interrupt):
                    break
            except KeyboardInterrupt:
                moments += 1
            for op in traffic.scheduler.pending:
                if traffic.scheduler.is_held(op):  # the call that would have released it was interrupted
                    traffic.scheduler.recover()
                    traffic.scheduler.unhold(op)
            inside = traffic.scheduler.inside
            traffic.scheduler.recover()
            if inside is not None:
                traffic.scheduler.complete(inside)
            traffic.check()
    assert moments > 300


# -- the checker itself ------------------------------------------------------------------------------------


class ForgetsReaders(Scheduler):
    __slots__ = ()

    def _tag(self, step):
        for variable in step[3]:
            variable.readers = None
        super()._tag(step)


class ForgetsTheWriterForReads(Scheduler):
    __slots__ = ()

    def _tag(self, step):
        writers = {variable: variable.writer for variable in step[2] if variable not in step[3]}
        for variable in writers:
            variable.writer = None
        super()._tag(step)
        for variable, writer in writers.items():
            variable.writer = writer


class ForgetsTheWriterForWrites(Scheduler):
    __slots__ = ()

    def _tag(self, step):
        for variable in step[3]:
            if variable not in step[2]:
                variable.writer = None
        super()._tag(step)


class ForgetsADependent(Scheduler):
    __slots__ = ()

    def complete(self, op):
        if op.dependents and len(op.dependents) > 2:
            op.dependents.popitem()
        super().complete(op)


class ReleasesEarly(Scheduler):
    __slots__ = ()

    def complete(self, op):
        early = [each for each in op.dependents or () if len(each.blockers) == 2 and each.state == WAITING]
        super().complete(op)
        for each in early:
            if each.state == WAITING and len(each.blockers) == 1 and not self.is_held(each):
                each.state, each.blockers = READY, {}
                self.hand_over(each)
                return


class ReleasesInTheWrongOrder(Scheduler):
    __slots__ = ()

    def complete(self, op):
        op.dependents = dict.fromkeys(reversed(op.dependents))
        super().complete(op)


class KeepsReaders(Scheduler):
    __slots__ = ()

    def complete(self, op):
        super().complete(op)
        for variable in op.reads:
            if variable.readers is not None:
                variable.readers[op] = None


class LetsEverythingPass(Scheduler):
    __slots__ = ()

    def enter(self, op):
        readers = {variable: variable.readers for variable in op.writes}
        for variable in readers:
            variable.readers = None
        passes = super().enter(op)
        for variable, them in readers.items():
            variable.readers = them
        return passes


class LetsNothingPass(Scheduler):
    __slots__ = ()

    def enter(self, op):
        return not self.pending and super().enter(op)


class ForgetsWhatIsInside(Scheduler):
    __slots__ = ()

    def recover(self):
        inside, self.inside = self.inside, None
        super().recover()
        if inside is not None:
            inside.blockers, inside.dependents, inside.state = {}, {}, RUNNING
            self.pending[inside] = None


class ForgetsTheHold(Scheduler):
    __slots__ = ()

    def _tag(self, step):
        super()._tag(step)
        op = step[1]
        if self.is_held(op) and len(op.blockers) == 1 and op.writes:
            op.state, op.blockers = READY, {}
            self.hand_over(op)


@pytest.mark.parametrize(
    "wrong",
    [
        ForgetsReaders,
        ForgetsTheWriterForReads,
        ForgetsTheWriterForWrites,
        ForgetsADependent,
        ReleasesEarly,
        ReleasesInTheWrongOrder,
        KeepsReaders,
        ForgetsWhatIsInside,
        LetsEverythingPass,
        LetsNothingPass,
        ForgetsTheHold,
    ],
)
def test_a_wrong_scheduler_is_detected(wrong):
    def run():
        for seed in range(20):
            drive(Model(5, wrong), random.Random(seed), 2000, look_every=1)

    with pytest.raises(AssertionError):
        run()


@pytest.mark.parametrize("state", [READY, RUNNING, DONE])
def test_the_invariants_detect_an_inconsistent_state(state):
    model = Model()
    model.push((), (0,))
    model.push((0,), ())
    model.scheduler.check_invariants()
    list(model.scheduler.pending)[1].state = state
    with pytest.raises(AssertionError):
        model.scheduler.check_invariants()
