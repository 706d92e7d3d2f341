"""Fused graphs with other layouts give the same results as plain ones; operators that cannot be fused stay."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.graph import compiler
from flowmx.graph.passes import fuse as fusion
from flowmx.ops import kernels
from flowmx.ops.kernels.onednn import convolution, layouts
from flowmx.ops.kernels.onednn import library as onednn
from flowmx.ops.kernels.onednn.epilogue import epilogue_of
from flowmx.ops.registry.dtypes import FLOAT32
from tests.ops.test_onednn import assert_close, both


def network():
    data = mx.sym.Variable("data")
    x = mx.sym.Convolution(data, kernel=(3, 3), num_filter=8, pad=(1, 1), name="conv1")
    x = mx.sym.Activation(x, act_type="relu", name="relu1")
    left = mx.sym.Convolution(x, kernel=(1, 1), num_filter=6, name="left")
    right = mx.sym.Pooling(x, kernel=(3, 3), pad=(1, 1), pool_type="max", name="right")
    x = mx.sym.Concat(left, right, dim=1)
    x = mx.sym.BatchNorm(x, fix_gamma=False, name="norm")
    x = mx.sym.Activation(x, act_type="relu", name="relu2")
    y = mx.sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=14, no_bias=True, name="conv2")
    x = mx.sym.Pooling(x + y, kernel=(2, 2), stride=(2, 2), pool_type="avg")
    x = mx.sym.Activation(mx.sym.FullyConnected(x, num_hidden=10, name="fc1"), act_type="relu")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=4, name="fc2"), name="softmax")


def train(net, shape=(4, 3, 12, 12), **requests):
    """Return the outputs, gradients and moving statistics after two steps."""
    rng = np.random.default_rng(0)
    bound = net.simple_bind(mx.cpu(), grad_req=requests or "write", data=shape)
    for name in sorted(bound.arg_dict):
        array = bound.arg_dict[name]
        array[:] = rng.integers(0, 4, array.shape) if name == "softmax_label" else rng.standard_normal(array.shape)
    for _ in range(2):
        bound.forward(is_train=True)
        bound.backward()
    results = {f"output {i}": each.asnumpy() for i, each in enumerate(bound.outputs)}
    results |= {f"gradient {name}": each.asnumpy() for name, each in bound.grad_dict.items() if each is not None}
    results |= {f"state {name}": each.asnumpy() for name, each in bound.aux_dict.items()}
    return results, bound


def plainly(monkeypatch):
    monkeypatch.setattr(compiler, "PASSES", [])
    monkeypatch.setattr(kernels, "channels_last_dtypes", lambda device_type: frozenset())
    monkeypatch.setattr("flowmx.ops.registry.kernels._kernels", {})


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, expected in one.items():
        size = np.abs(expected).max(initial=1)
        np.testing.assert_allclose(other[name], expected, rtol=2e-5, atol=2e-5 * size, err_msg=name)


def test_training_as_plain(monkeypatch):
    results, bound = train(network())
    names = [node.op.name for node in bound.plan.forward]
    assert names.count("_fused_Convolution") == 2
    assert names.count("_relu_BatchNorm") == names.count("_fused_FullyConnected") == 1
    assert not {"Activation", "elemwise_add"} & set(names)
    assert "_backward_Convolution_weight_bias" in [node.op.name for node in bound.plan.backward]
    plainly(monkeypatch)
    expected, _ = train(network())
    assert_same(expected, results)


@pytest.mark.parametrize("has_channels_last", [False, True])
def test_layouts_alone(monkeypatch, has_channels_last):
    kinds = frozenset([FLOAT32] if has_channels_last else [])
    monkeypatch.setattr(kernels, "channels_last_dtypes", lambda device_type: kinds)
    results, bound = train(network())
    assert bool(bound.plan.channels_last) == has_channels_last
    plainly(monkeypatch)
    assert_same(train(network())[0], results)


def test_a_value_with_other_readers_is_not_fused():
    data = mx.sym.Variable("data")
    conv = mx.sym.Convolution(data, kernel=(3, 3), num_filter=2, name="conv")
    both = mx.sym.Group([conv, mx.sym.Activation(conv, act_type="relu")])
    bound = both.simple_bind(mx.cpu(), data=(1, 1, 5, 5))
    bound.arg_dict["data"][:] = np.random.default_rng(0).standard_normal((1, 1, 5, 5))
    bound.arg_dict["conv_weight"][:] = np.random.default_rng(1).standard_normal((2, 1, 3, 3))
    raw, relu = (output.asnumpy() for output in bound.forward())
    assert (raw < 0).any()
    np.testing.assert_array_equal(relu, np.maximum(raw, 0))


@pytest.mark.parametrize(
    "activation",
    [
        lambda x: mx.sym.Activation(x, act_type="softsign"),
        lambda x: mx.sym.Activation(x, act_type="softrelu"),
        lambda x: mx.sym.LeakyReLU(x, act_type="elu"),
    ],
)
def test_other_activations_stay(activation):
    x = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(1, 1), num_filter=2)
    bound = activation(x).simple_bind(mx.cpu(), grad_req="null", data=(1, 1, 2, 2))
    assert bound.plan.forward[0].op.name == "Convolution"


def layer(kind, x, **more):
    if kind == "Convolution":
        return mx.sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=8, name="layer", **more)
    return mx.sym.FullyConnected(x, num_hidden=64, flatten=False, name="layer", **more)


ACTIVATIONS = {
    "relu": lambda x: mx.sym.relu(x),
    "sigmoid": lambda x: mx.sym.Activation(x, act_type="sigmoid"),
    "tanh": lambda x: mx.sym.tanh(x),
    "leaky": lambda x: mx.sym.LeakyReLU(x, act_type="leaky", slope=0.1),
    "clip": lambda x: mx.sym.clip(x, 0, 2),
}


@pytest.mark.parametrize("kind", ["Convolution", "FullyConnected"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_bias_residual_and_activation_go_into_a_layer(monkeypatch, kind, activation):
    data = mx.sym.Variable("data")
    bias = mx.sym.Variable("bias", shape=(1, 8, 1, 1) if kind == "Convolution" else (64,))
    x = mx.sym.broadcast_add(layer(kind, data, no_bias=True), bias)
    net = ACTIVATIONS[activation](mx.sym.sin(data) + x)
    shape = (2, 8, 16, 64)
    results, bound = train(net, shape)
    steps = [node for node in bound.plan.forward if node.op.name not in ("sin", "Reshape")]
    if activation not in ("leaky", "clip"):  # their gradients read the activation's input
        assert [node.op.name for node in steps] == [f"_fused_{kind}"]
    rng = np.random.default_rng(0)
    predicting = net.simple_bind(mx.cpu(), grad_req="null", data=shape)
    for name in sorted(predicting.arg_dict):
        predicting.arg_dict[name][:] = rng.standard_normal(predicting.arg_dict[name].shape)
    assert f"_fused_{kind}" in [node.op.name for node in predicting.plan.forward]
    assert not {"elemwise_add", "broadcast_add"} & {node.op.name for node in predicting.plan.forward}
    results["prediction"] = predicting.forward()[0].asnumpy()
    plainly(monkeypatch)
    expected, _ = train(net, shape)
    expected["prediction"] = expected["output 0"]
    assert_same(expected, results)


@pytest.mark.parametrize("kind", ["Convolution", "FullyConnected"])
def test_swish_of_few_numbers_goes_into_a_layer(monkeypatch, kind):
    def predict(shape, is_read_elsewhere=False):
        x = layer(kind, mx.sym.Variable("data"))
        net = mx.sym.sigmoid(x) * x
        net = mx.sym.Group([net, x + 1]) if is_read_elsewhere else net
        bound, rng = net.simple_bind(mx.cpu(), grad_req="null", data=shape), np.random.default_rng(0)
        for name in sorted(bound.arg_dict):
            bound.arg_dict[name][:] = rng.standard_normal(bound.arg_dict[name].shape)
        return bound.forward()[0].asnumpy(), [getattr(node.op, "activation", "") for node in bound.plan.forward]

    few, many = (1, 4, 4, 16), (4, 4, 32, 32)
    (result, steps), (large_result, large_steps), (_, other_steps) = predict(few), predict(many), predict(few, True)
    assert steps == ["swish"]
    assert "swish" not in large_steps + other_steps
    plainly(monkeypatch)
    np.testing.assert_allclose(result, predict(few)[0], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(large_result, predict(many)[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", ["Convolution", "FullyConnected"])
def test_a_residual_goes_into_a_layer_without_a_bias(monkeypatch, kind):
    data, shape = mx.sym.Variable("data"), (2, 8, 16, 64)
    net = mx.sym.sin(data) + layer(kind, data, no_bias=True)
    results, bound = train(net, shape)
    assert [node.op.name for node in bound.plan.forward if node.op.name not in ("sin", "Reshape")] == [f"_fused_{kind}"]
    plainly(monkeypatch)
    assert_same(train(net, shape)[0], results)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("has_addend", ["computed", "variable", "the data", "used again"])
def test_any_addend_is_fused(monkeypatch, has_addend, batch):
    data, other = mx.sym.Variable("data"), mx.sym.Variable("other", shape=(batch, 8, 9, 9))
    x = mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=8, name="first")
    addend = {"computed": mx.sym.exp(x), "variable": other, "the data": x, "used again": x}[has_addend]
    y = mx.sym.Convolution(x, kernel=(1, 1), num_filter=8, num_group=2, name="second")
    y = mx.sym.Activation(addend + y, act_type="relu")
    net = mx.sym.Group([y, x * 2]) if has_addend == "used again" else y
    results, bound = train(net, (batch, 8, 9, 9))
    assert "elemwise_add" not in [node.op.name for node in bound.plan.forward]
    plainly(monkeypatch)
    assert_same(train(net, (batch, 8, 9, 9))[0], results)


def test_the_output_reuses_the_memory_of_the_addend():
    x = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), pad=(1, 1), num_filter=8, name="first")
    y = mx.sym.Convolution(x, kernel=(1, 1), num_filter=8, name="second")
    net = mx.sym.sum(mx.sym.relu(mx.sym.sin(x) + y))
    plan = net.simple_bind(mx.cpu(), grad_req="null", data=(1, 8, 9, 9)).plan
    place_of = {entry.node.name: place for entry, place in plan.place.items()}
    assert place_of["second"] in [place for name, place in place_of.items() if name not in ("first", "second")]


def test_an_addition_of_two_layers_is_fused_into_the_later_one():
    data = mx.sym.Variable("data")
    one, two = (mx.sym.Convolution(data, kernel=(1, 1), num_filter=4, name=name) for name in ("one", "two"))
    plan = mx.sym.relu(one + two).simple_bind(mx.cpu(), grad_req="null", data=(1, 3, 8, 8)).plan
    assert [(node.name, node.op.name) for node in plan.forward] == [
        ("one", "Convolution"), ("two", "_fused_Convolution")
    ]  # fmt: skip


def test_a_bias_of_another_shape_stays():
    x = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(1, 1), num_filter=4, no_bias=True)
    x = mx.sym.broadcast_add(x, mx.sym.Variable("bias", shape=(1, 1, 1, 4)))
    plan = x.simple_bind(mx.cpu(), grad_req="null", data=(1, 3, 4, 4)).plan
    assert [node.op.name for node in plan.forward] == ["Convolution", "broadcast_add"]


FUSED = [
    {"scaled": scaled, "has_addend": has_addend, "activation": activation, "slope": 0.3, "top": 0.7}
    for scaled in (False, True)
    for has_addend in (False, True)
    for activation in ("", *ACTIVATIONS)
]


def test_layers_without_a_kernel_are_not_fused():
    x = mx.sym.FullyConnected(mx.sym.Cast(mx.sym.Variable("data"), dtype="float64"), num_hidden=3)
    plan = mx.sym.relu(x).simple_bind(mx.cpu(), grad_req="null", data=(2, 4)).plan
    assert "FullyConnected" in [node.op.name for node in plan.forward]


@pytest.mark.skipif(onednn.library() is None, reason="the oneDNN library is not installed")
@pytest.mark.parametrize("channels", [3, 16])
def test_a_scale_is_fused_where_the_kernel_is_fast(channels):
    rng = np.random.default_rng(0)
    op = mx.ops.lookup("_fused_Convolution").create(
        kernel=(7, 7), stride=(2, 2), num_filter=64, scaled=True, has_addend=True, activation="relu"
    )
    shapes, outputs = op.infer_shape([(2, channels, 32, 32), *[None] * 4])
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    assert_close(*both(op, inputs, outputs, "channels last"))
    lie = [layouts.Geometry(shape, layouts.channels_last_strides(shape)) for shape in (shapes[0], outputs[0])]
    forward = convolution.Forward(op.geometry, lie[0], layouts.dense(shapes[1]), lie[1], epilogue_of(op), lie[1])
    assert not forward._run.implementation().startswith("ref")
    assert forward._epilogue.has_scale == (channels == 16)


@pytest.mark.skipif(onednn.library() is None, reason="the oneDNN library is not installed")
@pytest.mark.parametrize("order", ["C", "channels last"])
@pytest.mark.parametrize("parameters", FUSED, ids=str)
@pytest.mark.parametrize("kind", ["_fused_Convolution", "_fused_FullyConnected"])
def test_kernels_match_the_plain_forward(kind, parameters, order):
    rng = np.random.default_rng(0)
    layer = {"num_hidden": 48} if "Fully" in kind else {"kernel": (3, 3), "num_filter": 12, "num_group": 2}
    for no_bias in (False, True):
        op = mx.ops.lookup(kind).create(**layer, **parameters, no_bias=no_bias)
        shapes, outputs = op.infer_shape([(16, 4, 8, 9), *[None] * (len(op.inputs()) - 1)])
        inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        inputs[1] *= 0.1  # so that no activation sees large sums, with the errors of large sums
        assert_close(*both(op, inputs, outputs, order))


def test_every_fused_operator_exists():
    for layer, fused in fusion.FUSED.items():
        assert issubclass(fused, layer)
