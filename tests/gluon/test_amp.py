"""Mixed precision: dtypes of operators, scaled losses, skipped steps, and reports."""

import asyncio
import gc
import json
import logging
import warnings
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from flowmx import amp, autograd, gluon
from flowmx.contrib import amp as contrib_amp
from flowmx.engine.runtime import engine
from flowmx.gluon import nn
from flowmx.ops.registry.dtypes import as_dtype
from flowmx.ops.registry.operators import lookup, registered_operators
from tests.fixtures.record_amp import symbol

HALVES = ["float16", "bfloat16"]
FIXTURES = json.loads((Path(__file__).parent.parent / "fixtures" / "amp.json").read_text())


@pytest.fixture
def use():
    """Switch mixed precision on, for the test."""
    yield amp.init
    amp.deinit()


@pytest.fixture(autouse=True, scope="module")
def free_trainers():
    """Free the trainers of this module: they check gradients as long as they live."""
    yield
    gc.collect()


def network():
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.Conv2D(8, 3, activation="relu"), nn.BatchNorm(), nn.MaxPool2D(2), nn.Flatten(),
            nn.Dense(32, activation="relu"), nn.Dense(10),
        )  # fmt: skip
    net.initialize(mx.init.Xavier())
    return net


# -- lists and policies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES)
def test_every_operator_is_on_one_list(dtype):
    conditional = [op for op, _, _ in amp.list_conditional_fp32_ops(dtype)]
    named = [
        *amp.list_lp16_ops(dtype), *amp.list_fp32_ops(dtype), *amp.list_widest_type_cast(dtype), *conditional,
        *amp.list_lp16_fp32_ops(dtype),
    ]  # fmt: skip
    assert len(named) == len(set(named))
    assert set(named) >= {cls.name for cls in registered_operators().values() if not cls.traits.hidden}
    assert set(amp.list_loss_output_functions(dtype)) <= set(amp.list_fp32_ops(dtype))


def test_lists_agree_with_mxnet():
    """An operator of both flowmx and MXNet is on the same list, under any of its names."""
    for ours, theirs in (
        (amp.list_lp16_ops("float16"), "FP16_FUNCS"), (amp.list_fp32_ops("float16"), "FP32_FUNCS"),
        (amp.list_widest_type_cast("float16"), "WIDEST_TYPE_CASTS"),
        (amp.list_lp16_fp32_ops("float16"), "FP16_FP32_FUNCS"),
    ):  # fmt: skip
        both = [lookup(name) for name in FIXTURES["lists"][theirs] if name in registered_operators()]
        missing = {cls.name for cls in both if not cls.traits.hidden} - set(ours)
        # `Convolution_v1` and `_add` are other names of these operators here; MXNet has them on other lists.
        assert missing <= {"Convolution", "elemwise_add"}


def targets(policy, name, *dtypes, **parameters):
    targets = policy.targets(lookup(name).create(**parameters), tuple(map(as_dtype, dtypes)))
    return None if targets is None else [str(each) for each in targets]


def test_input_dtypes_of_operators():
    policy = amp.Policy("float16")
    half, full = "float16", "float32"
    assert targets(policy, "FullyConnected", full, full, full, num_hidden=2) == [half] * 3
    assert targets(policy, "FullyConnected", half, half, half, num_hidden=2) is None
    assert targets(policy, "exp", half) == [full]
    assert targets(policy, "exp", full) is None
    assert targets(policy, "broadcast_add", half, full) == [full, full]
    assert targets(policy, "broadcast_add", half, half) is None
    assert targets(policy, "Activation", half, act_type="softrelu") == [full]
    assert targets(policy, "Activation", half, act_type="relu") is None
    assert targets(policy, "BatchNorm", half, *[full] * 4) is None
    assert targets(policy, "exp", "float64") is None
    assert targets(policy, "sgd_update", half, half, lr=0.1) is None
    assert targets(policy, "Embedding", "int32", full, input_dim=2, output_dim=2) is None
    lengths = targets(policy, "RNN", *[full] * 4, state_size=2, num_layers=1, mode="gru", use_sequence_length=True)
    assert lengths == [half, half, half, full]  # the lengths are not cast


