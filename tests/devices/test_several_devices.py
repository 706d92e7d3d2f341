"""Training over several simulated GPUs: MXNet's idioms, the results of one device, and overlapping work."""

import asyncio

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, gluon
from flowmx.devices.sim import Description, simulated
from flowmx.engine.runtime import engine
from flowmx.gluon import nn
from flowmx.gluon.utils import split_and_load

SIZES = (13, 13, 9)
"""Batches that split evenly over no number of devices."""


@pytest.fixture(autouse=True)
def forgotten_errors():
    yield
    engine.failures.clear()


def all_gpus():
    return [mx.gpu(index) for index in range(mx.num_gpus())]


# -- data parallelism --------------------------------------------------------------------------------------


def network():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(3, 3, in_channels=1, activation="relu"), nn.Dense(6, activation="tanh", in_units=48), nn.Dense(3))
    return net


def batches():
    rng = np.random.default_rng(3)
    return [(rng.standard_normal((n, 1, 6, 6), np.float32), rng.integers(0, 3, n)) for n in SIZES]


def small():
    net = nn.HybridSequential()
    net.add(nn.Dense(5, activation="tanh", in_units=36), nn.Dense(3, in_units=5))
    return net


def train_gluon(contexts, hybrid=True, optimizer="sgd", make=network, **arguments):
    """Return the parameters on every device after some steps."""
    mx.random.seed(3)
    net = make()
    net.initialize(mx.init.Xavier(), ctx=contexts)
    if hybrid:
        net.hybridize()
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.1}, **arguments)
    for data, label in batches():
        parts = (split_and_load(each, contexts, even_split=False) for each in (data, label))
        with autograd.record():
            losses = [loss_of(net(x), y) for x, y in zip(*parts, strict=True)]
        autograd.backward(losses)
        trainer.step(len(label))
    return [[each.asnumpy() for each in param.list_data()] for param in net.collect_params().values()]


@pytest.mark.parametrize(("count", "hybrid"), [(2, True), (3, False), (8, True)])
@pytest.mark.parametrize("arguments", [{}, {"update_on_kvstore": False}, {"kvstore": "local"}], ids=str)
def test_gluon_on_all_gpus_equals_one_gpu(count, hybrid, arguments):
    with simulated("gtx980", count, device_type="gpu"):
        results = train_gluon(all_gpus(), hybrid, **arguments)
        assert len(results[0]) == count
        for several, (one,) in zip(results, train_gluon([mx.gpu(0)], hybrid), strict=True):
            np.testing.assert_allclose(several[0], one, rtol=1e-4, atol=1e-6)
            assert all(np.array_equal(each, several[0]) for each in several)


def test_a_device_that_gets_nothing_of_a_batch_has_the_parameters_all_the_same():
    with simulated("gtx980", 4, device_type="gpu"):
        net = nn.Dense(2, in_units=3)
        net.initialize(ctx=all_gpus())
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        for used in (4, 2, 3):
            data = split_and_load(np.ones((used, 3), np.float32), all_gpus()[:used])
            with autograd.record():
                losses = [net(each).sum() for each in data]
            autograd.backward(losses)
            trainer.step(used)
            values = [each.asnumpy() for each in net.weight.list_data()]
            assert all(np.array_equal(each, values[0]) for each in values)


def symbol():
    x = mx.sym.Variable("data")
    x = mx.sym.Activation(mx.sym.FullyConnected(x, num_hidden=8, name="fc1"), act_type="tanh")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=3, name="fc2"), name="softmax")


def train_module(contexts, kvstore="device", groups=None, net=None, batch=12):
    mx.random.seed(3)
    rng = np.random.default_rng(3)
    data = rng.standard_normal((48, 5), np.float32), rng.integers(0, 3, 48).astype(np.float32)
    module = mx.mod.Module(symbol() if net is None else net, context=contexts, group2ctxs=groups)

    async def fit():
        await module.fit(
            mx.io.NDArrayIter(*data, batch), num_epoch=2, kvstore=kvstore, initializer=mx.init.Xavier(),
            optimizer_params={"learning_rate": 0.1},
        )  # fmt: skip

    asyncio.run(fit())
    return {name: each.asnumpy() for name, each in module.get_params()[0].items()}


