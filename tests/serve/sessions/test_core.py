"""Each session gets the results of a serial run of its calls, whatever shares its batches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowmx.errors import Overloaded
from flowmx.serve.errors import SessionClosed
from flowmx.serve.sessions.core import Call, SessionLimits, SessionTable

ROW = 16
X = np.zeros((1, 2), np.float32)  # 8 bytes
SHAPES = (((2,),), ((3,),))


def following(state, x):
    """Return the state after a call, from which every earlier call can be told."""
    return (31 * state + x + 7) % (1 << 61)


class World:
    """A table with a simulated array of states, and a serial run of each session."""

    def __init__(self, limits):
        self.table = SessionTable(ROW, limits)
        self.states = {}  # by slot
        self.serial = {}  # by session: the state after the calls that took effect
        self.inputs = {}  # by call
        self.order = {}  # by session: calls that may still take effect, in order
        self.batches = []
        self.sessions = []
        self.now = 0.0

    def open(self, idle):
        try:
            session = self.table.open(self.now, idle=idle)
        except Overloaded:
            limits = self.table.limits
            assert len(self.table) + len(self.closing()) == limits.sessions or self.table.nbytes + ROW > limits.nbytes
            return
        self.sessions.append(session)
        self.serial[session], self.order[session] = 0, []

    def closing(self):
        return [each for each in self.sessions if each.reason is not None and each.running is not None]

    def put(self, session, x, shape, group):
        call = Call(session, (X,), SHAPES[shape], self.now, group=group)
        try:
            self.table.put(call, self.now)
        except SessionClosed:
            assert session.reason is not None
            return
        except Overloaded:
            calls = len(session.calls) + (session.running is not None)
            assert calls == self.table.limits.calls or self.table.nbytes + X.nbytes > self.table.limits.nbytes
            return
        self.inputs[call] = x
        self.order[session].append(call)

    def drop(self, call):
        if self.table.drop(call):
            self.order[call.session].remove(call)

    def close(self, session):
        for call in self.table.close(session):
            self.order[session].remove(call)

    def take(self, limit):
        oldest = self.table.oldest()
        if oldest is None:
            return
        calls = self.table.take(oldest.shapes, limit)
        assert oldest in calls
        assert len(calls) <= limit
        assert len({call.session for call in calls}) == len(calls)
        assert all(call.shapes == oldest.shapes for call in calls)
        before = [0 if call.session.is_new else self.states[call.session.slot] for call in calls]
        self.batches.append((calls, [following(s, self.inputs[c]) for s, c in zip(before, calls, strict=True)], []))

    def commit(self, index):
        calls, results, positions = self.batches[index]
        if positions:
            return
        positions += self.table.commit(calls)
        for position in positions:
            call = calls[position]
            assert self.order[call.session].pop(0) is call
            self.serial[call.session] = following(self.serial[call.session], self.inputs[call])
            assert results[position] == self.serial[call.session]
            self.states[call.session.slot] = results[position]

    def finish(self, index):
        self.commit(index)
        calls, _, _ = self.batches.pop(index)
        self.table.finish(calls, self.now)

    def fail(self, index):
        calls, _, positions = self.batches[index]
        if positions:
            return
        del self.batches[index]
        for call in self.table.fail(calls, self.now):
            self.order[call.session].remove(call)

    def expire(self):
        for session in self.table.expire(self.now):
            assert session.since + session.idle <= self.now
            assert not self.order[session]

    def compact(self):
        if self.batches:
            return
        for source, target in self.table.compact():
            self.states[target] = self.states.get(source, 0)
        assert self.table.slots == len(self.table)

    def check(self):
        table = self.table
        held = [*table, *self.closing()]
        slots = [session.slot for session in held]
        assert len(set(slots)) == len(slots) == len(held)
        assert all(slot < table.slots for slot in slots)
        waiting = [call for session in held for call in session.calls]
        running = [call for calls, *_ in self.batches for call in calls]
        assert table.waiting == len(waiting)
        assert table.running == len(running)
        assert table.nbytes == ROW * len(held) + X.nbytes * (len(waiting) + len(running)) <= table.limits.nbytes
        ready = [session for session in table if session.calls and session.running is None]
        assert sum(table.ready(shapes) for shapes in SHAPES) == len(ready)


steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["open", "put", "put", "put", "take", "take", "commit", "finish", "finish", "fail", "drop", "close", "pass",
             "compact"]
        ),
        st.integers(0, 1 << 16),
        st.integers(0, 1 << 16),
    ),
    max_size=120,
)  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(steps, st.integers(1, 5), st.integers(1, 4), st.integers(30, 200))
def test_any_interleaving_gives_each_session_the_results_of_its_serial_run(steps, most, calls, nbytes):
    world = World(SessionLimits(most, nbytes, calls, 10.0))
    for step, a, b in steps:
        world.now += 0.5
        session = world.sessions[a % len(world.sessions)] if world.sessions else None
        batch = a % len(world.batches) if world.batches else None
        if step == "open":
            world.open([None, 2.0][a % 2])
        elif step == "put" and session is not None:
            world.put(session, b, b % 2, [None, session][a % 2])
        elif step == "take":
            world.take(1 + a % 4)
        elif step in ("commit", "finish", "fail") and batch is not None:
            getattr(world, step)(batch)
        elif step == "drop" and session is not None and world.order[session]:
            world.drop(world.order[session][b % len(world.order[session])])
        elif step == "close" and session is not None:
            world.close(session)
        elif step == "pass":
            world.now += a % 12
            world.expire()
        elif step == "compact":
            world.compact()
        world.check()
    for session in list(world.table):
        world.close(session)
    while world.batches:
        world.finish(0)
    world.check()
    assert world.table.nbytes == 0
    world.compact()
    assert world.table.slots == 0


def table(**limits):
    return SessionTable(ROW, SessionLimits(**limits))


def test_the_calls_of_a_batch_are_of_different_sessions():
    t = table()
    first, second = t.open(0.0), t.open(0.0)
    calls = [Call(session, (X,), SHAPES[0], 0.0) for session in (first, first, second)]
    for call in calls:
        t.put(call, 0.0)
    assert t.take(SHAPES[0], 8) == [calls[0], calls[2]]
    assert t.oldest() is None
    t.finish([calls[2]], 1.0)
    assert t.oldest() is None  # the first session's call is still in the batch
    t.finish([calls[0]], 1.0)
    assert t.oldest() is calls[1]


def test_no_session_waits_for_one_with_many_calls():
    t = table()
    busy, other = t.open(0.0), t.open(0.0)
    for _ in range(5):
        t.put(Call(busy, (X,), SHAPES[0], 0.0), 0.0)
    batch = t.take(SHAPES[0], 1)
    t.put(Call(other, (X,), SHAPES[0], 1.0), 1.0)
    t.finish(batch, 2.0)
    assert [call.session for call in t.take(SHAPES[0], 1)] == [other]


def test_a_failed_call_ends_the_waiting_calls_of_its_group_only():
    t = table()
    session, stream = t.open(0.0), object()
    calls = [Call(session, (X,), SHAPES[0], 0.0, group=group) for group in (stream, None, stream)]
    for call in calls:
        t.put(call, 0.0)
    assert t.fail(t.take(SHAPES[0], 8), 1.0) == [calls[0], calls[2]]
    assert t.take(SHAPES[0], 8) == [calls[1]]
    assert session.is_new
    assert session.steps == 0


def test_errors_name_the_session_and_the_limit():
    t = table(sessions=1, calls=1)
    alice = t.open(0.0, "alice")
    with pytest.raises(Overloaded, match="1 sessions are open, at most 1 may be") as info:
        t.open(1.0)
    assert info.value.retry_after == 5.0  # the first may be idle for too long in 299 s, or be closed before
    t.put(Call(alice, (X,), SHAPES[0], 0.0), 0.0)
    with pytest.raises(Overloaded, match="session 'alice' has 1 unfinished calls"):
        t.put(Call(alice, (X,), SHAPES[0], 0.0), 0.0)
    t.close(alice)
    with pytest.raises(SessionClosed, match="session 'alice' is closed: open a new session"):
        t.put(Call(alice, (X,), SHAPES[0], 0.0), 0.0)
    t.open(2.0, "alice")
    with pytest.raises(ValueError, match="session 'alice' is already open"):
        t.open(2.0, "alice")


def test_bytes_of_states_and_inputs_are_limited_together():
    t = table(nbytes=2 * ROW + X.nbytes - 1)
    session = t.open(0.0)
    t.put(Call(session, (X,), SHAPES[0], 0.0), 0.0)
    with pytest.raises(Overloaded, match="24 bytes, at most 39"):
        t.open(0.0)
    t.finish(t.take(SHAPES[0], 1), 1.0)
    t.open(1.0)
    with pytest.raises(Overloaded, match="session 1: the states and inputs of all sessions have 32 bytes"):
        t.put(Call(session, (X,), SHAPES[0], 0.0), 1.0)


def test_an_idle_session_is_closed_but_not_a_busy_one():
    t = table(idle=10.0)
    idle, busy = t.open(0.0), t.open(0.0)
    t.put(Call(busy, (X,), SHAPES[0], 9.0), 9.0)
    assert t.next_expiry() == 10.0
    assert t.expire(10.0) == [idle]
    with pytest.raises(SessionClosed, match="session 1 was closed after 10 s without a call"):
        t.put(Call(idle, (X,), SHAPES[0], 10.0), 10.0)
    t.finish(t.take(SHAPES[0], 1), 25.0)
    assert t.expire(34.0) == []
    assert t.expire(35.0) == [busy]
    assert (len(t), t.nbytes, t.next_expiry()) == (0, 0, None)


def test_the_sessions_that_have_waited_for_longest():
    table = SessionTable(ROW, SessionLimits())
    sessions = [table.open(0.0, name) for name in "abcd"]
    for place, session in enumerate(sessions):
        for arrival in (5.0 - place, 9.0):
            table.put(Call(session, (X,), SHAPES[place % 2], arrival), arrival)
    assert [(each.name, arrival) for each, arrival in table.longest_waiting(3)] == [("d", 2.0), ("c", 3.0), ("b", 4.0)]
    table.take(SHAPES[1], 8)  # b and d
    assert [each.name for each, _ in table.longest_waiting(3)] == ["c", "a"]