def test_custom_lists():
    conditions = [("Pooling", "pool_type", ["avg"])]
    policy = amp.Policy("bfloat16", lp16=["dot"], fp32=["Convolution"], conditional_fp32=conditions)
    assert targets(policy, "dot", "float32", "float32") == ["bfloat16"] * 2
    assert targets(policy, "FullyConnected", "bfloat16", "bfloat16", no_bias=True, num_hidden=1) is None
    assert targets(policy, "Pooling", "bfloat16", kernel=(2, 2), pool_type="avg") == ["float32"]
    assert targets(policy, "Pooling", "bfloat16", kernel=(2, 2)) is None
    with pytest.raises(ValueError, match="dot is on two lists"):
        amp.Policy("float16", lp16=["dot"], fp32=["dot"])
    with pytest.raises(AttributeError, match="no operator 'dott'"):
        amp.Policy("float16", lp16=["dott"])
    for wrong in ("float32", "int16", "float8"):
        with pytest.raises(ValueError, match="expected 'float16' or 'bfloat16'"):
            amp.Policy(wrong)


# -- symbols -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("optional", [False, True])
def test_converts_symbols_as_mxnet(dtype, optional):
    """The same casts in the same places, of the same names, and the same declared types."""
    expected = FIXTURES["converted"][f"{dtype} {int(optional)}"]
    converted = amp.convert_symbol(
        symbol(mx), dtype, data_names=["data", "softmax_label"], cast_optional_params=optional
    )
    nodes = json.loads(converted.tojson(remove_amp_cast=False))["nodes"]
    dtypes = {
        n["name"]: [n["op"], n.get("attrs", {}).get("__dtype__"), [nodes[i]["name"] for i, *_ in n["inputs"]]]
        for n in nodes
    }
    assert dtypes == expected


def test_casts_are_removed_when_saved():
    converted = amp.convert_symbol(symbol(mx), excluded_sym_names=["conv1"])
    assert "relu0_output_amp_cast_float32" in converted.tojson(remove_amp_cast=False)
    assert json.loads(converted.tojson())["nodes"] == json.loads(symbol(mx).tojson())["nodes"]
    reloaded = mx.sym.load_json(converted.tojson(remove_amp_cast=False))
    assert reloaded.list_arguments() == symbol(mx).list_arguments()


def test_refuses_names_of_unknown_nodes():
    with pytest.raises(ValueError, match="'conv7', which is not a node"):
        amp.convert_symbol(symbol(mx), excluded_sym_names=["conv7"])
    with pytest.raises(TypeError, match="expected a Symbol"):
        amp.convert_symbol(3)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("optional", [False, True])
def test_converted_models_predict_nearly_the_same(dtype, optional):
    net, x = symbol(mx), np.random.default_rng(1).normal(size=(4, 3, 8, 8)).astype(np.float32) * 0.1
    plain = net.simple_bind(mx.cpu(), grad_req="null", data=x.shape)
    mx.random.seed(2)
    for name in ("conv0_weight", "conv1_weight", "fc0_weight"):
        plain.arg_dict[name][:] = mx.nd.random.normal(0, 0.05, plain.arg_dict[name].shape)
    args = {name: array for name, array in plain.arg_dict.items() if name not in ("data", "softmax_label")}
    converted, arg_params, aux_params = amp.convert_model(
        net, args, plain.aux_dict, dtype, cast_optional_params=optional
    )
    types = {arg_params[f"{layer}_weight"].dtype.__name__ for layer in ("conv0", "fc0")}
    assert types == {dtype if optional else "float32"}
    assert aux_params["bn0_moving_mean"].dtype == np.float32
    arg_params |= {"data": mx.nd.array(x), "softmax_label": mx.nd.zeros(4)}
    bound = converted.bind(mx.cpu(), arg_params, aux_states=aux_params)
    plain.forward(data=x)
    np.testing.assert_allclose(bound.forward()[0].asnumpy(), plain.outputs[0].asnumpy(), atol=0.02)


