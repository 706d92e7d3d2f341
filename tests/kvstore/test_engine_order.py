"""Stores on the engine: random use equals a serial run, errors affect only their keys, priorities are respected."""

from __future__ import annotations

import functools
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import flowmx as mx
from flowmx.kvstore import device_sums

DEVICES = 4
SLOTS = 6
KEYS = 3
SHAPE = (3, 5)
KINDS = {
    "naive": {"engine_type": "NaiveEngine"},
    "pooled": {"engine_type": "ThreadedEngine"},
    "per device": {"engine_type": "ThreadedEnginePerDevice"},
    "checking": {"engine_check": True},
    "little room": {"engine_max_ops": 3},
}


class Mishap(Exception):
    pass


class Step(NamedTuple):
    what: str
    key: int
    slots: list[int]
    outs: list[int]
    number: int


steps = st.builds(
    Step,
    st.sampled_from(["write", "fail", "push", "push", "pull", "pushpull", "pushpull", "all", "updater", "rows"]),
    st.integers(0, KEYS - 1),
    st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=5),
    st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=3),
    st.integers(-3, 3),
)
programs = st.lists(steps, max_size=14)


@pytest.fixture(autouse=True)
def consume_errors():
    """Consume errors, so that no later wait for everything raises them."""
    yield
    while True:
        try:
            return mx.nd.waitall()
        except Mishap:
            continue


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed + 10).normal(size=SHAPE).astype(np.float32)


def update(key: Any, merged: Any, stored: Any) -> None:
    stored += merged * 2


def fail() -> None:
    raise Mishap


class Real:
    """Runs programs on the store of flowmx."""

    def __init__(self, name: str) -> None:
        self.kv = mx.kv.create(name)
        self.slots = [mx.nd.array(numbers(slot), ctx=mx.cpu(slot % DEVICES)) for slot in range(SLOTS)]
        self.kv.init(list(range(KEYS)), [mx.nd.array(numbers(100 + key)) for key in range(KEYS)])
        self.updates = False

    def run(self, step: Step) -> None:
        values, outs = ([self.slots[slot] for slot in item] for item in (step.slots, step.outs))
        match step.what:
            case "write":
                self.slots[step.slots[0]][:] = mx.nd.array(numbers(step.number))
            case "fail":
                mx.engine.push(fail, writes=[values[0]])
            case "push":
                self.kv.push(step.key, values, priority=step.number)
            case "pull":
                self.kv.pull(step.key, out=outs, priority=step.number)
            case "pushpull":
                self.kv.pushpull(step.key, values, out=outs, priority=step.number)
            case "all":
                self.kv.pushpull(step.key, values, priority=step.number)
            case "updater":
                self.updates = not self.updates
                self.kv.set_updater(update if self.updates else None)
            case "rows":
                self.kv.row_sparse_pull(step.key, out=outs, row_ids=mx.nd.array([2, 0, 2]))

    def look(self) -> list[Any]:
        outs = [mx.nd.zeros(SHAPE) for _ in range(KEYS)]
        self.kv.pull(list(range(KEYS)), out=outs)
        return [self._content(slot) for slot in (*self.slots, *outs)]

    @staticmethod
    def _content(array: Any) -> Any:
        try:
            return array.asnumpy().tobytes()
        except Mishap:
            return None


class Serial:
    """Runs programs on NumPy, step by step; None stands for an error."""

    def __init__(self) -> None:
        self.slots: list[Any] = [numbers(slot) for slot in range(SLOTS)]
        self.keys: list[Any] = [numbers(100 + key) for key in range(KEYS)]
        self.updates = False

    def run(self, step: Step) -> None:
        values = [self.slots[slot] for slot in step.slots]
        match step.what:
            case "write":
                self.slots[step.slots[0]] = numbers(step.number)
            case "fail":
                self.slots[step.slots[0]] = None
            case "push":
                self._push(step.key, values)
            case "pull":
                self._pull(step.key, step.outs)
            case "pushpull":
                self._push(step.key, values)
                self._pull(step.key, step.outs)
            case "all":
                self._push(step.key, values)
                self._pull(step.key, step.slots)
            case "updater":
                self.updates = not self.updates
            case "rows":
                stored = self.keys[step.key]
                for slot in step.outs:
                    self.slots[slot] = None if stored is None else stored * np.array([[1], [0], [1]], np.float32)

    def _push(self, key: int, values: list[Any]) -> None:
        failed = any(value is None for value in values)
        total: Any = None if failed else functools.reduce(np.add, values)
        if self.updates:
            stored = self.keys[key]
            total = None if failed or stored is None else stored + total * np.float32(2)
        self.keys[key] = total

    def _pull(self, key: int, slots: list[int]) -> None:
        for slot in slots:
            self.slots[slot] = self.keys[key]

    def look(self) -> list[Any]:
        return [None if slot is None else (slot + np.float32(0)).tobytes() for slot in (*self.slots, *self.keys)]


@pytest.mark.parametrize("kind", KINDS)
@given(program=programs, name=st.sampled_from(["local", "device"]), bound=st.sampled_from([1, 1000]))
@hypothesis_settings(max_examples=120)
def test_random_use_equals_a_serial_run(kind, program, name, bound):
    with mx.engine.using(**KINDS[kind], kvstore_bigarray_bound=bound):
        real, serial = Real(name), Serial()
        for step in program:
            real.run(step)
            serial.run(step)
        assert [_positive(item) for item in real.look()] == serial.look()


