"""The first calls of a network, made concurrently by several threads or tasks, succeed with the same result."""

import asyncio
import sys
import threading
from functools import partial

import numpy as np
import pytest

import flowmx as mx
from flowmx.cached_op import CachedOp
from flowmx.gluon import nn

THREADS = 4
X = np.random.default_rng(0).random((2, 3, 8, 8), np.float32)


@pytest.fixture(autouse=True)
def frequent_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def network(**how):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(8), nn.LayerNorm(), nn.Dense(3))
    net.initialize()
    if how:
        net.hybridize(**how)
    return net


def predict(net, x=X):
    return lambda: net(mx.nd.array(x)).asnumpy()


def train(net):
    def call():
        with mx.autograd.record():
            y = net(mx.nd.array(X)).sum()
        y.backward()
        return np.ones(1)

    return call


class Shared(mx.gluon.HybridBlock):
    """Two layers with the same parameters."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first = nn.Dense(7, flatten=False)
            self.second = nn.Dense(7, flatten=False, params=self.first.params)

    def hybrid_forward(self, F, x):
        return self.second(self.first(x))


def shared():
    net = Shared()
    net.initialize()
    net.hybridize()
    return predict(net, np.ones((2, 7)))


def roots_of_one_layer():
    layer = nn.Dense(7, flatten=False)
    roots = []
    for _ in range(THREADS):
        root = nn.HybridSequential()
        root.add(layer, layer)
        root.hybridize()
        roots.append(root)
    layer.initialize()
    return lambda: roots.pop()(mx.nd.ones((2, 7))).asnumpy()


def recurrent(**how):
    net = mx.gluon.rnn.LSTM(5, 2)
    net.initialize()
    net.hybridize(**how)
    return predict(net, np.ones((3, 2, 4)))


def cell():
    net = mx.gluon.rnn.GRUCell(5)
    net.initialize()
    return lambda: net.unroll(3, mx.nd.ones((2, 3, 4)), merge_outputs=True)[0].asnumpy()


def cached_graph():
    data = mx.sym.var("data")
    return predict(CachedOp(mx.sym.tanh(mx.sym.dot(data, data)) * 2), np.ones((4, 4)))


def symbol_block():
    net = mx.gluon.SymbolBlock(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=5), mx.sym.var("data"))
    net.initialize()
    return predict(net, np.ones((2, 6)))


def binding():
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=5)
    return lambda: symbol.simple_bind(mx.cpu(), data=(2, 6)).forward()[0].asnumpy()


def predictors():
    net = network(active=True)

    async def main():
        async with mx.serve.Predictor(net, shape=(3, 8, 8), max_batch=2) as predictor:
            return await predictor(X[0])

    return lambda: asyncio.run(main())


def parameter():
    weight = mx.gluon.Parameter("weight", shape=(3, 4))

    def call():
        weight.initialize(mx.init.One(), force_reinit=True)
        return weight.data().asnumpy()

    weight.initialize(mx.init.One())
    return call


def steps(**how):
    net = network()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.0}, **how)
    train(net)()

    def call():
        trainer.step(1, ignore_stale_grad=True)
        return np.ones(1)

    return call


WAYS = {
    "plain": lambda: predict(network()),
    "hybridized": lambda: predict(network(active=True)),
    "static": lambda: predict(network(static_alloc=True, static_shape=True)),
    "recorded": lambda: train(network()),
    "recorded, hybridized": lambda: train(network(active=True)),
    "shared parameters": shared,
    "several roots": roots_of_one_layer,
    "recurrent": partial(recurrent, active=False),
    "recurrent, hybridized": recurrent,
    "cell": cell,
    "cached graph": cached_graph,
    "symbol block": symbol_block,
    "binding": binding,
    "predictors": predictors,
    "parameter": parameter,
    "steps": steps,
    "steps on a store": lambda: steps(kvstore=mx.kv.create("local"), update_on_kvstore=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_threads(way):
    for _ in range(1 if way == "predictors" else 5):
        call, barrier, results, errors = WAYS[way](), threading.Barrier(THREADS), [], []

        def run(call=call, barrier=barrier, results=results, errors=errors):
            barrier.wait()
            try:
                results.append(call())
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, daemon=True) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        if errors:
            raise errors[0]
        assert len(results) == THREADS
        for result in results:
            np.testing.assert_allclose(result, results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", [{}, {"active": True}])
async def test_tasks(how):
    net = network(**how)

    async def call():
        return await net(mx.nd.array(X))

    results = await asyncio.gather(*[call() for _ in range(THREADS)])
    for result in results:
        np.testing.assert_allclose(result.asnumpy(), results[0].asnumpy(), rtol=1e-4, atol=1e-5)


def test_a_parameter_that_others_see_is_a_variable_of_the_tape():
    """While a thread creates a parameter, another one must not record with an array that has no gradient yet."""
    net = nn.Dense(2, use_bias=False)
    making, go_on = threading.Event(), threading.Event()

    class Slow(mx.init.Initializer):
        def _init_weight(self, name, array):
            array[:] = 1
            making.set()
            go_on.wait(60)

    net.initialize(Slow())
    thread = threading.Thread(target=predict(net, np.ones((1, 3))), daemon=True)
    thread.start()
    making.wait(60)
    errors = []

    def second():
        with mx.autograd.record():
            y = net(mx.nd.ones((1, 3)))
        y.backward()
        errors.append(net.weight.grad().asnumpy())

    other = threading.Thread(target=second, daemon=True)
    other.start()
    go_on.set()
    other.join(60)
    thread.join(60)
    np.testing.assert_array_equal(errors[0], np.ones((2, 3)))
