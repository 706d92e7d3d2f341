"""Modules: training against MXNet's figures, checkpoints that resume exactly, and loops that never block."""

import asyncio
import json
from collections import namedtuple

import numpy as np
import pytest

import flowmx as mx
from flowmx.settings import SettingError
from tests.fixtures import record_training as recorded

EXPECTED = json.loads((recorded.FOLDER / "network.json").read_text())


def data(**arguments):
    return mx.io.NDArrayIter(*recorded.dataset(), batch_size=recorded.BATCH, **arguments)


def params():
    return tuple({name: mx.nd.array(value) for name, value in values.items()} for values in recorded.first_params())


def module(**arguments):
    return mx.mod.Module(recorded.network(mx.sym), **arguments)


async def fit(train=None, mod=None, **arguments):
    mod = mod or module()
    if not mod.params_initialized:
        arguments["arg_params"], arguments["aux_params"] = params()
    await mod.fit(train or data(), **{"num_epoch": recorded.EPOCH, **recorded.FIT, **arguments})
    return mod


async def read_params(mod):
    args, aux = mod.get_params()
    return {name: (await array).asnumpy() for name, array in (args | aux).items()}


async def test_trains_like_mxnet():
    metrics = []
    mod = await fit(
        eval_metric=["acc", "ce"],
        batch_end_callback=lambda param: metrics.append(param.eval_metric.get_name_value()),
    )
    np.testing.assert_allclose(
        [[value for _, value in batch] for batch in metrics],
        [[value for _, value in batch] for batch in EXPECTED["metrics"]],
        rtol=2e-4,
    )
    _, args, aux = mx.model.load_checkpoint(recorded.CHECKPOINT, recorded.EPOCH)
    arrays = await read_params(mod)
    for name, expected in (args | aux).items():
        np.testing.assert_allclose(arrays[name], expected.asnumpy(), rtol=1e-3, atol=2e-5)
    outputs = await mod.predict(data())
    np.testing.assert_allclose(outputs.asnumpy(), EXPECTED["outputs"], rtol=1e-3, atol=1e-5)
    scores = await mod.score(data(), ["acc", "ce"])
    assert [name for name, _ in scores] == ["accuracy", "cross-entropy"]
    np.testing.assert_allclose([value for _, value in scores], [value for _, value in EXPECTED["scores"]], rtol=1e-3)


async def test_a_checkpoint_of_mxnet_predicts_as_in_mxnet():
    mod = mx.mod.Module.load(recorded.CHECKPOINT, recorded.EPOCH)
    mod.bind(data().provide_data, for_training=False)
    outputs = await mod.predict(data())
    assert outputs.shape == (28, 3)
    np.testing.assert_allclose(outputs.asnumpy(), EXPECTED["outputs"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "arguments"),
    [
        ("sgd", {"learning_rate": 0.2, "momentum": 0.9}),
        ("adam", {"learning_rate": 0.05}),
        ("nadam", {"learning_rate": 0.05}),
        ("rmsprop", {"learning_rate": 0.05, "centered": True}),
    ],
)
async def test_resumed_training_is_exact(tmp_path, optimizer, arguments):
    def options():
        schedule = mx.lr_scheduler.FactorScheduler(3, 0.9, base_lr=arguments["learning_rate"])
        return {"optimizer": optimizer, "optimizer_params": {**arguments, "lr_scheduler": schedule}}

    prefix = str(tmp_path / "net")
    mod = module()
    save = mx.callback.module_checkpoint(mod, prefix, save_optimizer_states=True)
    await fit(mod=mod, num_epoch=4, epoch_end_callback=save, **options())
    resumed = mx.mod.Module.load(prefix, 2, load_optimizer_states=True)
    await fit(mod=resumed, begin_epoch=2, num_epoch=4, **options())
    arrays = await read_params(resumed)
    for name, expected in (await read_params(mod)).items():
        np.testing.assert_array_equal(arrays[name], expected)


