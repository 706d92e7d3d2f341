"""Simulated devices without numerics: the same memory and times as with numerics, to the byte and the microsecond."""

import gc
import resource

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, gluon
from flowmx.devices.sim import simulated
from flowmx.devices.sim.blank import Blank, blank
from flowmx.engine.runtime import engine
from tests.devices import test_simulated_training as training
from tests.programs import Flow, make

CONTEXTS = [mx.sim(0), mx.sim(1)]
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*simulated without numerics"),
    pytest.mark.filterwarnings("ignore::flowmx.errors.CrossDeviceWarning"),
]


@pytest.fixture(autouse=True)
def forgotten_errors():
    yield
    engine.failures.clear()


def account(program, numerics, streams=3, **options):
    """Return the allocations, peaks, launches and times of a program."""
    with simulated("a10", 2, streams=streams, numerics=numerics, **options) as machine:
        engine.failures.clear()  # the first unused one keeps its content
        with mx.engine.using(engine_type="NaiveEngine"):
            program()
            engine.wait_all(throw=False)
            statistics = machine.statistics()
        pools = [device.pool for device in machine.devices.values()]
        return {
            "allocations": [pool.allocations for pool in pools],
            "peaks": [pool.peak for pool in pools],
            "handed over": [pool.waited_reuses for pool in pools],
            "seconds": statistics.seconds,
            "busy": statistics.busy,
            "launching": machine.clock.launching,
            "operators": dict(machine.operators),
            "timeline": statistics.spans,
        }


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.soak)])
def test_random_programs_take_the_time_and_memory_of_runs_with_numerics(count):
    for seed in range(count):

        def program(seed=seed):
            Flow(make(seed, length=30), CONTEXTS).run()

        results = [account(program, numerics, memory=1 << 22) for numerics in (True, False)]
        assert results[0] == results[1], f"seed {seed}"


TRAINING = {
    "gluon": lambda: training.train_gluon(CONTEXTS[:1]),
    "gluon, hybridized": lambda: training.train_gluon(CONTEXTS[:1], hybrid=True),
    "gluon on two": lambda: training.train_gluon(CONTEXTS, hybrid=True, optimizer="sgd"),
    "gluon, local store": lambda: training.train_gluon(CONTEXTS, kvstore="local"),
    "module": lambda: training.train_module(CONTEXTS[:1]),
    "module on two": lambda: training.train_module(CONTEXTS, kvstore="device"),
    "module spread out": lambda: training.train_module(
        CONTEXTS[:1], {"first": CONTEXTS[0], "second": CONTEXTS[1]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", TRAINING)
def test_training_takes_the_time_and_memory_of_runs_with_numerics(how):
    # One stream: which of several an operation gets depends on how many the host ran before, to draw first values.
    expected, actual = (account(TRAINING[how], numerics, streams=1) for numerics in (True, False))
    # The host's operations count among the numbers of those of the devices, not in their time.
    assert actual.pop("timeline") is not None and expected.pop("timeline") is not None
    assert actual == expected


def test_values_read_are_zero_with_one_warning():
    with simulated("a10", numerics=False):
        a = mx.nd.ones((2, 3), ctx=mx.sim(0)) + 5
        with pytest.warns(UserWarning, match="every value that is read is 0") as caught:
            values = a.asnumpy(), (a.sum() * 3).asscalar()
        assert len(caught) == 1 and caught[0].filename == __file__
        assert not values[0].any() and values[0].shape == (2, 3) and values[1] == 0
        host = a.as_in_context(mx.cpu(0))
        np.testing.assert_array_equal((host + 1).asnumpy(), np.ones((2, 3)))
        target = mx.nd.ones((2, 3))
        a.copyto(target)
        assert not target.asnumpy().any()
        a[0] = 7
        a[(a > 1).astype("int32")] = 3
        assert not a.asnumpy().any()


def test_errors_are_still_detected():
    with simulated("a10", memory=1 << 22, numerics=False):
        with pytest.raises(mx.errors.ShapeError):
            mx.nd.dot(mx.nd.ones((2, 3), ctx=mx.sim(0)), mx.nd.ones((2, 3), ctx=mx.sim(0)))
        with pytest.raises(mx.errors.OutOfMemory, match="out of memory"):
            mx.nd.ones((1 << 21,), ctx=mx.sim(0)).wait_to_read()


def test_a_network_that_is_too_big_for_this_machine_is_trained():
    """A network with about 100 GB of weights, gradients and states, none of which is allocated."""
    machine = simulated("h100", memory=1 << 38, numerics=False, races=False)
    with machine as system, mx.engine.using(engine_type="NaiveEngine"):
        net = gluon.nn.HybridSequential()
        for _ in range(4):
            net.add(gluon.nn.Dense(40_000, in_units=40_000, activation="relu"))
        net.initialize(mx.init.Xavier(), ctx=mx.sim(0))
        trainer = gluon.Trainer(net.collect_params(), "adam")
        for _ in range(2):
            with autograd.record():
                loss = net(mx.nd.ones((64, 40_000), ctx=mx.sim(0))).sum()
            loss.backward()
            trainer.step(64)
        assert system.devices[0].pool.peak > 4 * 4 * 4 * 40_000**2
        del net, trainer, loss
        gc.collect()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20  # KiB


# -- the arrays ------------------------------------------------------------------------------------------------


def test_nothing_is_written_into_a_blank_array():
    memory = np.zeros((4, 3), np.float32)
    a = memory.view(Blank)
    a += 1
    a[1] = 5
    a.fill(3)
    np.add(a, 2, out=a)
    np.copyto(a[:, 1], 7)
    np.multiply(np.ones((4, 3), np.float32), 2, out=a.reshape(3, 4).T)
    np.clip(a, 1, 2, out=a)
    assert not memory.any()


def test_results_of_blank_arrays_have_shape_and_dtype_and_no_memory():
    a = blank((1000, 1, 1000), np.float16)
    b = a + np.ones((500, 1), np.float32)
    assert type(b) is Blank and b.shape == (1000, 500, 1000) and b.dtype == np.float32
    assert b.strides == (0, 0, 0)
    assert (a > 1).dtype == bool and np.isfinite(a).shape == a.shape
    mantissa, exponent = np.frexp(a)
    assert type(mantissa) is Blank and exponent.dtype == np.int32


def test_results_of_blank_arrays_written_into_others_are_zeros():
    a, target = blank((2, 3), np.float32), np.ones((2, 3), np.float32)
    np.copyto(target, a)
    assert not target.any()
    target[...] = 1
    np.add(a, 1, out=target)
    assert not target.any()
    assert np.concatenate([a, a]).shape == (4, 3) and np.add.reduce(a, axis=1).tolist() == [0, 0]
