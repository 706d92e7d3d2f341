"""Sums over devices with separate memory: buckets, bits, order, and their time during a backward pass."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowmx as mx
from flowmx import autograd, gluon
from flowmx.devices import get
from flowmx.devices.sim import Description, simulated
from flowmx.engine.runtime import engine
from flowmx.kvstore.allreduce import Communicator, PeerCommunicator
from flowmx.kvstore.allreduce.buckets import divide, piece

SHAPES = [(3, 5), (7,), (2, 2, 2), (1,), (40,), (11, 3)]


@pytest.fixture(autouse=True)
def forgotten_errors():
    yield
    engine.failures.clear()


def numbers(shape, seed, dtype="float32"):
    """Return numbers whose sum depends on the order of addition."""
    return (np.random.default_rng(seed).standard_normal(shape) * 10.0 ** (seed % 5)).astype(dtype)


def in_order(arrays):
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = total + array
    return total


def sims(count):
    return [mx.sim(index) for index in range(count)]


# -- buckets -----------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from("ab"))), st.integers(0, 100))
def test_buckets_have_each_array_once_of_one_kind_within_the_limit(arrays, limit):
    sizes, kinds = [size for size, _ in arrays], [kind for _, kind in arrays]
    result = divide(sizes, kinds, limit)
    assert sorted(place for bucket in result for place in bucket) == list(range(len(arrays)))
    assert all(len({kinds[place] for place in bucket}) == 1 for bucket in result)
    assert all(len(bucket) == 1 or sum(sizes[place] for place in bucket) <= limit for bucket in result)
    assert [bucket[-1] for bucket in result] == sorted(bucket[-1] for bucket in result)


def test_arrays_that_fit_are_joined():
    assert divide([10, 10, 99, 10], ["a", "a", "b", "a"], 20) == [[0, 1], [2], [3]]
    assert divide([10, 10, 10], "aaa", 0) == [[0], [1], [2]]


# -- sums --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("bound", [1, 1_000_000], ids=["in pieces", "whole"])
@pytest.mark.parametrize("seed", [None, 3])
def test_a_communicator_adds_in_the_order_of_the_devices(count, bound, seed):
    with simulated("gtx980", count, seed=seed), mx.engine.using(kvstore_bigarray_bound=bound):
        inputs = [numbers((101,), index) for index in range(count)]
        sources = [mx.nd.array(each, ctx=ctx) for each, ctx in zip(inputs, sims(count), strict=True)]
        places = [get(ctx) for ctx in sims(count)]
        peers: Communicator = PeerCommunicator()
        everywhere = peers.all_reduce(sources, places)
        assert [item.context for item in everywhere] == sims(count)
        for total in (*everywhere, peers.reduce(sources, places[-1])):
            np.testing.assert_array_equal(total.asnumpy(), in_order(inputs))
        copies = [mx.nd.empty((101,), ctx=ctx) for ctx in sims(count) if ctx is not mx.sim(1)]
        peers.broadcast(sources[1], copies)
        for copy in copies:
            np.testing.assert_array_equal(copy.asnumpy(), inputs[1])
        for source, value in zip(sources, inputs, strict=True):
            np.testing.assert_array_equal(source.asnumpy(), value)


def exchanged(count, bucket, optimizer=None, dtype="float32", rounds=2, contexts=None, seed=None, bound=1_000_000):
    """Return the values on all devices after exchanges of several keys."""
    contexts = contexts or sims(count)
    settings = {"kvstore_reduce_bucket_size": bucket, "kvstore_bigarray_bound": bound}
    with simulated("gtx980", count, seed=seed), mx.engine.using(**settings):
        kv = mx.kv.create("device")
        values = [[mx.nd.ones(shape, ctx=ctx, dtype=dtype) for ctx in contexts] for shape in SHAPES]
        keys = list(range(len(SHAPES)))
        kv.init(keys, [value[0] for value in values])
        if optimizer:
            kv.set_optimizer(mx.optimizer.create(optimizer, learning_rate=0.1, multi_precision=True))
        for turn in range(rounds):
            grads = [
                [mx.nd.array(numbers(shape, turn + 7 * key + i, dtype), ctx, dtype) for i, ctx in enumerate(contexts)]
                for key, shape in enumerate(SHAPES)
            ]
            kv._exchange(keys, grads, values)
        copies = [mx.nd.empty(shape, dtype=dtype) for shape in SHAPES]
        kv.pull(keys, out=copies)
        return [[item.asnumpy() for item in several] for several in (*values, copies)]


@pytest.mark.parametrize("optimizer", [None, "sgd", "adam"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_buckets_give_the_bits_of_single_sums_and_of_the_cpu(optimizer, dtype):
    expected = exchanged(3, 0, optimizer, dtype, contexts=[mx.cpu(index) for index in range(3)])
    for bucket in (0, 1, 2048):
        for bound in (1, 1_000_000):
            result = exchanged(3, bucket, optimizer, dtype, bound=bound)
            for key, (ours, theirs) in enumerate(zip(result, expected, strict=True)):
                for one, other in zip(ours, theirs, strict=True):
                    np.testing.assert_array_equal(one, other, err_msg=f"key {key}, bucket {bucket}")


def test_results_are_the_same_bits_whichever_device_is_first():
    expected = exchanged(4, 1, "adam")
    for seed in range(20):
        for ours, theirs in zip(exchanged(4, 1, "adam", seed=seed), expected, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(one, other)


def test_a_custom_updater_is_called_for_each_key_with_its_sum():
    called = []

    def update(key, merged, stored):
        called.append((key, merged.shape, merged.context))
        stored += merged

    with simulated("gtx980", 2):
        kv = mx.kv.create("device")
        kv.init(["a", "b"], [mx.nd.zeros((2, 3)), mx.nd.zeros(4)])
        kv.set_updater(update)
        outs = [[mx.nd.zeros(shape, ctx=ctx) for ctx in sims(2)] for shape in ((2, 3), (4,))]
        kv._exchange(["a", "b"], [[mx.nd.ones_like(item) for item in several] for several in outs], outs)
        assert called == [("a", (2, 3), mx.sim(0)), ("b", (4,), mx.sim(0))]
        assert all((item.asnumpy() == 2).all() for several in outs for item in several)


def test_arrays_that_do_not_fit_a_bucket_are_sent_alone():
    with simulated("gtx980", 2):
        kv = mx.kv.create("device")
        kv.init([0, 1, 2], [mx.nd.zeros(3), mx.nd.zeros(3), mx.nd.zeros((0, 2))])
        half = [mx.nd.ones(3, ctx=ctx) for ctx in sims(2)]
        same = [mx.nd.ones(3, ctx=mx.sim(1))] * 3
        none = [mx.nd.ones((0, 2), ctx=ctx) for ctx in sims(2)]
        out16 = [mx.nd.zeros(3, ctx=ctx, dtype="float16") for ctx in sims(2)]
        kv._exchange([0, 1, 2], [half, same, none], [out16, half, none])
        assert [item.asnumpy().tolist() for item in (*out16, *half)] == [[2.0] * 3] * 2 + [[3.0] * 3] * 2


def test_views_are_summed_and_their_surroundings_stay():
    with simulated("gtx980", 2):
        kv = mx.kv.create("device")
        wholes = [mx.nd.array(np.arange(8).reshape(4, 2), ctx=ctx) for ctx in sims(2)]
        kv.init([0, 1], [mx.nd.zeros((2, 2)), mx.nd.zeros((1, 2))])
        parts = [[whole[0:2] for whole in wholes], [whole[3:4] for whole in wholes]]
        kv._exchange([0, 1], parts, parts)
        assert [whole.asnumpy().tolist() for whole in wholes] == [[[0, 2], [4, 6], [4, 5], [12, 14]]] * 2


def test_a_failed_gradient_raises_where_its_sum_is_read():
    with simulated("gtx980", 2):
        kv = mx.kv.create("device")
        kv.init([0, 1], [mx.nd.zeros(3)] * 2)
        grads = [[mx.nd.ones(3, ctx=ctx) for ctx in sims(2)] for _ in range(2)]
        storage = grads[0][1].storage
        mx.engine.push(lambda: 1 // 0, reads=[], writes=[storage], device=mx.sim(1))
        with mx.engine.using(kvstore_reduce_bucket_size=0):
            kv._exchange([0, 1], grads, grads)
        assert grads[1][0].asnumpy().tolist() == [2, 2, 2]
        with pytest.raises(ZeroDivisionError):
            grads[0][0].asnumpy()


# -- during the backward pass ------------------------------------------------------------------------------

UNITS, LAYERS, BATCH = 1024, 8, 512


def device(**different):
    """Return a device on which sending a layer's gradient takes about as long as computing it."""
    figures = {
        "memory": 1 << 32, "flops": {"float32": 1e13}, "bandwidth": 1e12, "peer_bandwidth": 2e10, "peer_latency": 1e-5,
        "kernel_seconds": 3e-6, "launch_seconds": 1e-6, "efficiency": 1.0,
    }  # fmt: skip
    return Description(name="plain", **{**figures, **different})