@pytest.mark.parametrize("dtype", HALVES)
def test_converted_blocks(dtype):
    net, x = network(), mx.nd.random.normal(shape=(2, 1, 10, 10))
    with pytest.raises(RuntimeError, match="call hybridize"):
        amp.convert_hybrid_block(net, dtype)
    net.hybridize()
    expected = net(x).asnumpy()
    converted = amp.convert_hybrid_block(net, dtype, cast_optional_params=True)
    assert converted.collect_params()["net_dense0_weight"].dtype != np.float32
    assert converted.collect_params()["net_batchnorm0_gamma"].dtype == np.float32
    assert converted(x).dtype == np.float32
    np.testing.assert_allclose(converted(x).asnumpy(), expected, atol=0.05)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("optional", [False, True])
def test_a_converted_bucketing_module(dtype, optional):
    def generate(length):
        outputs = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, flatten=False, name="fc")
        return mx.sym.mean(outputs, axis=1), ("data",), None

    def predict(module, length):
        module.forward(mx.io.DataBatch([mx.nd.ones((2, length, 4))], bucket_key=length,
                                       provide_data=[("data", (2, length, 4))]), is_train=False)  # fmt: skip
        return module.get_outputs()[0].asnumpy()

    plain = mx.mod.BucketingModule(generate, default_bucket_key=8)
    with pytest.raises(ValueError, match="parameters are not initialized"):
        amp.convert_bucketing_module(plain)
    plain.bind([("data", (2, 8, 4))])
    plain.init_params(mx.init.Xavier())
    converted = amp.convert_bucketing_module(plain, dtype, cast_optional_params=optional)
    converted.bind([("data", (2, 8, 4))], for_training=False)
    assert (converted.get_params()[0]["fc_weight"].dtype == np.float32) is not optional
    for length in (8, 5):
        np.testing.assert_allclose(predict(converted, length), predict(plain, length), atol=0.02)
    loaded = mx.mod.BucketingModule.load_dict({8: plain.symbol}, generate, 8, *plain.get_params())
    loaded.bind([("data", (2, 8, 4))], for_training=False)
    np.testing.assert_array_equal(predict(loaded, 8), predict(plain, 8))


# -- operators in 16 bits ----------------------------------------------------------------------------------

LAYERS = {
    "Convolution": lambda F, x: F.Convolution(x, F.w, num_filter=3, kernel=(3, 3), no_bias=True),
    "max": lambda F, x: F.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max"),
    "average": lambda F, x: F.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="avg"),
    "softmax": lambda F, x: F.softmax(x),
    "chain": lambda F, x: F.sigmoid(x) * x + F.tanh(x),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", list(LAYERS))
def test_graphs_of_16_bits_match_single_operators(dtype, name):
    random = np.random.default_rng(3)
    x, w = (mx.nd.array(random.normal(size=shape)).astype(dtype) for shape in ((2, 3, 8, 8), (3, 3, 3, 3)))

    class F:
        def __init__(self, module, w):
            self.module, self.w = module, w

        def __getattr__(self, op):
            return getattr(self.module, op)

    output = LAYERS[name](F(mx.sym, mx.sym.var("w")), mx.sym.var("x"))
    arrays = {"x": x, "w": w} if "w" in output.list_arguments() else {"x": x}
    grads = {key: mx.nd.zeros(each.shape, dtype=dtype) for key, each in arrays.items()}
    bound = output.bind(mx.cpu(), arrays, grads)
    bound.forward(is_train=True)
    bound.backward(mx.nd.ones(bound.outputs[0].shape, dtype=dtype))
    for each in arrays.values():
        each.attach_grad()
    with autograd.record():
        y = LAYERS[name](F(mx.nd, w), x)
    y.backward()
    pairs = [(bound.outputs[0], y), *((grads[key], each.grad) for key, each in arrays.items())]
    for one, other in pairs:
        np.testing.assert_allclose(*(each.astype("float32").asnumpy() for each in (one, other)), rtol=0.02, atol=0.02)


# -- training ----------------------------------------------------------------------------------------------