@pytest.mark.parametrize("count", [2, 5])  # 12 does not split evenly over 5
@pytest.mark.parametrize("kvstore", ["device", "local"])
def test_a_module_on_all_gpus_equals_one_gpu(count, kvstore):
    with simulated("gtx980", count, device_type="gpu"):
        actual, expected = train_module(all_gpus(), kvstore), train_module([mx.gpu(0)])
        for name, value in expected.items():
            np.testing.assert_allclose(actual[name], value, rtol=1e-4, atol=1e-6)


def test_a_batch_norm_keeps_the_statistics_of_each_device():
    with simulated("gtx980", 2, device_type="gpu"):
        net = nn.BatchNorm(in_channels=2)
        net.initialize(ctx=all_gpus())
        with autograd.record():
            for factor, ctx in enumerate(all_gpus(), 1):
                net(mx.nd.full((4, 2), factor, ctx=ctx))
        means = [each.asnumpy() for each in net.running_mean.list_data()]
        np.testing.assert_allclose(means, [[0.1, 0.1], [0.2, 0.2]], rtol=1e-5)


# -- the order of devices ----------------------------------------------------------------------------------


def bits(arrays):
    return [each.tobytes() for several in arrays for each in several]


@pytest.mark.parametrize("arguments", [{}, {"update_on_kvstore": False}], ids=str)
def test_results_do_not_depend_on_which_device_is_done_first(arguments):
    def trained(seed):
        with simulated("gtx980", 3, device_type="gpu", seed=seed):
            return bits(train_gluon(all_gpus(), optimizer="adam", make=small, **arguments))

    expected = trained(None)
    assert all(trained(seed) == expected for seed in range(8))


def test_the_order_of_a_list_of_devices_is_kept_and_decides_the_order_of_sums():
    with simulated("gtx980", 3, device_type="gpu"):
        orders = [all_gpus(), [mx.gpu(2), mx.gpu(0), mx.gpu(1)]]
        net = network()
        net.initialize(ctx=orders[1])
        assert net[0].weight.list_ctx() == orders[1]
        slices = split_and_load(np.arange(6).reshape(3, 2), orders[1])
        assert [(each.context, each.asnumpy()[0, 0]) for each in slices] == list(zip(orders[1], [0, 2, 4], strict=True))
        # The same numbers in the same order of summation, on other devices.
        assert bits(train_gluon(orders[0], make=small)) == bits(train_gluon(orders[1], make=small))


# -- model parallelism -------------------------------------------------------------------------------------


def stages(count, units=8, layers=1):
    x = mx.sym.Variable("data")
    for stage in range(count):
        with mx.AttrScope(ctx_group=f"stage{stage}"):
            for layer in range(layers):
                x = mx.sym.FullyConnected(x, num_hidden=units, name=f"fc{stage}_{layer}")
                x = mx.sym.Activation(x, act_type="tanh", name=f"act{stage}_{layer}")
    return x


def places(count):
    return {f"stage{index}": mx.gpu(index) for index in range(count)}


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("seed", [None, 5])
def test_stages_on_separate_devices_train_to_the_bits_of_one(count, seed):
    with mx.AttrScope(ctx_group="stage0"):
        net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(stages(count), num_hidden=3, name="last"), name="softmax")
    with simulated("gtx980", count, device_type="gpu", seed=seed):
        parameters = train_module([mx.gpu(0)], None, places(count), net)
        for name, value in train_module([mx.gpu(0)], None, None, net).items():
            np.testing.assert_array_equal(parameters[name], value)


def test_values_travel_on_the_actors_of_copies():
    with simulated("gtx980", 2, device_type="gpu") as machine:
        bound = stages(2).simple_bind(mx.gpu(0), data=(4, 8), group2ctx=places(2))
        bound.forward(is_train=True)
        bound.backward(mx.nd.ones((4, 8), ctx=mx.gpu(1)))
        busy = machine.statistics().busy
        assert {name for name in busy if "peers" in name} == {"gpu(0) copies of peers 0", "gpu(1) copies of peers 0"}


