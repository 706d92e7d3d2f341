"""Training on simulated devices: the same as on the CPU, to the bit where one device computes."""

import asyncio
import threading

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, gluon
from flowmx.devices.sim import simulated
from flowmx.engine.runtime import engine

BATCH, STEPS = 16, 4


@pytest.fixture(params=[None, 5], ids=["at launch", "adversarial timing"])
def machine(request):
    """Two small simulated GPUs."""
    with simulated("gtx980", 2, streams=3, seed=request.param) as machine:
        yield machine
    engine.failures.clear()


def data(seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((BATCH, 1, 12, 12), np.float32), rng.integers(0, 4, BATCH).astype(np.float32)


def network():
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(4, 3, activation="relu"), gluon.nn.BatchNorm(), gluon.nn.MaxPool2D(2),
        gluon.nn.Dense(8, activation="tanh"), gluon.nn.Dense(4),
    )  # fmt: skip
    return net


def train_gluon(contexts, hybrid=False, kvstore="device", optimizer="adam"):
    """Train a few steps, data parallel over contexts; return the parameters."""
    mx.random.seed(3)
    net = network()
    net.initialize(mx.init.Xavier(), ctx=contexts)
    if hybrid:
        net.hybridize()
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.05}, kvstore=kvstore)
    losses = []
    for step in range(STEPS):
        x, y = data(step)
        with autograd.record():
            parts = [
                loss(net(a), b)
                for a, b in zip(
                    gluon.utils.split_and_load(mx.nd.array(x), contexts),
                    gluon.utils.split_and_load(mx.nd.array(y), contexts),
                    strict=True,
                )
            ]
        autograd.backward(parts)
        trainer.step(BATCH)
        losses.append(sum(float(part.sum().asscalar()) for part in parts))
    values = [each.data(contexts[0]).asnumpy() for each in net.collect_params().values()]
    return [np.array(losses, np.float32), *values]


def equal(actual, expected):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_gluon_trains_to_the_bits_of_the_cpu(machine, hybrid, optimizer):
    expected = train_gluon([mx.cpu(0)], hybrid, optimizer=optimizer)
    equal(train_gluon([mx.sim(0)], hybrid, optimizer=optimizer), expected)


@pytest.mark.parametrize("kvstore", ["device", "local"])
@pytest.mark.parametrize("hybrid", [False, True])
def test_data_parallel_training_gives_the_bits_of_two_cpu_devices(machine, hybrid, kvstore):
    expected = train_gluon([mx.cpu(0), mx.cpu(1)], hybrid, kvstore)
    equal(train_gluon([mx.sim(0), mx.sim(1)], hybrid, kvstore), expected)


def symbol():
    x = mx.sym.Variable("data")
    with mx.AttrScope(ctx_group="first"):
        x = mx.sym.Convolution(x, num_filter=4, kernel=(3, 3), name="conv")
        x = mx.sym.Activation(mx.sym.BatchNorm(x, name="bn", fix_gamma=False), act_type="relu")
        x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")
    with mx.AttrScope(ctx_group="second"):
        x = mx.sym.FullyConnected(x, num_hidden=8, name="fc1")
        x = mx.sym.FullyConnected(mx.sym.Activation(x, act_type="tanh"), num_hidden=4, name="fc2")
        return mx.sym.SoftmaxOutput(x, name="softmax")


def train_module(contexts, groups=None, kvstore="local"):
    """Fit a module for an epoch; return its parameters."""
    mx.random.seed(3)
    np.random.seed(3)
    parts = [data(step) for step in range(STEPS)]
    x, y = (np.concatenate(each) for each in zip(*parts, strict=True))
    batches = mx.io.NDArrayIter(x, y, BATCH)
    module = mx.mod.Module(symbol(), context=contexts, group2ctxs=groups)

    async def fit():
        await module.fit(
            batches, num_epoch=1, optimizer="sgd", optimizer_params={"learning_rate": 0.1, "momentum": 0.9},
            initializer=mx.init.Xavier(), kvstore=kvstore, eval_metric="acc",
        )  # fmt: skip
        return module.get_params()

    args, aux = asyncio.run(fit())
    return [each.asnumpy() for _, each in sorted({**args, **aux}.items())]


@pytest.fixture(scope="module")
def compiled():
    """Compile all loops of the module's steps; uncompiled ones may run the fallback, which rounds differently."""
    train_module([mx.cpu(0)])
    train_module([mx.cpu(0), mx.cpu(1)], kvstore="device")
    for thread in threading.enumerate():
        if thread.name == "flowmx-compiler":
            thread.join()


@pytest.mark.usefixtures("compiled")
def test_a_module_trains_to_the_bits_of_the_cpu(machine):
    equal(train_module([mx.sim(0)]), train_module([mx.cpu(0)]))


@pytest.mark.usefixtures("compiled")
def test_a_module_over_two_devices_gives_the_bits_of_two_cpu_devices(machine):
    expected = train_module([mx.cpu(0), mx.cpu(1)], kvstore="device")
    equal(train_module([mx.sim(0), mx.sim(1)], kvstore="device"), expected)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("places", [(mx.sim(0), mx.sim(1)), (mx.cpu(0), mx.sim(0)), (mx.sim(1), mx.cpu(0))])
def test_a_model_spread_over_devices_gives_the_bits_of_one(machine, places):
    expected = train_module([mx.cpu(0)], {"first": mx.cpu(0), "second": mx.cpu(1)})
    equal(train_module([places[0]], dict(zip(("first", "second"), places, strict=True))), expected)


def test_dropout_draws_from_the_device_and_repeats(machine):
    def run():
        mx.random.seed(5)
        with autograd.record():
            return mx.nd.Dropout(mx.nd.ones((64, 64), ctx=mx.sim(0)), p=0.5).asnumpy()

    first = run()
    assert 0.3 < (first == 0).mean() < 0.7
    np.testing.assert_array_equal(run(), first)