def train(net, steps=12, optimizer="adam", is_mixed=True, rate=5e-3):
    """Train for some steps; return the loss of each step, and the trainer."""
    random = np.random.default_rng(5)
    x, y = mx.nd.array(random.normal(size=(16, 1, 10, 10))), mx.nd.array(np.arange(16) % 10)
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": rate}, update_on_kvstore=False)
    loss_of, losses = gluon.loss.SoftmaxCrossEntropyLoss(), []
    for _ in range(steps):
        with autograd.record():
            loss = loss_of(net(x), y)
            if is_mixed:
                with amp.scale_loss(loss, trainer) as scaled:
                    autograd.backward(scaled)
        if not is_mixed:
            loss.backward()
        trainer.step(16)
        losses.append(float(loss.mean().asscalar()))
    return losses, trainer


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("hybridize", [False, True])
def test_trains_as_in_float32(use, dtype, hybridize):
    mx.random.seed(1)
    net = network()
    expected, _ = train(net, is_mixed=False)
    use(dtype)
    mx.random.seed(1)
    net = network()
    if hybridize:
        net.hybridize(static_alloc=True)
    trainer = gluon.Trainer(net.collect_params(), "adam", update_on_kvstore=False)
    amp.init_trainer(trainer)
    losses, trainer = train(net, steps=20)
    left_out = 20 - max(trainer.optimizer._index_update_count.values())
    assert left_out <= (6 if dtype == "float16" else 0)
    np.testing.assert_allclose(losses[left_out : left_out + 10], expected[:10], rtol=0.15, atol=0.05)
    assert all(param.data().dtype == np.float32 for param in net.collect_params().values())


def test_modules_compute_in_16_bits(use):
    net = symbol(mx)
    use("bfloat16")
    bound = net.simple_bind(mx.cpu(), data=(2, 3, 8, 8))
    ops = [node.op for node in bound.plan.forward]
    assert {op.dtype for op in ops if op.name == "amp_cast"} == {as_dtype("bfloat16"), as_dtype("float32")}
    assert bound.outputs[0].dtype == np.float32  # SoftmaxOutput stays float32
    bound.forward_backward()
    assert bound.grad_dict["conv0_weight"].dtype == np.float32
    assert np.isfinite(bound.grad_dict["conv0_weight"].asnumpy()).all()


def test_gradients_are_not_cast_again(use):
    """A gradient that is composed of public operators computes in the types of its forward pass."""
    use("float16")
    x = mx.nd.array([1.0, 2.0]).astype("float16")
    x.attach_grad()
    with autograd.record():
        y = mx.nd.relu(x) * 2
    y.backward()
    assert y.dtype == x.grad.dtype == np.float16


def test_loops_compute_in_one_type(use):
    """Values computed before a loop in 16 bits meet float32 weights inside."""

    def run():
        x, w = mx.sym.var("x"), mx.sym.var("w")
        data = mx.sym.FullyConnected(x, num_hidden=2, no_bias=True, flatten=False, name="fc")
        out, _ = mx.sym.contrib.foreach(lambda d, s: ((d * w).exp(), s), data, [])
        arrays = {name: mx.nd.ones(shape) for name, shape in (("x", (3, 2, 4)), ("fc_weight", (2, 4)), ("w", (2, 2)))}
        return out.bind(mx.cpu(), arrays).forward()[0]

    expected = run().asnumpy()
    use("float16")
    actual = run()
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual.asnumpy(), expected, rtol=1e-3)


class Flows(gluon.HybridBlock):
    """Products, and functions of float32, in loops and branches."""

    def __init__(self, kind):
        super().__init__()
        with self.name_scope():
            self.kind, self.w = kind, self.params.get("w", shape=(3, 3), init="one")

    def hybrid_forward(self, F, x, w):
        def product(x):
            return F.FullyConnected(x, w, no_bias=True, num_hidden=3)

        if self.kind == "cond":
            return product(F.contrib.cond(x.sum() > 9, lambda: product(x), lambda: F.softmax(x)))
        if self.kind == "foreach":
            step = lambda part, state: (product(part), F.softmax(product(part + state)))  # noqa: E731
            y, state = F.contrib.foreach(step, F.expand_dims(product(x), 1), F.zeros((1, 3)))
            return F.broadcast_add(F.squeeze(y), state)
        step = lambda count, state: (product(state), (count + 1, F.softmax(product(state))))  # noqa: E731
        y, (_, state) = F.contrib.while_loop(lambda count, _: count < 3, step, (F.zeros((1,)), x), max_iterations=4)
        return F.broadcast_add(y, F.expand_dims(state, 0))