def pipelined(count, passes, executors, train=False):
    """Return the virtual seconds of some passes through stages on separate devices."""
    described = Description(
        name="plain", memory=1 << 32, flops={"float32": 1e13}, bandwidth=1e12, peer_bandwidth=2e11, efficiency=1.0,
        launch_seconds=1e-6,
    )  # fmt: skip
    machine = simulated(described, count, races=False, numerics=False, device_type="gpu")
    with mx.engine.using(engine_type="NaiveEngine"), machine as system:
        net = stages(count, 512, 4)
        bound = [
            net.simple_bind(mx.gpu(0), data=(512, 512), group2ctx=places(count), grad_req="write" if train else "null")
            for _ in range(executors)
        ]
        head = mx.nd.ones((512, 512), ctx=mx.gpu(count - 1))

        def go(passes):
            for index in range(passes):
                bound[index % executors].forward(is_train=train)
            for index in range(passes if train else 0):
                bound[index % executors].backward(head)

        go(executors)
        begin = system.statistics().seconds
        go(passes)
        return system.statistics().seconds - begin


@pytest.mark.parametrize("count", [2, 4])
def test_stages_of_a_pipeline_overlap(count):
    one, eight = pipelined(count, 1, 1), pipelined(count, 8, 1)
    # Ideally, each pass after the first one takes as long as the longest stage.
    assert eight < one + 7 * 1.15 * one / count
    assert pipelined(count, 8, 8) < 1.02 * eight


def test_micro_batches_of_a_training_step_overlap():
    one, eight = pipelined(2, 1, 1, train=True), pipelined(2, 8, 8, train=True)
    assert eight < 0.65 * 8 * one


def test_a_misspelt_group_name_is_reported():
    net = stages(2)
    with pytest.raises(ValueError, match="there is no ctx_group 'stag1' in the symbol, and its group 'stage1' has no"):
        net.simple_bind(mx.cpu(0), data=(4, 8), group2ctx={"stage0": mx.cpu(0), "stag1": mx.cpu(1)})
    # Nodes without a group, or in a group without a device, are on the default device.
    for groups in ({"stage1": mx.cpu(1)}, {"stage0": mx.cpu(0), "stage1": mx.cpu(1), "other": mx.cpu(2)}):
        bound = net.simple_bind(mx.cpu(0), data=(4, 8), group2ctx=groups)
        assert bound.outputs[0].context == mx.cpu(1)


def test_a_group_on_a_device_that_is_not_there_is_refused():
    with (
        simulated("gtx980", 2, device_type="gpu"),
        pytest.raises(mx.errors.DeviceError, match=r"gpu\(7\) does not exist"),
    ):
        stages(2).simple_bind(mx.gpu(0), data=(4, 8), group2ctx={"stage0": mx.gpu(0), "stage1": mx.gpu(7)})


class TwoParts(gluon.Block):
    """A block with its parts on two devices."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first, self.second = nn.Dense(4, in_units=3), nn.Dense(2, in_units=4)

    def forward(self, x):
        return self.second(self.first(x).as_in_context(mx.gpu(1)))


def test_gluon_blocks_on_separate_devices():
    """As in MXNet: calls and gradients cross devices with ``as_in_context``, and each device has its own Trainer."""
    with simulated("gtx980", 2, device_type="gpu"):
        net = TwoParts()
        net.first.initialize(ctx=mx.gpu(0))
        net.second.initialize(ctx=mx.gpu(1))
        with pytest.raises(ValueError, match="expected the same devices for all"):
            gluon.Trainer(net.collect_params(), "sgd")
        trainers = [gluon.Trainer(part.collect_params(), "sgd") for part in (net.first, net.second)]
        before = net.first.weight.data().asnumpy()
        with autograd.record():
            loss = net(mx.nd.ones((2, 3), ctx=mx.gpu(0))).sum()
        loss.backward()
        for trainer in trainers:
            trainer.step(2)
        assert not np.array_equal(net.first.weight.data().asnumpy(), before)
        with pytest.raises(RuntimeError, match=r"is not on gpu\(0\), only on \[gpu\(1\)\]"):
            net.second(mx.nd.ones((2, 4), ctx=mx.gpu(0)))
