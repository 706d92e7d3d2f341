"""Repeated predictions of a small hybridized block: nothing that changes between two of them is missed."""

import subprocess
import sys
import threading

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd
from flowmx.gluon import nn
from flowmx.ops.kernels.llvm import native_run

pytestmark = pytest.mark.skipif(not native_run.knows_objects(), reason="there are no native runs here")

X = mx.nd.array(np.random.default_rng(1).normal(size=(1, 6)).astype("float32"))


def warm(net, *args):
    """Call a block until its calls are repeated."""
    native_run.prepare()
    for _ in range(30):
        net(*args).wait_to_read()
    return net


@pytest.fixture
def net():
    net = nn.HybridSequential()
    net.add(nn.Dense(16, activation="relu", in_units=6), nn.Dense(3, in_units=16))
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    return warm(net, X)


def expected(net, x):
    first, second = net
    hidden = np.maximum(x @ first.weight.data().asnumpy().T + first.bias.data().asnumpy(), 0)
    return hidden @ second.weight.data().asnumpy().T + second.bias.data().asnumpy()


def check(net, x=X):
    np.testing.assert_allclose(net(x).asnumpy(), expected(net, x.asnumpy()), rtol=1e-5, atol=1e-6)


PROGRAM = """
import flowmx as mx
from flowmx.cached_op import op
from flowmx.gluon import nn
from flowmx.ops.kernels.llvm import native_run

net = nn.HybridSequential()
net.add(nn.Dense(16, activation="relu", in_units=6), nn.Dense(3, in_units=16))
net.initialize()
net.hybridize(static_alloc=True, static_shape=True)
arrays = [mx.nd.random.normal(shape=(1, 6)) for _ in range(40)]
native_run.prepare()
for x in arrays:
    net(x).wait_to_read()

general, calls = op.CachedOp._call, []

def call(self, args):
    calls.append(args)
    return general(self, args)

op.CachedOp._call = call
for x in arrays:
    net(x).wait_to_read()
print(len(calls))
"""


def test_calls_with_other_data_are_repeated(new_python):
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) < 10  # some are prepared again when better code has been compiled meanwhile


def write_in_place(net):
    net[0].weight.data()[:] = 0.5


def set_data(net):
    net[1].weight.set_data(mx.nd.ones((3, 16)))


def initialize_again(net):
    net.initialize(mx.init.Normal(0.3), force_reinit=True)


def train(net):
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    with autograd.record():
        loss = net(X).sum()
    loss.backward()
    trainer.step(1)


def hybridize_again(net):
    net.hybridize(static_alloc=False, static_shape=False)


@pytest.mark.parametrize("change", [write_in_place, set_data, initialize_again, train, hybridize_again])
def test_changed_parameters_are_read(change, net):
    for _ in range(3):
        change(net)
        for _ in range(12):
            check(net)


def test_other_shapes_dtypes_and_classes_are_noticed(net):
    rows = mx.nd.random.normal(shape=(4, 6))
    for _ in range(3):
        check(net, rows)
        check(net)
        result = net(X.as_np_ndarray())
        assert type(result) is mx.np.ndarray
        assert type(net(X)) is mx.nd.NDArray
        view = rows[1:2]
        check(net, view)


def test_a_call_that_is_recorded_has_gradients(net):
    x = X.copy()
    x.attach_grad()
    for _ in range(3):
        net(x).wait_to_read()
        with autograd.record(train_mode=False):
            net(x).sum().backward()
        assert np.abs(x.grad.asnumpy()).sum() > 0
        x.grad[:] = 0


def test_training_mode_is_noticed():
    net = nn.HybridSequential()
    net.add(nn.Dense(16, in_units=6), nn.BatchNorm(in_channels=16))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    before = warm(net, X)(X).asnumpy()
    with autograd.train_mode():
        np.testing.assert_allclose(net(X).asnumpy(), 0, atol=1e-5)  # a batch of one row is its own mean
    assert np.abs(before).max() > 0.1


def test_a_graph_that_is_called_with_other_parameters_meanwhile(net):
    graph = next(iter(net._compiled.values())).op
    others = [param.data().zeros_like() for param in net.collect_params().values()]
    for _ in range(3):
        assert not graph(X, *others).asnumpy().any()
        check(net)


def test_a_pending_write_of_the_data_or_a_parameter_is_awaited(net):
    x, weight, go = X.copy(), net[0].weight.data(), threading.Event()
    for array in (x, weight):
        old = array.asnumpy()

        def write(array=array):
            go.wait()
            array.raw()[:] = 0.25

        go.clear()
        mx.engine.push(write, writes=[array], device=mx.cpu(1))
        result = net(x)
        go.set()
        np.testing.assert_allclose(result.asnumpy(), expected(net, x.asnumpy()), rtol=1e-5, atol=1e-6)
        assert not np.array_equal(old, array.asnumpy())


def test_a_failed_write_of_a_parameter_is_raised(net):
    def fail():
        raise ValueError("the disk is full")

    mx.engine.push(fail, writes=[net[0].weight.data()])
    with pytest.raises(ValueError, match="the disk is full"):
        net(X).asnumpy()
    net[0].weight.data()[:] = 0.5
    check(net)


def test_several_outputs_and_nested_ones():
    class Two(nn.HybridBlock):
        def hybrid_forward(self, F, x, y):
            return F.dot(x, y), [x + 1.0, F.FullyConnected(x, F.transpose(y), num_hidden=3, no_bias=True)]

    net = Two()
    net.hybridize()
    x, y = mx.nd.random.normal(shape=(2, 4)), mx.nd.random.normal(shape=(4, 3))
    native_run.prepare()
    for _ in range(30):
        product, (more, same) = net(x, y)
    np.testing.assert_allclose(product.asnumpy(), x.asnumpy() @ y.asnumpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(same.asnumpy(), product.asnumpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(more.asnumpy(), x.asnumpy() + 1)


def test_threads_that_predict_while_one_trains(net):
    weight, wrong, threads = net[1].weight, [], []
    for bias in (net[0].bias, net[1].bias):
        bias.set_data(mx.nd.zeros(bias.shape))
    net[0].weight.set_data(mx.nd.ones((16, 6)))
    weight.set_data(mx.nd.ones((3, 16)))
    x = mx.nd.ones((1, 6))
    warm(net, x)

    def predict():
        last = 0.0
        for _ in range(400):
            values = net(x).asnumpy()
            if values.min() != values.max() or values.min() < last or values.min() % 96:
                wrong.append(values)
            last = values.min()

    threads = [threading.Thread(target=predict) for _ in range(3)]
    for thread in threads:
        thread.start()
    for step in range(2, 60):
        weight.data()[:] = step
    for thread in threads:
        thread.join()
    assert not wrong
    np.testing.assert_array_equal(net(x).asnumpy(), np.full((1, 3), 96.0 * 59))