@pytest.mark.parametrize("kind", ["foreach", "while_loop", "cond"])
def test_bodies_of_loops_compute_as_their_operators_do(use, kind):
    use("bfloat16")
    net, result = Flows(kind), []
    net.initialize()
    for _ in range(2):
        x = mx.nd.array(np.random.default_rng(0).uniform(size=(2, 3)))
        x.attach_grad()
        with autograd.record():
            y = net(x)
        y.backward()
        result.append([y, x.grad.asnumpy()])
        net.hybridize()
    assert result[0][0].dtype == result[1][0].dtype
    np.testing.assert_array_equal(result[0][0].asnumpy(), result[1][0].asnumpy())
    np.testing.assert_allclose(result[0][1], result[1][1], rtol=2e-2, atol=1e-2)


def test_regions_compute_as_their_operators_do(use):
    @mx.sym.register_partitioner("test")
    class Partitioner(mx.sym.Partitioner):
        def select(self, node):
            return node.op in ("FullyConnected", "BatchNorm", "Flatten")

    use("bfloat16")
    net, result = network(), []
    x = mx.nd.array(np.random.default_rng(0).uniform(size=(4, 3, 8, 8)))
    for options in ({}, {"backend": "test"}):
        net.hybridize(**options)
        with autograd.record():
            y = net(x)
        y.backward()
        result.append(
            [y.asnumpy(), *(p.grad().asnumpy() for p in net.collect_params().values() if p.grad_req != "null")]
        )
    for one, other in zip(*result, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-2, atol=2e-2)


def test_in_place_arithmetic_keeps_its_type(use):
    x = mx.nd.array([1.0, 2.0]).astype("float16")
    before = x**2
    use("float16")
    assert before.dtype == np.float16
    assert (x**2).dtype == np.float32  # the same call as before, whose dtype is inferred again
    x **= 2
    assert x.dtype == np.float16


def test_mixed_precision_is_off_after_the_tests():
    amp.init("float16")
    amp.init("float16")  # a second time changes nothing
    with pytest.raises(ValueError, match="is on with float16"):
        amp.init("bfloat16")
    amp.deinit()
    w = mx.nd.ones((2, 3))
    assert mx.nd.FullyConnected(mx.nd.ones((1, 3)), w, no_bias=True, num_hidden=2).dtype == np.float32


# -- the loss scale ----------------------------------------------------------------------------------------


def test_the_scale_falls_after_an_overflow_and_rises_again():
    scaler = amp.LossScaler(init_scale=16, scale_window=3, max_scale=32)
    assert scaler.update(False)
    assert (scaler.loss_scale, scaler.skipped) == (8, 1)
    for _ in range(3):
        assert not scaler.update(True)
    assert (scaler.loss_scale, scaler.skipped) == (16, 0)
    state = scaler.state()
    for _ in range(9):
        scaler.update(True)
    assert scaler.loss_scale == 32
    scaler.set_state(state)
    assert scaler.state() == state


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_detects_a_single_nonfinite_number(dtype, bad):
    arrays = [mx.nd.random.normal(shape=(40, 50)).astype(dtype) for _ in range(3)]
    assert mx.nd.multi_all_finite(*arrays, num_arrays=3).asscalar() == 1
    arrays[2][39, 49] = bad
    assert mx.nd.multi_all_finite(*arrays, num_arrays=3).asscalar() == 0


def one_weight(optimizer="sgd", value=1.0):
    net = nn.Dense(1, in_units=2, use_bias=False, prefix="one_")
    net.initialize(mx.init.Constant(value))
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.5}, update_on_kvstore=False)
    return net, trainer