def _positive(content: bytes | None) -> bytes | None:
    """Drop the signs of zeros, which omitted rows do not have."""
    return None if content is None else (np.frombuffer(content, np.float32) + np.float32(0)).tobytes()


def test_the_serial_run_notices_sums_in_another_order():
    real, serial = Real("local"), Serial()
    real.run(Step("push", 0, [0, 1, 2], [], 0))
    serial.run(Step("push", 0, [2, 1, 0], [], 0))
    assert [_positive(item) for item in real.look()] != serial.look()


@pytest.mark.parametrize("name", ["local", "device"])
@pytest.mark.parametrize("devices", [2, 3, 8])
def test_big_arrays_are_the_same_bits_as_small_ones(name, devices):
    inputs = [np.random.default_rng(index).normal(size=(37, 41)).astype(np.float32) for index in range(devices)]
    expected = functools.reduce(np.add, inputs)
    with mx.engine.using(kvstore_bigarray_bound=100):
        kv = mx.kv.create(name)
        kv.init("w", mx.nd.zeros((37, 41)))
        arrays = [mx.nd.array(each, ctx=mx.cpu(index)) for index, each in enumerate(inputs)]
        for _ in range(20):
            outs = [array.copy() for array in arrays]
            kv.pushpull("w", outs)
            kv.pushpull("w", arrays, out=outs[0])
            assert all(np.array_equal(out.asnumpy(), expected) for out in outs)


# -- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["local", "device"])
@pytest.mark.parametrize("bound", [1, 1000])
async def test_an_error_affects_only_its_key_until_the_next_push(name, bound):
    with mx.engine.using(kvstore_bigarray_bound=bound):
        kv = mx.kv.create(name)
        kv.init([0, 1], [mx.nd.zeros(SHAPE)] * 2)
        good, bad, out, other = (mx.nd.ones(SHAPE, ctx=mx.cpu(index)) for index in range(4))
        mx.engine.push(fail, writes=[bad])
        kv.push([0, 1], [[good, bad], [good, good]])
        kv.pull([0, 1], out=[out, other])
        with pytest.raises(Mishap):
            await out
        assert ((await other).asnumpy() == 2).all()
        kv.push(0, [good, good])
        kv.pull(0, out=out)
        assert ((await out).asnumpy() == 2).all()


# -- order and overlap -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "lane"), [("device", lambda: mx.cpu(0)), ("local", lambda: device_sums.cpu_lanes()[0])]
)
def test_higher_priorities_are_summed_first_when_an_actor_is_busy(name, lane):
    with mx.engine.using(kvstore_reduction_nthreads=1):
        kv = mx.kv.create(name)
        keys = list(range(5))
        kv.init(keys, [mx.nd.zeros(SHAPE)] * 5)
        order, notes = [], []

        def note(key, merged, stored):
            notes.append(mx.engine.push(lambda: order.append(key), reads=[merged], device=mx.cpu(9)))

        kv.set_updater(note)
        gate = threading.Event()
        mx.engine.push(gate.wait, device=lane())
        inputs = [mx.nd.ones(SHAPE, ctx=mx.cpu(index)) for index in (1, 2)]
        for key, priority in zip(keys, (-3, -1, -4, 0, -2), strict=True):
            kv.push(key, inputs, priority=priority)
        gate.set()
        for item in notes:
            item.wait()
        assert order == [3, 1, 4, 0, 2]


@pytest.mark.parametrize("name", ["local", "device"])
def test_pushes_return_at_once_and_sums_start_when_their_gradients_are_there(name):
    kv = mx.kv.create(name)
    kv.init(["early", "late"], [mx.nd.zeros(SHAPE)] * 2)
    outs = mx.nd.zeros(SHAPE), mx.nd.zeros(SHAPE)
    early, late = ([mx.nd.ones(SHAPE, ctx=mx.cpu(index)) for index in (1, 2)] for _ in range(2))
    gate = threading.Event()
    slow = mx.engine.push(gate.wait, writes=[late[1]], device=mx.cpu(2))
    kv.pushpull("late", late, out=outs[1])
    kv.pushpull("early", early, out=outs[0])
    assert (outs[0].asnumpy() == 2).all()
    assert not slow.done()
    gate.set()
    assert (outs[1].asnumpy() == 2).all()


def test_threads_may_share_a_store():
    kv = mx.kv.create("device")
    kv.init("n", mx.nd.zeros(SHAPE))

    def add(key, merged, stored):
        stored += merged

    kv.set_updater(add)
    inputs = [mx.nd.ones(SHAPE, ctx=mx.cpu(index)) for index in range(3)]

    def push() -> None:
        for _ in range(50):
            kv.push("n", inputs)

    with mx.engine.using(kvstore_bigarray_bound=1):
        threads = [threading.Thread(target=push) for _ in range(4)]
        for thread in threads:
            thread.start()
        for item in threads:
            item.join()
        out = mx.nd.zeros(SHAPE)
        kv.pull("n", out=out)
        assert (out.asnumpy() == 4 * 50 * 3).all()


def test_sums_and_operators_can_stand_in_one_bulk():
    kv = mx.kv.create("local")
    kv.init("n", mx.nd.zeros(SHAPE))
    with mx.engine.using(kvstore_bigarray_bound=1):
        array = mx.nd.ones(SHAPE)
        with mx.engine.bulk(10):
            for _ in range(3):
                kv.pushpull("n", [array, array * 2], out=array)
                array += 1
        assert (array.asnumpy() == 1 * 27 + 9 + 3 + 1).all()
