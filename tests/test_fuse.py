"""Fused and laid-out graphs give what the plain ones give, and what cannot be fused is left alone."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.graph import compiler
from flowmx.graph import fuse as fusion
from flowmx.ops import kernels


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
    """The outputs, gradients and moving statistics after two steps."""
    rng = np.random.default_rng(0)
    bound = net.simple_bind(mx.cpu(), grad_req=requests or "write", data=shape)
    for name in sorted(bound.arg_dict):
        array = bound.arg_dict[name]
        array[:] = rng.integers(0, 4, array.shape) if name == "softmax_label" else rng.standard_normal(array.shape)
    for _ in range(2):
        bound.forward(is_train=True)
        bound.backward()
    found = {f"output {i}": each.asnumpy() for i, each in enumerate(bound.outputs)}
    found |= {f"gradient {name}": each.asnumpy() for name, each in bound.grad_dict.items() if each is not None}
    found |= {f"state {name}": each.asnumpy() for name, each in bound.aux_dict.items()}
    return found, bound


def plainly(monkeypatch):
    monkeypatch.setattr(compiler, "PASSES", [])
    monkeypatch.setattr(kernels, "like_channels_last", lambda device_type: False)
    monkeypatch.setattr("flowmx.ops.registry._kernels", {})


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, expected in one.items():
        size = np.abs(expected).max(initial=1)
        np.testing.assert_allclose(other[name], expected, rtol=2e-5, atol=2e-5 * size, err_msg=name)


def test_training_as_plain(monkeypatch):
    found, bound = train(network())
    names = [node.op.name for node in bound.plan.forward]
    assert (
        names.count("_relu_Convolution") == names.count("_relu_BatchNorm") == names.count("_relu_FullyConnected") == 1
    )
    assert "Activation" not in names
    assert "_backward_Convolution_weight_bias" in [node.op.name for node in bound.plan.backward]
    plainly(monkeypatch)
    expected, _ = train(network())
    assert_same(expected, found)


@pytest.mark.parametrize("has_channels_last", [False, True])
def test_layouts_alone(monkeypatch, has_channels_last):
    monkeypatch.setattr(kernels, "like_channels_last", lambda device_type: has_channels_last)
    found, bound = train(network())
    assert bool(bound.plan.channels_last) == has_channels_last
    plainly(monkeypatch)
    assert_same(train(network())[0], found)


def test_a_value_that_is_wanted_itself_is_not_fused_away():
    data = mx.sym.Variable("data")
    conv = mx.sym.Convolution(data, kernel=(3, 3), num_filter=2, name="conv")
    both = mx.sym.Group([conv, mx.sym.Activation(conv, act_type="relu")])
    bound = both.simple_bind(mx.cpu(), data=(1, 1, 5, 5))
    bound.arg_dict["data"][:] = np.random.default_rng(0).standard_normal((1, 1, 5, 5))
    bound.arg_dict["conv_weight"][:] = np.random.default_rng(1).standard_normal((2, 1, 3, 3))
    raw, relu = (each.asnumpy() for each in bound.forward())
    assert (raw < 0).any()
    np.testing.assert_array_equal(relu, np.maximum(raw, 0))


def test_other_activations_stay():
    x = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(1, 1), num_filter=2)
    bound = mx.sym.Activation(x, act_type="tanh").simple_bind(mx.cpu(), data=(1, 1, 2, 2))
    assert [node.op.name for node in bound.plan.forward] == ["Convolution", "Activation"]


def test_statistics_move_once_when_the_mean_is_an_output_too():
    norm = mx.sym.BatchNorm(mx.sym.Variable("data"), output_mean_var=True, momentum=0.5, name="norm")
    net = mx.sym.Group([norm[1], mx.sym.Activation(norm[0], act_type="relu")])
    bound = net.simple_bind(mx.cpu(), grad_req="null", data=(4, 2))
    bound.arg_dict["data"][:] = 4
    bound.forward(is_train=True)
    np.testing.assert_allclose(bound.aux_dict["norm_moving_mean"].asnumpy(), [2, 2])


def test_every_fused_operator_exists():
    for name, fused in fusion.THEN_RELU.items():
        assert issubclass(mx.ops.lookup(fused), mx.ops.lookup(name))