def seconds_of_a_step(train=True, updates=True, waits=False, count=2, bucket=2048, units=UNITS, described=None):
    """Return the virtual seconds of a step of a network of equal layers, or of a part of it, after a first step."""
    settings = {"engine_type": "NaiveEngine", "kvstore_reduce_bucket_size": bucket}
    with mx.engine.using(**settings), simulated(described or device(), count, races=False, numerics=False) as machine:
        net = gluon.nn.HybridSequential()
        net.add(*[gluon.nn.Dense(units, in_units=units) for _ in range(LAYERS)])
        net.initialize(ctx=sims(count))
        net.hybridize()
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        data = [mx.nd.ones((BATCH, units), ctx=ctx) for ctx in sims(count)]

        def step(train, updates):
            if train:
                with autograd.record():
                    losses = [net(sample) for sample in data]
                autograd.backward(losses)
            if waits:
                mx.nd.waitall()
            if updates:
                trainer.step(BATCH, ignore_stale_grad=True)

        step(True, True)
        begin = machine.statistics().seconds
        if not train:
            for param in net.collect_params().values():  # as a backward pass leaves them
                for grad in param.list_grad():
                    grad[:] = 1
            begin = machine.statistics().seconds
        step(train, updates)
        return machine.statistics().seconds - begin


@pytest.mark.filterwarnings("ignore:.*simulated without numerics")
def test_sums_overlap_with_the_backward_pass():
    computing = seconds_of_a_step(updates=False)
    travelling = seconds_of_a_step(train=False)
    apart = seconds_of_a_step(waits=True)
    together = seconds_of_a_step()
    assert apart == pytest.approx(computing + travelling, rel=0.02)
    assert together < computing + 0.7 * travelling
    assert together > max(computing, travelling)


@pytest.mark.filterwarnings("ignore:.*simulated without numerics")
def test_buckets_save_what_each_copy_and_launch_costs():
    slow = device(peer_latency=1e-4)
    single, joined = (seconds_of_a_step(units=64, bucket=bucket, described=slow) for bucket in (0, 2048))
    assert joined < 0.3 * single


def test_a_piece_is_a_part_of_a_flat_array_in_its_memory():
    whole = mx.nd.arange(12)
    part = piece(whole, 2, (2, 3))
    assert part.asnumpy().tolist() == [[2, 3, 4], [5, 6, 7]]
    part[:] = 0
    assert whole.asnumpy().tolist() == [0, 1, *[0] * 6, 8, 9, 10, 11]
    assert piece(whole, 11, ()).shape == ()
