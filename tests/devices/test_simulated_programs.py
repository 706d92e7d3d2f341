"""Random programs on two simulated devices of three streams: whatever the order in which streams go on, and wherever
memory comes from, they give what a serial run gives; devices with a planted fault are detected."""

import contextlib

import pytest

import flowmx as mx
from flowmx.devices import block_pool, streams
from flowmx.devices.sim import SimStream, simulated
from flowmx.engine.runtime import engine
from flowmx.errors import OutOfMemory, RaceError
from tests.engine.test_serial_equivalence import check, explain
from tests.programs import Flow, Serial, make

pytestmark = pytest.mark.filterwarnings("ignore::flowmx.errors.CrossDeviceWarning")
NORMAL, SOAK = 200, 12_000
LITTLE = 1 << 22
"""Bytes that are enough for the largest programs, but no more: blocks go from stream to stream."""
CONTEXTS = [mx.sim(0), mx.sim(1)]


SHARE = {"Naive": 6, "Round": 2, "Unpooled": 2}
"""So many sixths of the programs run with a type of pool: a third of a thousand in all."""


@pytest.fixture(autouse=True)
def forgotten_errors():
    """Errors that programs provoke are not reported at exit."""
    yield
    engine.failures.clear()


def run(machine, program, deferred):
    machine.restart(program.seed if deferred else None)
    kind = "NaiveEngine" if program.seed % 3 == 0 else "ThreadedEnginePerDevice"
    with mx.engine.using(engine_type=kind):
        outcomes = Flow(program, CONTEXTS).run()
        engine.wait_all(throw=False)
    return outcomes


