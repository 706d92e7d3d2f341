"""Module and Trainer over several devices: the bits of one device that sums in the same order, and uneven batches."""

import numpy as np
import pytest

import flowmx as mx
from flowmx import gluon
from flowmx.gluon import nn
from tests.fixtures import record_training as recorded

DEVICES = [mx.cpu(index) for index in range(3)]
CLASSES = 3


# -- Trainer -----------------------------------------------------------------------------------------------


def network(ctx, grad_req="write"):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(4, activation="tanh", in_units=3), nn.Dense(2, in_units=4))
    net.initialize(mx.init.Constant(0.1), ctx=ctx)
    net.collect_params().setattr("grad_req", grad_req)
    net.hybridize()
    return net


def batches(count, size):
    random = np.random.default_rng(5)
    return [(random.normal(size=(size, 3)), random.normal(size=(size, 2))) for _ in range(count)]


def parts(batch, ctx):
    return [gluon.utils.split_and_load(item, ctx, even_split=False) for item in batch]


def backward(net, data, label):
    with mx.autograd.record():
        losses = [gluon.loss.L2Loss()(net(x), y) for x, y in zip(data, label, strict=True)]
    mx.autograd.backward(losses)


def trained(trainer_arguments, optimizer="sgd", size=7, steps=3):
    """Return the parameters on each device after some steps on batches that do not split evenly."""
    net = network(DEVICES)
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.1, "wd": 0.01}, **trainer_arguments)
    for batch in batches(steps, size):
        backward(net, *parts(batch, DEVICES))
        trainer.step(size)
    return [[array.asnumpy() for array in param.list_data()] for param in net.collect_params().values()]


def trained_on_one(optimizer="sgd", size=7, steps=3):
    """Return the parameters on one device, which adds the gradients of the parts in order."""
    net = network([mx.cpu(0)], grad_req="add")
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.1, "wd": 0.01})
    for batch in batches(steps, size):
        for data, label in zip(*parts(batch, DEVICES), strict=True):
            backward(net, [data.as_in_context(mx.cpu(0))], [label.as_in_context(mx.cpu(0))])
        trainer.step(size)
        net.collect_params().zero_grad()
    return [param.data().asnumpy() for param in net.collect_params().values()]


STORES = {
    "default": {},
    "local": {"kvstore": "local"},
    "device": {"kvstore": "device"},
    "none": {"kvstore": None},
    "in the store": {"update_on_kvstore": True},
    "on the devices": {"update_on_kvstore": False},
    "a store": {"kvstore": mx.kv.create("local_update_cpu")},
    "another kind": {"kvstore": "teststore"},
}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("bound", [1, 1_000_000])
def test_a_trainer_on_devices_has_the_bits_of_one(store, optimizer, bound):
    arguments = dict(STORES[store])
    if store == "a store":
        arguments["kvstore"] = mx.kv.create("local_update_cpu")
    with mx.engine.using(kvstore_bigarray_bound=bound):
        result = trained(arguments, optimizer)
    for arrays, expected in zip(result, trained_on_one(optimizer), strict=True):
        assert all(np.array_equal(array, expected) for array in arrays)


def test_a_setting_keeps_updates_out_of_the_store():
    with mx.engine.using(update_on_kvstore=False):
        for arrays, expected in zip(trained({"kvstore": "local"}), trained_on_one(), strict=True):
            assert np.array_equal(arrays[1], expected)


def test_a_device_without_a_part_of_the_batch_gets_the_update_too():
    for arguments in ({}, {"update_on_kvstore": False}):
        net = network(DEVICES)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, **arguments)
        single = network([mx.cpu(0)])
        alone = gluon.Trainer(single.collect_params(), "sgd", {"learning_rate": 0.1})
        for size in (3, 2, 1):
            ((data, label),) = batches(1, size)
            backward(net, *parts((data, label), DEVICES[:size]))
            trainer.step(size)
            backward(single, [mx.nd.array(data)], [mx.nd.array(label)])
            alone.step(size)
        for param, expected in zip(net.collect_params().values(), single.collect_params().values(), strict=True):
            for sample in param.list_data():
                np.testing.assert_allclose(sample.asnumpy(), expected.data().asnumpy(), rtol=1e-5)
                assert np.array_equal(sample.asnumpy(), param.list_data()[0].asnumpy())