async def test_two_devices_train_like_one():
    """Without batch normalization, whose statistics differ by device."""

    def make(context):
        net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
        return mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"), context=context)

    results = []
    for context in (mx.cpu(), [mx.cpu(0), mx.cpu(1)]):
        mod = make(context)
        mx.random.seed(2)
        await mod.fit(data(), eval_data=data(), num_epoch=2, **recorded.FIT)
        results.append((await read_params(mod), await mod.predict(data()), await mod.score(data(), "ce")))
    for name, expected in results[0][0].items():
        np.testing.assert_allclose(results[1][0][name], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(results[1][1].asnumpy(), results[0][1].asnumpy(), rtol=1e-4)
    assert mod.get_outputs(merge_multi_context=False)[0][1].context == mx.cpu(1)


async def test_two_devices_with_auxiliary_states():
    mod = module(context=[mx.cpu(0), mx.cpu(1)], work_load_list=[1, 3])
    await fit(mod=mod)
    assert [part.shape for part in mod.get_outputs(False)[0]] == [(2, 3), (6, 3)]
    assert (await mod.score(data(), "acc"))[0][1] > 0.5


async def test_batches_of_other_sizes_are_accepted():
    mod = module()
    mod.bind(data().provide_data, data().provide_label)
    mod.init_params(None, *params())
    inputs, _ = recorded.dataset()
    for size in (8, 3, 20, 3, 8):
        mod.forward(mx.io.DataBatch([mx.nd.array(inputs[:size])]), is_train=False)
        assert mod.get_outputs()[0].shape == (size, 3)
    with pytest.raises(ValueError, match=r"'fc1_weight' would change from \(6, 5\) to \(6, 4\)"):
        mod.forward(mx.io.DataBatch([mx.nd.array(inputs[:8, :4])]), is_train=False)
    whole = await mod.predict(inputs)
    assert whole.shape == (28, 3)


async def test_the_low_level_calls():
    mod = mx.mod.Module(recorded.network(mx.sym), fixed_param_names=["fc1_weight"])
    mod.bind([("data", (8, 5))], [("softmax_label", (8,))], inputs_need_grad=True)
    assert mod.data_names == ["data"]
    assert mod.label_names == ["softmax_label"]
    assert mod.output_names == ["softmax_output"]
    assert mod.output_shapes == [("softmax_output", (8, 3))]
    mod.init_params(None, *params())
    mod.init_optimizer(optimizer_params={"learning_rate": 1.0})
    batch = data().next()
    before = {name: array.copy() for name, array in mod.get_params()[0].items()}
    metric = mx.metric.create("acc")
    mod.forward_backward(batch)
    mod.update()
    await mod.update_metric_async(metric, batch.label)
    (grad,) = mod.get_input_grads()
    assert (await grad).shape == (8, 5)
    assert np.abs(grad.asnumpy()).sum() > 0
    after = mod.get_params()[0]
    for array in after.values():
        await array
    assert (after["fc1_weight"].asnumpy() == before["fc1_weight"].asnumpy()).all()
    assert (after["fc2_weight"].asnumpy() != before["fc2_weight"].asnumpy()).any()
    assert metric.num_inst == 8


def test_gradients_can_be_accumulated():
    gradients = []
    for request, times in (("write", 1), ("add", 2)):
        mod = module()
        mod.bind(data().provide_data, data().provide_label, grad_req=request)
        mod.init_params(None, *params())
        for _ in range(times):
            mod.forward_backward(data().next())
        gradients.append(mod._group.gradients("fc2_weight")[0].asnumpy())
    np.testing.assert_allclose(gradients[1], 2 * gradients[0], rtol=1e-5)


def test_gradients_of_outputs_can_be_passed():
    mod = mx.mod.Module(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc"), label_names=None)
    mod.bind([("data", (3, 4))])
    mod.init_params(mx.init.One())
    mod.forward(mx.io.DataBatch([mx.nd.full((3, 4), 2)]))
    mod.backward([mx.nd.full((3, 2), 5)])
    assert (mod._group.gradients("fc_weight")[0].asnumpy() == 30).all()


def test_an_output_may_occur_twice():
    twice = mx.sym.Variable("data") * 2
    mod = mx.mod.Module(mx.sym.Group([twice, twice]), label_names=None, context=[mx.cpu(0), mx.cpu(1)])
    mod.bind([("data", (4, 3))])
    mod.init_params()
    mod.forward(mx.io.DataBatch([mx.nd.ones((4, 3))]))
    for output in mod.get_outputs():
        np.testing.assert_array_equal(output.asnumpy(), np.full((4, 3), 2))


async def test_predictions_omit_padding_and_may_stay_unmerged():
    mod = await fit(num_epoch=1)
    batches = await mod.predict(data(), merge_batches=False)
    assert [batch[0].shape for batch in batches] == [(8, 3), (8, 3), (8, 3), (4, 3)]
    listed = await mod.predict(data(), num_batch=2, always_output_list=True)
    assert [out.shape for out in listed] == [(16, 3)]
    numbers = [number async for _, number, _ in mod.iter_predict(data(), num_batch=3)]
    assert numbers == [0, 1, 2]
    assert await mod.predict(data(), num_batch=0) == []


async def test_callbacks_are_called_and_awaited():
    calls = []

    async def batch_end(param):
        await asyncio.sleep(0)
        calls.append(("batch", param.epoch, param.nbatch))

    def epoch_end(epoch, symbol, args, aux):
        calls.append(("epoch", epoch, len(args), len(aux)))

    async def eval_end(param):
        calls.append(("eval", param.epoch, param.nbatch))

    await fit(
        num_epoch=2, eval_data=data(), batch_end_callback=[batch_end], epoch_end_callback=epoch_end,
        eval_end_callback=eval_end,
    )  # fmt: skip
    assert calls[:6] == [*(("batch", 0, nbatch) for nbatch in range(4)), ("epoch", 0, 6, 2), ("eval", 0, 4)]
    assert len(calls) == 12


async def test_training_logs_like_mxnet(caplog):
    caplog.set_level("INFO")
    await fit(num_epoch=1, eval_data=data(), batch_end_callback=mx.callback.Speedometer(8, 2))
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("Epoch[0] Batch [0-2]\tSpeed: ")
    assert lines[1].startswith("Epoch[0] Train-accuracy=0.")
    assert lines[2].startswith("Epoch[0] Time cost=")
    assert lines[3].startswith("Epoch[0] Validation-accuracy=0.")


async def test_other_tasks_run_during_training():
    turns = 0

    async def other_task():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other_task())
    await fit()
    task.cancel()
    assert turns >= 12


async def test_plain_iterators_are_accepted():
    class Plain:
        """Has neither ``async for`` nor flowmx's base class."""

        provide_data = (("data", (8, 5)),)
        provide_label = (("softmax_label", (8,)),)

        def __iter__(self):
            return iter([data().next()] * 2)

        def reset(self):
            pass

    mod = await fit(Plain(), num_epoch=1)
    assert len(await mod.score(Plain(), "acc")) == 1


async def test_modules_share_parameters():
    mod = await fit(num_epoch=1)
    other = module()
    other.bind([("data", (2, 5))], [("softmax_label", (2,))], shared_module=mod)
    inputs, labels = recorded.dataset()
    batch = mx.io.DataBatch([mx.nd.array(inputs[:2])], [mx.nd.array(labels[:2])])
    other.forward_backward(batch)
    other.update()
    shared = await mod._group.on_devices("fc2_weight")[0]
    assert ((await read_params(other))["fc2_weight"] == shared.asnumpy()).all()


async def test_parameters_can_be_saved_set_and_rebound(tmp_path):
    mod = await fit(num_epoch=1)
    path = str(tmp_path / "a.params")
    mod.save_params(path)
    other = module()
    other.bind(data().provide_data, data().provide_label)
    other.load_params(path)
    expected = await read_params(mod)
    other.bind([("data", (4, 5))], for_training=False, force_rebind=True)
    for name, value in (await read_params(other)).items():
        np.testing.assert_array_equal(value, expected[name])
    with pytest.raises(ValueError, match="no parameter 'more'"):
        other.set_params({**mod.get_params()[0], "more": mx.nd.array([1])}, mod.get_params()[1], allow_missing=True)
    other.set_params({"more": mx.nd.array([1])}, {}, allow_missing=True, allow_extra=True)
    with pytest.raises(RuntimeError, match="'bn_beta' is missing"):
        other.set_params({}, {})
    with pytest.raises(ValueError, match=r"'bn_beta' has shape \(1,\), expected \(6,\)"):
        other.set_params({"bn_beta": mx.nd.array([1])}, {}, allow_missing=True)


async def test_an_error_of_training_data_is_raised_where_it_is_awaited():
    def fail():
        raise ArithmeticError("bad batch")

    batches = list(data())
    mx.engine.push(fail, writes=[batches[1].data[0]])

    class Failing(mx.io.NDArrayIter):
        def next(self):
            super().next()
            return batches[self.cursor // self.batch_size]

    with pytest.raises(ArithmeticError, match="bad batch"):
        await fit(Failing(*recorded.dataset(), batch_size=recorded.BATCH))


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [
        (ValueError, lambda mod: mx.mod.Module(mod.symbol, data_names=["x"]), "data_names has 'x'"),
        (ValueError, lambda mod: mx.mod.Module(mod.symbol, fixed_param_names=["x"]), "expected one of data"),
        (ValueError, lambda mod: mx.mod.Module(mod.symbol, work_load_list=[1, 2]), "has 2 entries, expected 1"),
        (ValueError, lambda mod: mx.mod.Module(mod.symbol, compression_params={"type": "3bit"}), "type is '3bit'"),
        (ValueError, lambda mod: mx.mod.Module(mod.symbol, group2ctxs=[{}, {}]), "has 2 entries, expected 1"),
        (ValueError, lambda mod: mx.mod.Module(mod.symbol, group2ctxs={"a": [mx.cpu(0)] * 3}), "on 3 devices"),
        (RuntimeError, lambda mod: mod.data_shapes, "the module is not bound"),
        (RuntimeError, lambda mod: mod.forward(data().next()), "forward: the module is not bound"),
        (RuntimeError, lambda mod: mod.get_params(), "the parameters are not initialized"),
        (RuntimeError, lambda mod: mod.save_optimizer_states("x"), "has no optimizer"),
        (ValueError, lambda mod: mod.bind([("x", (2, 2))]), r"data_shapes names \['x'\]"),
        (ValueError, lambda mod: mod.bind([("data", (2, 5))], [("softmax_label", (3,))]), "3 samples on axis 0"),
        (ValueError, lambda mod: mod.bind([("data", (2, 5))], None, False, True), "needs for_training=True"),
    ],
)
def test_refuses_invalid_calls(error, call, message):
    with pytest.raises(error, match=message):
        call(module())


async def test_refuses_invalid_arguments_of_fit():
    with pytest.raises(ValueError, match="num_epoch is missing"):
        await module().fit(data())
    with pytest.raises(SettingError, match="belongs to no job"):
        await fit(kvstore="dist_sync")
    with pytest.raises(TypeError, match="optimizer is 5, expected a name"):
        await fit(optimizer=5)
    with pytest.raises(ValueError, match="cannot be split over 9 devices"):
        await fit(mod=module(context=[mx.cpu(index) for index in range(9)]))
    train = data()
    list(train)
    with pytest.raises(ValueError, match="does it need a reset"):
        await fit(train)


async def test_warns_of_likely_mistakes():
    with pytest.warns(UserWarning, match="label_names has 'x', which is not an argument"):
        module(label_names=["x"])
    mod = await fit(num_epoch=1)
    with pytest.warns(UserWarning, match="already initialized"):
        mod.init_params()
    with pytest.warns(UserWarning, match="rescale_grad is 1.0"):
        mod.init_optimizer(optimizer=mx.optimizer.SGD(), force_init=True)


def test_predictions_in_plain_code():
    mod = mx.mod.Module(mx.sym.Variable("data") * 2, label_names=None)
    mod.bind([("data", (4, 3))], for_training=False)
    mod.init_params()
    batches = mx.io.NDArrayIter(np.arange(30).reshape(10, 3), batch_size=4)
    predictions = [(outputs[0].asnumpy(), number, batch.pad) for outputs, number, batch in mod.iter_predict(batches)]
    assert [(number, pad) for _, number, pad in predictions] == [(0, 0), (1, 0), (2, 2)]
    np.testing.assert_array_equal(np.concatenate([out for out, _, _ in predictions]), 2 * np.arange(30).reshape(10, 3))
    assert [number for _, number, _ in mod.iter_predict(batches, num_batch=1)] == [0]


def test_a_batch_needs_no_label():
    Batch = namedtuple("Batch", ["data"])
    mod = mx.mod.Module(mx.sym.Variable("data") * 2, label_names=None)
    mod.bind([("data", (1, 10))])
    mod.init_params()
    for shape in ((1, 10), (3, 5)):
        mod.forward(Batch([mx.nd.ones(shape)]))
        assert mod.get_outputs()[0].shape == shape
    mod.backward(mx.nd.ones((3, 5)))  # it has no parameters, so this does nothing


class Generating(mx.io.DataIter):
    """Defines only ``__iter__``, as a generator."""

    provide_data = (mx.io.DataDesc("data", (2, 3)),)
    provide_label = (mx.io.DataDesc("softmax_label", (2,)),)

    def __iter__(self):
        for number in range(3):
            yield mx.io.DataBatch([mx.nd.full((2, 3), number)], [mx.nd.zeros(2)], pad=0)


async def test_an_iterator_with_only_iter():
    mod = mx.mod.Module(mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2),
                                              name="softmax"))  # fmt: skip
    await mod.fit(Generating(2), eval_data=Generating(2), num_epoch=2)
    assert (await mod.score(Generating(2), "acc"))[0][1] == 1
    assert (await mod.predict(Generating(2))).shape == (6, 2)
    assert [(await batch.data[0]).asnumpy()[0, 0] async for batch in Generating(2)] == [0, 1, 2]