def test_a_step_that_overflows_is_skipped(use):
    use("float16")
    net, trainer = one_weight()
    amp.init_trainer(trainer, amp.LossScaler(init_scale=2.0**18))
    scaler, scales = trainer._amp_loss_scaler, []
    for _ in range(3):
        with autograd.record(), amp.scale_loss(net(mx.nd.array([[0.25, 0.5]])).sum(), trainer) as scaled:
            scaled.backward()
        trainer.step(1)
        scales.append(scaler.loss_scale)
    # The gradient of the output is the scale itself: 2^16 is out of float16's range, and 2^15 is not.
    assert scales == [2.0**17, 2.0**16, 2.0**15]
    np.testing.assert_array_equal(net.weight.data().asnumpy(), [[1, 1]])
    with autograd.record(), amp.scale_loss(net(mx.nd.array([[0.25, 0.5]])).sum(), trainer) as scaled:
        scaled.backward()
    trainer.step(1)
    np.testing.assert_array_equal(net.weight.data().asnumpy(), [[0.875, 0.75]])
    assert trainer._amp_guard.last_overflow.parameters == ("one_weight",)


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_a_freed_trainer_stops_watching(use, in_a_cycle):
    use("float16")
    gc.collect()
    assert not engine.is_watched
    _, trainer = one_weight()
    amp.init_trainer(trainer)
    assert engine.is_watched
    if in_a_cycle:
        trainer.itself = trainer
    del trainer
    gc.collect()
    assert not engine.is_watched


def test_unscale(use):
    use("float16")
    net, trainer = one_weight()
    amp.init_trainer(trainer, amp.LossScaler(init_scale=1024))
    with autograd.record(), amp.scale_loss([net(mx.nd.array([[1.0, 2.0]])).sum()], trainer) as scaled:
        autograd.backward(scaled)
    amp.unscale(trainer)
    np.testing.assert_array_equal(net.weight.grad().asnumpy(), [[1, 2]])
    trainer.step(1)
    np.testing.assert_array_equal(net.weight.data().asnumpy(), [[0.5, 0]])
    with pytest.raises(TypeError, match="expected a gluon"):
        amp.unscale(trainer.optimizer)


def test_in_a_coroutine_nothing_blocks(use):
    use("float16")
    net, trainer = one_weight()

    async def main():
        with autograd.record(), amp.scale_loss(net(mx.nd.array([[1.0, 2.0]])).sum(), trainer) as scaled:
            scaled.backward()
        await trainer.step_async(1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            asyncio.run(main())
    assert trainer._amp_loss_scaler.loss_scale == 2.0**14  # the first two overflowed


def test_the_trainer_is_made_ready_by_the_first_scaled_loss(use):
    use("bfloat16")
    net, trainer = one_weight()
    with autograd.record(), amp.scale_loss(net(mx.nd.ones((1, 2))).sum(), trainer) as scaled:
        scaled.backward()
    assert trainer._amp_loss_scaler.loss_scale == 1  # bfloat16 needs no loss scaling
    trainer.step(1)


def test_refuses_trainers_that_cannot_skip_a_step(use):
    net, trainer = one_weight()
    with pytest.raises(RuntimeError, match=r"call amp.init\(\) first"):
        amp.init_trainer(trainer)
    use("float16")
    with pytest.raises(TypeError, match="expected a gluon"):
        amp.init_trainer(trainer.optimizer)
    stored = gluon.Trainer(net.collect_params(), "sgd", kvstore=mx.kv.create("local"), update_on_kvstore=True)
    with pytest.raises(ValueError, match="update_on_kvstore=False"):
        amp.init_trainer(stored)


# -- reports -----------------------------------------------------------------------------------------------


class Boom(gluon.HybridBlock):
    """A layer that leaves the range of float16."""

    def hybrid_forward(self, F, x):
        return F.Activation(x * 6e4, act_type="relu", name="boom")


@pytest.mark.parametrize("hybridize", [False, True])
def test_an_operator_that_overflows_is_named(use, hybridize):
    use("float16")
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(4, in_units=2), Boom(), nn.Dense(1, in_units=4))
    net.initialize(mx.init.One())
    if hybridize:
        net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=False)
    amp.init_trainer(trainer)
    first = mx.anomaly.current_step()
    with autograd.record(), amp.scale_loss(net(mx.nd.ones((3, 2))).sum(), trainer) as scaled:
        scaled.backward()
    with pytest.warns(amp.OverflowWarning, match=r"net_boom0.*keep the operator in float32") as caught:
        trainer.step(3)
    finding = trainer._amp_guard.last_overflow.finding
    assert (finding.operator, finding.step, finding.is_backward) == ("_mul_scalar", first, False)
    assert "net_boom0" in finding.layer and finding.infinities == 12
    assert "net_dense0_weight" in str(caught[0].message)
    assert (net[0].weight.data().asnumpy() == 1).all()