def test_a_parameter_unused_on_one_device_raises():
    net = network(DEVICES)
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    backward(net, *parts(batches(1, 3)[0], DEVICES))
    trainer.step(3)
    before = [param.data().asnumpy() for param in net.collect_params().values()]
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 3))).sum()
        part = net[0](mx.nd.ones((1, 3), ctx=mx.cpu(1))).sum()
    mx.autograd.backward([loss, part])
    with pytest.raises(UserWarning, match=r"no backward pass has reached parameter 'net_dense1_bias' on cpu\(1\)"):
        trainer.step(1)
    trainer.step(1, ignore_stale_grad=True)
    changed = [
        not np.array_equal(old, param.data().asnumpy())
        for old, param in zip(before, net.collect_params().values(), strict=True)
    ]
    assert changed == [True, True, False, False]


def test_values_written_to_parameters_stay():
    net = network(DEVICES)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
    for value in (3, 4):
        for param in net.collect_params().values():
            param.set_data(mx.nd.full(param.shape, value))
        backward(net, *parts(batches(1, 3)[0], DEVICES))
        trainer.step(3)
        assert all((sample.asnumpy() == value).all() for p in net.collect_params().values() for sample in p.list_data())
    net.initialize(mx.init.Constant(5), ctx=DEVICES, force_reinit=True)
    backward(net, *parts(batches(1, 3)[0], DEVICES))
    trainer.step(3)
    assert all((sample.asnumpy() == 5).all() for sample in net[0].weight.list_data())


def test_parameters_updated_by_the_store_are_not_summed_separately():
    net = network(DEVICES)
    trainer = gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=True)
    for call in (trainer.allreduce_grads, lambda: trainer.update(1)):
        with pytest.raises(RuntimeError, match="update_on_kvstore=False to sum and update separately"):
            call()


def test_gradients_are_compressed_on_the_way():
    net = network(DEVICES)
    compression = {"type": "2bit", "threshold": 0.25}
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1}, compression_params=compression)
    before = net[1].bias.data().asnumpy()
    backward(net, *parts(batches(1, 3)[0], DEVICES))
    trainer.step(1)
    moved = (before - net[1].bias.data().asnumpy()) / 0.25
    assert np.array_equal(moved, np.round(moved))


def test_one_device_needs_no_store():
    net = network([mx.cpu(0)])
    trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore="device")
    backward(net, *parts(batches(1, 3)[0], [mx.cpu(0)]))
    pushed = mx.engine.stats()["pushed"]
    trainer.step(3)
    assert mx.engine.stats()["pushed"] - pushed == 1  # all updates in one


def test_a_store_object_is_used_for_one_device_too():
    kv = mx.kv.create("local")
    net = network([mx.cpu(0)])
    trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore=kv)
    backward(net, *parts(batches(1, 3)[0], [mx.cpu(0)]))
    trainer.step(3)
    out = mx.nd.zeros(4)
    kv.pull(0, out=out)
    assert np.array_equal(out.asnumpy(), net[0].bias.data().asnumpy())
    assert out.asnumpy().any()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"kvstore": 5}, TypeError, "kvstore is 5, expected a name such as 'device'"),
        ({"kvstore": "lokal"}, ValueError, "did you mean 'local'"),
        ({"kvstore": "teststore", "update_on_kvstore": True}, ValueError, "cannot update weights: pass False"),
        ({"compression_params": {"type": "zip"}}, ValueError, "type is 'zip'"),
        ({"kvstore": "local", "compression_params": {"type": "2bit"}}, ValueError, "has nothing to compress"),
    ],
)
def test_a_trainer_refuses(arguments, error, message):
    params = network(DEVICES).collect_params()
    with pytest.raises(error, match=message):
        gluon.Trainer(params, "sgd", **arguments)


@pytest.mark.parametrize("ctx", [[mx.cpu(0)], DEVICES])
def test_states_are_moved_to_other_devices(tmp_path, ctx):
    def step(net, trainer, batch, ctx):
        backward(net, *parts(batch, ctx))
        trainer.step(6)

    first, *rest = batches(4, 6)
    net = network(DEVICES)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    step(net, trainer, first, DEVICES)
    trainer.save_states(tmp_path / "states")
    net.save_parameters(tmp_path / "net.params")
    again = network(ctx)
    again.load_parameters(tmp_path / "net.params", ctx=ctx)
    resumed = gluon.Trainer(again.collect_params(), "sgd")
    resumed.load_states(tmp_path / "states")
    for batch in rest:
        step(net, trainer, batch, DEVICES)
        step(again, resumed, batch, ctx)
    for one, other in zip(net.collect_params().values(), again.collect_params().values(), strict=True):
        np.testing.assert_allclose(one.data().asnumpy(), other.data().asnumpy(), rtol=1e-4, atol=1e-6)