def test_replaced_methods_of_a_module_are_called():
    mod, calls = mx.mod.BaseModule(), []
    for name in ("bind", "init_params", "init_optimizer", "forward", "backward", "update", "update_metric"):
        setattr(mod, name, lambda *args, _name=name, **kwargs: calls.append(_name))
    mod.get_params = lambda: (None, None)

    class Batches:
        provide_data = provide_label = None

        def __iter__(self):
            return iter([mx.io.DataBatch([]), mx.io.DataBatch([])])

        def reset(self):
            pass

    mod.fit(Batches(), num_epoch=1)
    assert calls == [
        "bind", "init_params", "init_optimizer", *["forward", "backward", "update", "update_metric"] * 2,
    ]  # fmt: skip


def test_the_output_of_a_python_loss_has_the_shape_of_its_data():
    loss = mx.mod.PythonLossModule(name="loss")
    loss.bind([("data", (4, 3))], [("softmax_label", (4,))])
    assert loss.output_shapes == [("loss_output", (4, 3))]


def test_a_python_module_refuses_unknown_arguments():
    module = mx.mod.PythonLossModule()
    module.init_params(initializer=mx.init.One(), force_init=True)
    with pytest.raises(TypeError, match="forse_init"):
        module.init_params(forse_init=True)
    with pytest.raises(TypeError, match="optimiser"):
        module.init_optimizer(optimiser="sgd")


def test_a_refused_reshape_changes_nothing():
    fc = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, flatten=True, name="fc")
    module = mx.mod.Module(fc, label_names=None)
    module.bind([("data", (4, 3))], for_training=False)
    weight, bias = mx.nd.ones((2, 3)), mx.nd.zeros(2)
    module.init_params(arg_params={"fc_weight": weight, "fc_bias": bias})
    for _ in range(2):
        with pytest.raises(ValueError, match="fc_weight"):
            module.forward(mx.io.DataBatch([mx.nd.ones((1, 5))]))
    module.forward(mx.io.DataBatch([mx.nd.ones((4, 3))]))
    assert module.get_outputs()[0].shape == (4, 2)