def test_an_overflow_of_the_scale_alone_is_logged(use, caplog):
    use("float16")
    net, trainer = one_weight()
    caplog.set_level(logging.INFO, "flowmx.amp")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with autograd.record(), amp.scale_loss(net(mx.nd.ones((1, 2))).sum(), trainer) as scaled:
            scaled.backward()
        trainer.step(1)
    assert "decreasing loss scale to 32768" in caplog.text
    assert "in the backward pass" in caplog.text


def test_a_loss_that_was_not_scaled_is_named(use):
    use("float16")
    net, trainer = one_weight()
    amp.init_trainer(trainer, amp.LossScaler(init_scale=1024))
    x = mx.nd.ones((1, 2))
    with autograd.record(), amp.scale_loss(net(x).sum(), trainer) as scaled:
        scaled.backward()
    trainer.step(1)
    with autograd.record():
        loss = net(x).mean()
    loss.backward()
    pattern = r"the loss 'mean'.*test_amp.py.*'one_weight'.*1024 times too small"
    with pytest.raises(amp.UnscaledLossError, match=pattern):
        trainer.step(1)
    with autograd.record(), amp.scale_loss(net(x).sum(), trainer) as scaled:
        scaled.backward()
    trainer.step(1)  # training continues


def test_an_unscaled_loss_among_two_is_detected(use):
    use("float16")
    net, trainer = one_weight()
    amp.init_trainer(trainer, amp.LossScaler(init_scale=64))
    with autograd.record():
        out = net(mx.nd.ones((1, 2)))
        penalty = net.weight.data().square().sum()
        with amp.scale_loss(out.sum(), trainer) as scaled:
            total = scaled + penalty
    total.backward()
    with pytest.raises(amp.UnscaledLossError, match="'one_weight'"):
        trainer.step(1)


def test_values_computed_from_scaled_losses_are_scaled(use):
    use("float16")
    net, trainer = one_weight()
    other, _ = one_weight()
    amp.init_trainer(trainer, amp.LossScaler(init_scale=64))
    with autograd.record():
        out = net(mx.nd.ones((1, 2)))
        with amp.scale_loss([out.sum(), out.mean()], trainer) as (one, two):
            total = (one + two) / 2
        elsewhere = other(mx.nd.ones((1, 2))).sum()  # reaches no parameter of this trainer
    autograd.backward([total, elsewhere])
    trainer.step(1)


def test_training_without_any_loss_scaling(use):
    use("float16")
    net, trainer = one_weight()
    for _ in range(2):
        with autograd.record():
            loss = net(mx.nd.ones((1, 2))).sum()
        loss.backward()
        if not trainer._is_warned:
            with pytest.warns(UserWarning, match="the loss is not scaled"):
                trainer.step(1)
        else:
            trainer.step(1)


def test_nonfinite_weights_are_detected(use):
    use("float16")
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(3, in_units=2), nn.Dense(1, in_units=3))
    net.initialize()
    net[0].cast("float16")
    trainer = gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=False)
    with pytest.warns(amp.AmpWarning) as caught:
        amp.init_trainer(trainer)
    messages = [str(each.message) for each in caught]
    assert any("net_dense0_weight" in each and "multi_precision=True" in each for each in messages)
    assert any("net_dense1_weight" in message and "not cast" in message for message in messages)
    whole = gluon.Trainer(net[0].collect_params(), "sgd", {"multi_precision": True}, update_on_kvstore=False)
    amp.init_trainer(whole)  # no warning


def test_float16_weights_with_a_float32_copy_keep_small_updates(use):
    use("float16")
    net = nn.Dense(1, in_units=1, use_bias=False)
    net.initialize(mx.init.One())
    net.cast("float16")
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": 1e-4, "multi_precision": True}, update_on_kvstore=False
    )
    amp.init_trainer(trainer, amp.LossScaler(init_scale=256))
    for _ in range(10):
        with autograd.record(), amp.scale_loss(net(mx.nd.ones((1, 1), dtype="float16")).sum(), trainer) as scaled:
            scaled.backward()
        trainer.step(1)
    assert net.weight.data().asscalar() == np.float16(0.999)  # each update alone is less than a bit


def test_contrib_amp_is_the_same_module():
    assert contrib_amp.init is amp.init and contrib_amp.convert_model is amp.convert_model