@pytest.mark.parametrize("count", [NORMAL, pytest.param(SOAK, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize("deferred", [True, False], ids=["adversarial timing", "at launch"])
@pytest.mark.parametrize("pool", ["Naive", "Round", "Unpooled"])
def test_a_random_program_equals_a_serial_run(deferred, pool, count, monkeypatch):
    monkeypatch.setenv("FLOWMX_GPU_MEM_POOL_TYPE", pool)
    mx.settings.reload()
    try:
        with simulated("a10", 2, streams=3, memory=LITTLE) as machine:
            for seed in range(SHARE[pool] * count // (6 if deferred else 24)):
                program = make(seed, length=30)
                check(program, run(machine, program, deferred))
            handed_over = sum(device.pool.waited_reuses for device in machine.devices.values())
            assert not handed_over if pool == "Unpooled" else handed_over or not deferred
    finally:
        monkeypatch.undo()
        mx.settings.reload()


# -- devices that forget ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def forgetting(monkeypatch, owner, name, wrong):
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, wrong)
        yield


def no_wait(self, token):
    """A stream that forgets to wait for others."""


def no_uses(self, block, stream):
    """A faulty pool that hands out memory that is still in use."""


def no_marks_of_copies(real):
    """A planted fault: copies record no token."""

    def mark(reads, writes, token):
        if "copies" not in token.stream.name:
            real(reads, writes, token)

    return mark


WRONG = {
    "a stream forgets to wait": (streams.Stream, "wait", no_wait),
    "a pool forgets tokens": (block_pool.BlockPool, "wait_for_uses", no_uses),
    "copies do not mark": (streams, "mark", no_marks_of_copies(streams.mark)),
}
MEMORY = {"a pool forgets tokens": 1 << 20}


def is_found_out(deferred, races, memory):
    """Return whether a program finds a race, or gives wrong numbers if races are not checked."""
    with simulated("a10", 2, streams=3, races=races, memory=memory) as machine:
        for seed in range(60):
            machine.restart(seed if deferred else None)
            program = make(seed, length=30)
            with mx.engine.using(engine_type="NaiveEngine"):
                expected, outcomes = Serial(program).run(), Flow(program, CONTEXTS).run()
                engine.wait_all(throw=False)
            if any(RaceError in outcome for outcome in outcomes) if races else is_wrong(expected, outcomes):
                return True
    return False


def is_wrong(expected, outcomes):
    """Return whether the numbers differ; running out of memory does not count."""
    return not all(map(agrees, expected, outcomes))


@pytest.mark.parametrize("wrong", WRONG)
def test_the_checker_finds_a_device_that_forgets(wrong, monkeypatch):
    with forgetting(monkeypatch, *WRONG[wrong]):
        assert is_found_out(False, True, MEMORY.get(wrong))


@pytest.mark.parametrize("wrong", ["a stream forgets to wait", "copies do not mark"])
def test_adversarial_timing_gives_wrong_numbers_where_a_device_forgets(wrong, monkeypatch):
    with forgetting(monkeypatch, *WRONG[wrong]):
        assert is_found_out(True, False, None)


def handed_on(seed):
    """Sum arrays that share two blocks of memory, on alternating streams; return the number of wrong sums."""
    with simulated("a10", 1, streams=3, memory=1 << 16, seed=seed, races=False) as machine:
        with mx.engine.using(engine_type="NaiveEngine"):
            sums = []
            for value in range(10):
                array = mx.nd.full((64, 64), value, ctx=mx.sim(0))
                sums.append(array.sum())
                del array
            wrong = sum(result.asscalar() != 64 * 64 * value for value, result in enumerate(sums))
        assert machine.devices[0].pool.waited_reuses
    return wrong


def test_memory_that_a_pool_gives_away_too_early_gives_wrong_numbers(monkeypatch):
    assert not any(handed_on(seed) for seed in range(10))
    with forgetting(monkeypatch, *WRONG["a pool forgets tokens"]):
        assert any(handed_on(seed) for seed in range(10))


def test_a_race_names_both_operations_and_the_memory(monkeypatch):
    with simulated("a10", 1, streams=2), forgetting(monkeypatch, SimStream, "wait", no_wait):
        with mx.engine.using(engine_type="NaiveEngine"):
            a = mx.nd.ones((4, 6), ctx=mx.sim(0))
            other = mx.nd.ones((4, 6), ctx=mx.sim(0))
            _ = [a * 2 for _ in range(2)]
        expected = r"operation '_mul_scalar' .* reads the memory .*\(4, 6\).*'_ones' .* writes"
        with pytest.raises(RaceError, match=expected):
            mx.nd.waitall()
        other.wait_to_read()


def test_what_user_code_reads_of_its_arrays_comes_before_what_is_written_there_later():
    class Squares(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            self.assign(out_data[0], req[0], in_data[0] * in_data[0])

    class Prop(mx.operator.CustomOpProp):
        def create_operator(self, ctx, in_shapes, in_dtypes):
            return Squares()

    mx.operator.register("squares on streams")(Prop)
    with simulated("a10", 1, streams=2):
        a = mx.nd.full((2, 3), 3, ctx=mx.sim(0))
        for number in range(30):
            squared = mx.nd.Custom(a, op_type="squares on streams")
            a[:] = number
            assert (squared.asnumpy() == (9 if number == 0 else (number - 1) ** 2)).all()


# -- out of memory ---------------------------------------------------------------------------------------------


class Refuses:
    """A fault that refuses one allocation, counted over all devices."""

    def __init__(self, machine, number):
        self.left = number
        for device in machine.devices.values():
            device.pool.on_allocate = self

    def __call__(self, nbytes):
        self.left -= 1
        if self.left == 0:
            raise OutOfMemory(f"refused: {nbytes} bytes")


def agrees(expected, outcomes):
    """Compare with the serial run: equal, unless an error of memory hides the result."""
    return expected == outcomes or (outcomes[0] == "error" and issubclass(outcomes[1], OutOfMemory))


@pytest.mark.parametrize("deferred", [True, False], ids=["adversarial timing", "at launch"])
@pytest.mark.parametrize("count", [8, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_out_of_memory_at_every_allocation_in_turn(count, deferred):
    refused = 0
    with simulated("a10", 2, streams=3) as machine:
        for seed in range(count):
            program = make(seed, length=15)
            expected = Serial(program).run()
            number = 1
            while True:
                machine.restart(seed if deferred else None)
                refuses = Refuses(machine, number)
                with mx.engine.using(engine_type="NaiveEngine"):
                    outcomes = Flow(program, CONTEXTS).run()
                    engine.wait_all(throw=False)
                if refuses.left > 0:
                    assert outcomes == expected
                    break
                assert all(map(agrees, expected, outcomes)), explain(program, expected, outcomes)
                refused += any(OutOfMemory in outcome for outcome in outcomes)
                number += 1
    assert refused > 5 * count, "allocations must have been refused, and somebody have seen it"
