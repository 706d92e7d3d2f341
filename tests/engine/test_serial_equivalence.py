"""Law 1 and Law 3 from the outside: random programs give the results of a serial run on every kind of engine."""

import asyncio
import contextlib

import numpy as np
import pytest

import flowmx as mx
from flowmx.devices import get
from tests.programs import Flow, Serial, make

KINDS = {
    "naive": {"engine_type": "NaiveEngine"},
    "pooled": {"engine_type": "ThreadedEngine"},
    "per device": {"engine_type": "ThreadedEnginePerDevice"},
    "checking": {"engine_check": True},
    "little room": {"engine_max_ops": 3, "engine_max_bytes": 100_000},
    "pooled, little room": {"engine_type": "ThreadedEngine", "engine_max_ops": 5},
    "many workers": {"cpu_worker_nthreads": 3},
}
# A device keeps the settings that were in force at its first use.
DEVICES = {"many workers": (20, 21)}


@contextlib.contextmanager
def engine_of(kind):
    with mx.engine.using(**KINDS[kind]) as engine:
        contexts = [mx.cpu(number) for number in DEVICES.get(kind, (0, 1))]
        for context in contexts:
            get(context)
        yield engine, contexts


@contextlib.contextmanager
def counted_waits(engine):
    """Count the operations that had to wait for others."""
    waited = [0]
    push = engine.books.push

    def counting(op, hold=False):
        push(op, hold)
        waited[0] += bool(op.blockers)

    engine.books.push = counting
    try:
        yield waited
    finally:
        engine.books.push = push


def explain(program, expected, actual):
    different = [i for i, (a, b) in enumerate(zip(expected, actual, strict=True)) if a != b]
    first = different[0]
    return f"outcome {first} of {len(actual)}: {_short(actual[first])}, expected {_short(expected[first])}\n{program}"


def _short(outcome):
    if outcome[0] == "content":
        return np.frombuffer(outcome[2], np.float32).reshape(outcome[1])
    return outcome


def check(program, actual):
    expected = Serial(program).run()
    assert actual == expected, explain(program, expected, actual)


NORMAL, SOAK = 700, 21_000


@pytest.mark.parametrize("count", [NORMAL, pytest.param(SOAK, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize("kind", KINDS)
def test_a_random_program_equals_a_serial_run(kind, count):
    each = count // len(KINDS)
    with engine_of(kind) as (engine, contexts), counted_waits(engine) as waited:
        for seed in range(each):
            program = make(seed + each * list(KINDS).index(kind))
            check(program, Flow(program, contexts).run())
        engine.wait_all(throw=False)  # operations without a waiter may still run
        assert not engine.pending
        engine.scheduler.check_invariants()
    if kind not in ("naive", "little room"):
        assert waited[0] > each, "operations must have had to wait, or nothing was tested"


@pytest.mark.parametrize("kind", ["pooled", "per device", "many workers"])
async def test_programs_in_concurrent_tasks_do_not_affect_each_other(kind):
    with engine_of(kind) as (_, contexts):
        for seed in range(0, 120, 8):
            programs = [make(100_000 + seed + i) for i in range(8)]
            results = await asyncio.gather(*(Flow(program, contexts).run_async() for program in programs))
            for program, outcomes in zip(programs, results, strict=True):
                check(program, outcomes)


@pytest.mark.parametrize("kind", KINDS)
def test_random_numbers_are_drawn_in_call_order(kind):
    def run(contexts):
        mx.random.seed(7)
        arrays = []
        for i in range(60):
            arrays.append(mx.nd.random.uniform(shape=(3,), ctx=contexts[i % 2]))
            arrays.append(mx.nd.random.normal(shape=(200, 100), ctx=contexts[i % 2])[:2, :2])
            arrays[-1] *= 0.5
        return [array.asnumpy().tolist() for array in arrays]

    with engine_of(kind) as (_, contexts):
        result = run(contexts)
        with mx.engine.using(engine_type="NaiveEngine"):
            assert run(contexts) == result


def test_an_engine_that_forgets_reads_is_detected():
    with engine_of("per device") as (engine, contexts):
        push = engine.books.push

        def forgetful(op, hold=False):
            reads, op.reads = op.reads, ()
            try:
                push(op, hold)
            finally:
                op.reads = reads

        differences = 0
        for seed in range(60):
            program = make(seed)
            engine.books.push = forgetful
            try:
                differences += Flow(program, contexts).run() != Serial(program).run()
            finally:
                engine.books.push = push
        mx.engine.engine.wait_all(throw=False)
    assert differences