# -- Module ------------------------------------------------------------------------------------------------


def data():
    return mx.io.NDArrayIter(*recorded.dataset(), batch_size=recorded.BATCH)


def module(context, **arguments):
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=CLASSES, name="fc")
    return mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"), context=context, **arguments)


async def fitted(context, kvstore, epochs=2, workloads=None, **arguments):
    model = module(context, work_load_list=workloads)
    mx.random.seed(2)
    await model.fit(data(), num_epoch=epochs, kvstore=kvstore, **{**recorded.FIT, **arguments})
    return model


async def weights(instance):
    return {name: (await array).asnumpy() for name, array in instance.get_params()[0].items()}


@pytest.mark.parametrize("workloads", [None, [1, 3, 4]])
async def test_modules_have_the_same_bits_with_every_store(workloads):
    results = []
    for kvstore in (None, "local", "device", "local_allreduce_device", mx.kv.create("device"), "teststore"):
        model = await fitted(DEVICES, kvstore, workloads=workloads)
        results.append(await weights(model))
        for device in model._group.on_devices("fc_weight"):
            assert np.array_equal((await device).asnumpy(), results[-1]["fc_weight"])
    with mx.engine.using(update_on_kvstore=False, kvstore_bigarray_bound=1):
        results.append(await weights(await fitted(DEVICES, "local", workloads=workloads)))
    for item in results[1:]:
        assert all(np.array_equal(item[name], value) for name, value in results[0].items())
    alone = await weights(await fitted(mx.cpu(0), "local"))
    for name, value in alone.items():
        np.testing.assert_allclose(results[0][name], value, rtol=1e-4, atol=1e-6)


async def test_a_store_object_has_parameters_by_name():
    kv = mx.kv.create("local")
    model = await fitted(DEVICES, kv)
    out = mx.nd.zeros((CLASSES, 5))
    kv.pull("fc_weight", out=out)
    assert np.array_equal((await out).asnumpy(), (await weights(model))["fc_weight"])


async def test_multipliers_of_the_symbol_apply_in_the_store():
    def make(context):
        weight = mx.sym.Variable("fc_weight", lr_mult=0.0)
        net = mx.sym.FullyConnected(mx.sym.Variable("data"), weight, num_hidden=CLASSES, name="fc")
        return mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"), context=context)

    results = []
    for context in (mx.cpu(0), DEVICES):
        model = make(context)
        mx.random.seed(2)
        await model.fit(data(), num_epoch=1, initializer=mx.init.One(), optimizer_params={"learning_rate": 0.5})
        results.append(await weights(model))
    assert all((item["fc_weight"] == 1).all() and not (item["fc_bias"] == 0).all() for item in results)
    np.testing.assert_allclose(results[0]["fc_bias"], results[1]["fc_bias"], rtol=1e-4, atol=1e-6)


async def test_a_rebound_module_continues():
    results = []
    for again in (False, True):
        model = await fitted(DEVICES, "device", epochs=1)
        if again:
            model.bind(data().provide_data, data().provide_label, force_rebind=True)
        model.set_params({name: mx.nd.ones(each.shape) for name, each in model.get_params()[0].items()}, {})
        batch = data().next()
        model.forward_backward(batch)
        model.update()
        results.append(await weights(model))
    assert all(np.array_equal(results[0][name], results[1][name]) for name in results[0])
    assert not (results[0]["fc_weight"] == 1).all()


@pytest.mark.parametrize(("before", "after"), [(DEVICES, mx.cpu(0)), (mx.cpu(0), DEVICES), (DEVICES, DEVICES)])
async def test_optimizer_states_are_moved_to_other_devices(tmp_path, before, after):
    arguments = {"optimizer": "adam", "optimizer_params": {"learning_rate": 0.1}}
    prefix = str(tmp_path / "model")
    model = await fitted(before, "device", epochs=1, **arguments)
    await model._updater.ready()
    model.save_checkpoint(prefix, 1, save_optimizer_states=True)
    resumed = mx.mod.Module.load(prefix, 1, load_optimizer_states=True, context=after)
    for item in (model, resumed):
        await item.fit(data(), begin_epoch=1, num_epoch=2, kvstore="device", **{**recorded.FIT, **arguments})
    expected = await weights(model)
    for name, array in (await weights(resumed)).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-6)
