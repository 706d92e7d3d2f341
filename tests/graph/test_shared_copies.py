"""Packed weights and other values that are computed once: shared by the plans of a network for several batch sizes."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon import nn, rnn
from flowmx.graph.running import shared_copies
from flowmx.ops.kernels.onednn import library

needs_onednn = pytest.mark.skipif(library.library() is None, reason="the oneDNN library is not installed")
pytestmark = needs_onednn
SIZES = (1, 2, 3, 4, 6, 8)


def dense():
    net = nn.HybridSequential()
    net.add(nn.Dense(512, in_units=256, activation="relu"), nn.BatchNorm(in_channels=512), nn.Dense(512, in_units=512))
    return net, (256,)


def convolutions():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(32, 3, in_channels=16), nn.BatchNorm(in_channels=32), nn.Activation("relu"))
    net.add(nn.Conv2D(32, 3, in_channels=32, groups=2))
    return net, (16, 12, 12)


def lstm():
    net = nn.HybridSequential()
    net.add(rnn.LSTM(64, input_size=32, layout="NTC"))
    return net, (5, 32)


def compiled(make):
    net, shape = make()
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    return net, shape


def batch(size, shape, seed=0):
    return mx.nd.array(np.random.default_rng(seed).standard_normal((size, *shape)))


def plans(net):
    """Return the plans of a network's graph, and the live shared values."""
    operators = {id(each.op): each.op for each in net._compiled.values()}
    (op,) = operators.values()
    (blocks,) = op._blocks.values()
    gc.collect()
    return [each.pool for each in op._compiled.values()], list(blocks.copies._copies.values())


def held(copies):
    return sum(array.nbytes for each in copies for array in each.arrays)


def reference(net, x):
    """Return the outputs of the layers, one by one."""
    net.hybridize(False)
    expected = net(x).asnumpy()
    net.hybridize(static_alloc=True, static_shape=True, clear=False)
    return expected


@pytest.mark.parametrize("make", [dense, convolutions, lstm])
def test_predictions_of_all_batch_sizes_are_right(make):
    net, shape = compiled(make)
    actual = {size: net(batch(size, shape)).asnumpy() for size in (*SIZES, *SIZES)}
    net.hybridize(False)
    for size in SIZES:
        np.testing.assert_allclose(actual[size], net(batch(size, shape)).asnumpy(), rtol=1e-4, atol=1e-5)


def test_batch_sizes_share_the_copies_of_weights():
    """Each size had its own copies: the memory of a predictor grew by its weights with each size."""
    net, shape = compiled(convolutions)
    for size in SIZES:
        net(batch(size, shape)).wait_to_read()
    pools, copies = plans(net)
    separate = [sum(map(pool.results.plan.nbytes, pool.results.plan.separate)) for pool in pools]
    assert len(pools) == len(SIZES) and min(separate) > 10_000
    # The layout that a kernel reads may depend on the number of rows, so there may be a few.
    assert max(separate) <= held(copies) < sum(separate) / 2
    assert sum(pool.held_bytes for pool in pools) <= held(copies)


@pytest.mark.parametrize("make", [dense, convolutions, lstm])
@pytest.mark.parametrize("way", ["in place", "set_data", "load"])
def test_changed_weights_are_used_by_all_batch_sizes(make, way, tmp_path):
    net, shape = compiled(make)
    for size in SIZES:
        net(batch(size, shape)).wait_to_read()
    other, _ = compiled(make)
    other(batch(1, shape)).wait_to_read()
    if way == "load":
        other.save_parameters(str(tmp_path / "p"))
        net.load_parameters(str(tmp_path / "p"))
    else:
        parameters = zip(net.collect_params().values(), other.collect_params().values(), strict=True)
        for ours, theirs in parameters:
            if way == "set_data":
                ours.set_data(theirs.data())
            else:
                ours.data()[:] = theirs.data()
    for size in reversed(SIZES):
        x = batch(size, shape, seed=1)
        assert (net(x).asnumpy() == other(x).asnumpy()).all()


def test_threads_predict_while_the_weights_change():
    """Every result is that of one state of all weights, in some order that the engine chose."""
    net, shape = compiled(dense)
    inputs = {size: batch(size, shape) for size in SIZES}
    states = []
    for factor in (1, 2):
        for parameter in net.collect_params().values():
            parameter.data()[:] = parameter.data() * factor
        states.append({size: net(x).asnumpy() for size, x in inputs.items()})
    values = [
        [parameter.data().asnumpy() / (2 if index == 0 else 1) for parameter in net.collect_params().values()]
        for index in range(2)
    ]
    is_over = threading.Event()

    def predict(size):
        count = 0
        while not is_over.is_set():
            actual = net(inputs[size]).asnumpy()
            assert np.isfinite(actual).all()
            count += 1
        return count

    with mx.engine.using(cpu_worker_nthreads=2), ThreadPoolExecutor(3) as pool:
        predictions = [pool.submit(predict, size) for size in (2, 4, 8)]
        for step in range(40):
            for parameter, value in zip(net.collect_params().values(), values[step % 2], strict=True):
                parameter.data()[:] = mx.nd.array(value)
        is_over.set()
        assert all(each.result() for each in predictions)
    for size, x in inputs.items():
        assert (net(x).asnumpy() == states[1][size]).all()


def test_a_failed_copy_is_made_again(monkeypatch):
    net, shape = compiled(convolutions)
    inputs = {size: batch(size, shape) for size in (4, 8)}
    expected = {size: net(x).asnumpy() for size, x in inputs.items()}
    update = shared_copies.RunnerCopies.update

    def fail(self, versions, run):
        def broken(steps):
            for step in steps:
                for output in step.outputs:
                    output[...] = np.nan
            raise MemoryError("no memory")

        update(self, versions, broken)

    net[0].weight.data()[:] = net[0].weight.data() * 1
    pools, _ = plans(net)
    parts = [runner.whole_forward for pool in pools for runner in pool._free]
    with monkeypatch.context() as patch:
        for part in parts:
            patch.setattr(
                part, "refresh", lambda versions, run, copies=part.refresh.__self__: fail(copies, versions, run)
            )
        with pytest.raises(MemoryError, match="no memory"):
            net(inputs[8]).wait_to_read()
    for size, x in inputs.items():
        assert (net(x).asnumpy() == expected[size]).all()


def test_copies_are_freed_with_the_network():
    net, shape = compiled(convolutions)
    for size in (2, 4):
        net(batch(size, shape)).wait_to_read()
    arrays = [weakref.ref(array) for each in plans(net)[1] for array in each.arrays]
    assert arrays and all(array() is not None for array in arrays)
    del net
    gc.collect()
    assert all(array() is None for array in arrays)
