"""In prediction a BatchNorm is folded into the layer before it; others stay."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.graph import compiler
from flowmx.ops import kernels


def predict(net, **shapes):
    """Return the outputs of a bound symbol with random parameters and statistics, and the executor."""
    rng = np.random.default_rng(0)
    bound = net.simple_bind(mx.cpu(), grad_req="null", **shapes)
    for name, array in sorted({**bound.arg_dict, **bound.aux_dict}.items()):
        array[:] = rng.uniform(0.5, 2, array.shape) if name.endswith("var") else rng.standard_normal(array.shape)
    return [output.asnumpy() for output in bound.forward()], bound


def predict_without_passes(net, **shapes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "PASSES", [])
        patch.setattr(kernels, "channels_last_dtypes", lambda device_type: frozenset())
        patch.setattr("flowmx.ops.registry.kernels._kernels", {})
        return predict(net, **shapes)[0]


def assert_same(results, expected):
    for one, other in zip(results, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5 * np.abs(other).max(initial=1))


def names(bound):
    return [node.op.name for node in (*bound.plan.once, *bound.plan.forward)]


def convolution(x, name="conv", **more):
    return mx.sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=8, name=name, **more)


@pytest.mark.parametrize("fix_gamma", [False, True])
@pytest.mark.parametrize("no_bias", [False, True])
@pytest.mark.parametrize("global_stats", [False, True])
def test_convolution(fix_gamma, no_bias, global_stats):
    x = convolution(mx.sym.Variable("data"), no_bias=no_bias, num_group=2)
    net = mx.sym.BatchNorm(x, fix_gamma=fix_gamma, use_global_stats=global_stats, eps=0.1)
    results, bound = predict(net, data=(2, 4, 9, 9))
    assert names(bound) == ["_scale_and_shift", "_fused_Convolution"]
    assert_same(results, predict_without_passes(net, data=(2, 4, 9, 9)))


@pytest.mark.parametrize(("flatten", "axis"), [(True, 1), (True, -1), (False, 2), (False, -1)])
def test_fully_connected(flatten, axis):
    x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=64, flatten=flatten)
    net = mx.sym.tanh(mx.sym.BatchNorm(x, fix_gamma=False, axis=axis))
    results, bound = predict(net, data=(16, 5, 64))
    assert names(bound) == ["_scale_and_shift", "_fused_FullyConnected"]
    assert_same(results, predict_without_passes(net, data=(16, 5, 64)))


def test_residual_block():
    data = mx.sym.Variable("data")
    x = mx.sym.relu(mx.sym.BatchNorm(convolution(data, "one"), fix_gamma=False))
    x = mx.sym.BatchNorm(convolution(x, "two", no_bias=True), fix_gamma=False)
    short = mx.sym.BatchNorm(mx.sym.Convolution(data, kernel=(1, 1), num_filter=8), fix_gamma=False)
    net = mx.sym.sum(mx.sym.relu(x + short))
    results, bound = predict(net, data=(2, 3, 12, 12))
    assert names(bound) == ["_scale_and_shift"] * 3 + ["_fused_Convolution"] * 3 + ["sum"]
    assert_same(results, predict_without_passes(net, data=(2, 3, 12, 12)))


def test_folded_weights_follow_the_parameters():
    net = mx.sym.BatchNorm(convolution(mx.sym.Variable("data")), fix_gamma=False, name="norm")
    _, bound = predict(net, data=(1, 2, 5, 5))
    for name in ("norm_gamma", "norm_moving_var", "conv_bias"):
        table = bound.aux_dict if "moving" in name else bound.arg_dict
        table[name][:] = table[name] * 3
        results = bound.forward()[0].asnumpy()
        fresh = net.simple_bind(mx.cpu(), grad_req="null", data=(1, 2, 5, 5))
        fresh.copy_params_from(bound.arg_dict, bound.aux_dict)
        np.testing.assert_array_equal(results, fresh.forward()[0].asnumpy())


def test_statistics_of_training_are_used_by_the_next_prediction():
    net = mx.sym.BatchNorm(convolution(mx.sym.Variable("data")), fix_gamma=False, momentum=0.5)
    bound = net.simple_bind(mx.cpu(), data=(4, 2, 5, 5))
    for name, array in sorted(bound.arg_dict.items()):
        array[:] = np.random.default_rng(len(name)).standard_normal(array.shape)
    before = bound.forward(is_train=False)[0].asnumpy()
    bound.forward(is_train=True)
    after = bound.forward(is_train=False)[0].asnumpy()
    assert abs(before - after).max() > 1e-3


def normalized(x, **more):
    return mx.sym.BatchNorm(x, name="norm", **more)


STAYING = {
    "neither a convolution": lambda x: normalized(x),
    "used elsewhere too": lambda x: (lambda c: normalized(c) + c)(convolution(x)),
    "not that of the channels": lambda x: normalized(convolution(x), axis=2),
    "statistics are used": lambda x: mx.sym.Group(list(normalized(convolution(x), output_mean_var=True))),
    "one of its parameters is computed": lambda x: mx.sym.BatchNorm(
        convolution(x), mx.sym.exp(mx.sym.Variable("g")), name="norm", fix_gamma=False
    ),
    "it is not in": lambda x: normalized(convolution(mx.sym.Cast(x, dtype="float64"))),
}


@pytest.mark.parametrize("reason", STAYING)
def test_unfolded_layers_report_the_reason(reason):
    net = STAYING[reason](mx.sym.Variable("data"))
    results, bound = predict(net, data=(2, 8, 9, 9))
    assert "_scale_and_shift" not in names(bound)
    assert any("norm stays" in note and reason in note for note in bound.plan.graph.notes)
    assert_same(results, predict_without_passes(net, data=(2, 8, 9, 9)))


def test_training_is_unchanged():
    bound = normalized(convolution(mx.sym.Variable("data"))).simple_bind(mx.cpu(), data=(2, 3, 5, 5))
    assert names(bound) == ["Convolution", "BatchNorm"]
