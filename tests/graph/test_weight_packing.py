"""Packed weights: predictions are the same, packing is done once for each change, and what cannot be packed is not."""

from dataclasses import replace

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.executor import executor as executors
from flowmx.gluon import nn
from flowmx.graph import compiler
from flowmx.ops import kernels
from flowmx.ops.kernels.onednn import library
from flowmx.ops.kernels.onednn.library import OneDNNError
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.kernels import kernel_for, packed_size
from flowmx.ops.registry.operators import Run, lookup
from tests.ops.test_onednn import assert_close, in_order

needs_onednn = pytest.mark.skipif(library.library() is None, reason="the oneDNN library is not installed")


@pytest.fixture
def packing(monkeypatch):
    """Bound symbols are compiled with packed weights."""
    options_of = compiler.options_of
    monkeypatch.setattr(executors, "options_of", lambda kind: replace(options_of(kind), pack=True))


def network():
    data = mx.sym.Variable("data")
    x = mx.sym.Convolution(data, kernel=(3, 3), num_filter=16, pad=(1, 1), name="one")
    y = mx.sym.Convolution(x, kernel=(3, 3), num_filter=16, pad=(1, 1), num_group=2, no_bias=True, name="two")
    y = mx.sym.relu(x + mx.sym.BatchNorm(y, fix_gamma=False, name="norm"))
    y = mx.sym.FullyConnected(y, num_hidden=64, name="three")
    y = mx.sym.tanh(mx.sym.BatchNorm(y, fix_gamma=False, name="other"))
    return mx.sym.FullyConnected(y, num_hidden=8, name="four", no_bias=True)


def filled(executor):
    rng = np.random.default_rng(0)
    for name, array in sorted({**executor.arg_dict, **executor.aux_dict}.items()):
        array[:] = rng.uniform(0.5, 2, array.shape) if name.endswith("var") else rng.standard_normal(array.shape)
    return executor


def bound(batch=3, grad_req="null"):
    return filled(network().simple_bind(mx.cpu(), grad_req=grad_req, data=(batch, 6, 12, 12)))


def names(nodes):
    return [node.op.name for node in nodes]


@needs_onednn
@pytest.mark.parametrize("batch", [1, 3])
def test_predictions_are_the_same(packing, monkeypatch, batch):
    executor = bound(batch)
    packed = [node for node in executor.plan.once if node.op.name.startswith("_pack_")]
    assert [node.name for node in packed][:2] == ["one_weight packed", "two_weight packed"]
    assert batch == 1 or packed[2].name == "three_weight packed"  # without AVX-512 a single row needs no copy
    assert sum(getattr(node.op, "packed", False) for node in executor.plan.forward) == len(packed)
    outputs = [executor.forward()[0].asnumpy() for _ in range(2)]
    monkeypatch.setattr(compiler, "PASSES", [])
    monkeypatch.setattr(kernels, "channels_last_dtypes", lambda device_type: False)
    monkeypatch.setattr("flowmx.ops.registry.kernels._kernels", {})
    expected = bound(batch).forward()[0].asnumpy()
    for each in outputs:
        np.testing.assert_allclose(each, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@needs_onednn
@pytest.mark.parametrize("layer", [nn.Conv1D, nn.Conv2D, nn.Conv3D])
@pytest.mark.parametrize("given", [{"groups": 4}, {"dilation": 2}, {"groups": 2, "dilation": 2, "strides": 2}], ids=str)
def test_groups_and_dilation_are_packed(layer, given):
    net = layer(8, 3, in_channels=4, **given)
    net.initialize()
    x = mx.nd.array(np.random.default_rng(0).standard_normal((2, 4, *(7,) * layer.axes)))
    expected = net(x).asnumpy()
    net.hybridize(static_alloc=True, static_shape=True)
    np.testing.assert_allclose(net(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)


@needs_onednn
def test_only_changed_weights_are_packed_again(packing):
    executor = bound()
    expected = executor.forward()[0].asnumpy()
    runner = executor._modes[False].runner
    for entry in executor.plan.separate:
        runner.arrays[entry].fill(0)
    assert (executor.forward()[0].asnumpy() != expected).any()
    for name in ("one_weight", "norm_gamma", "norm_moving_var", "three_weight"):
        table = executor.aux_dict if "moving" in name else executor.arg_dict
        table[name][:] = table[name] * 2
        actual = executor.forward()[0].asnumpy()
        fresh = network().simple_bind(mx.cpu(), grad_req="null", data=(3, 6, 12, 12))
        fresh.copy_params_from(executor.arg_dict, executor.aux_dict)
        np.testing.assert_array_equal(actual, fresh.forward()[0].asnumpy())


@needs_onednn
def test_a_step_copies_no_weight(packing):
    with_copies = network().simple_bind(mx.cpu(), grad_req="null", data=(2, 6, 12, 12)).plan
    largest = {node.name: with_copies.lives[place].size for node, place in with_copies.workspace.items()}
    assert largest.get("two", 0) < 4 * 16 * 8 * 9
    assert sum(map(with_copies.nbytes, with_copies.separate)) >= 4 * (16 * 6 * 9 + 16 * 8 * 9 + 64 * 16 * 144)


@needs_onednn
def test_training_is_unchanged(packing):
    plan = bound(grad_req="write").plan
    assert not plan.once


def test_weights_are_not_packed_by_default():
    assert not any(name.startswith("_pack_") for name in names(bound().plan.once))


@needs_onednn
def test_computed_and_wide_weights_are_not_packed(packing):
    data, weight = mx.sym.Variable("data"), mx.sym.Variable("weight")
    computed = mx.sym.Convolution(data, mx.sym.exp(weight), kernel=(3, 3), num_filter=8, no_bias=True)
    plan = computed.simple_bind(mx.cpu(), grad_req="null", data=(1, 4, 9, 9)).plan
    assert not plan.once
    wide = mx.sym.Convolution(mx.sym.Cast(data, dtype="float64"), kernel=(3, 3), num_filter=8, no_bias=True)
    assert not wide.simple_bind(mx.cpu(), grad_req="null", data=(1, 4, 9, 9)).plan.once


LAYERS = {
    "Convolution": ({"kernel": (3, 3), "num_filter": 12}, (2, 4, 9, 9)),
    "FullyConnected": ({"num_hidden": 48}, (20, 4, 9, 9)),
}


def packed_pair(kind, scaled, size, **more):
    parameters, data = LAYERS[kind]
    layer = lookup(f"_fused_{kind}").create(**parameters, **more, packed=True)
    size = packed_size("cpu", layer, data, FLOAT32) if size is None else size
    pack = lookup(f"_pack_{kind}").create(**parameters, **more, packed=True, scaled=scaled, data_shape=data, size=size)
    return layer, pack, data


def arrays(layer, data, rng):
    shape = layer.weight_shape(data)
    weight, scale = rng.standard_normal(shape).astype(np.float32), rng.uniform(1, 2, shape[0]).astype(np.float32)
    return weight * np.float32(0.1), scale


@pytest.mark.parametrize("by_kernel", [False, pytest.param(True, marks=needs_onednn)])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    "more", [{}, {"no_bias": True, "activation": "tanh"}, {"has_addend": True, "activation": "relu"}]
)
@pytest.mark.parametrize("kind", LAYERS)
def test_packed_layers_match_plain_layers(kind, more, scaled, by_kernel):
    more = more | ({"num_group": 2} if kind == "Convolution" else {})
    layer, pack, data = packed_pair(kind, scaled, None if by_kernel else 48 * 4 * 81, **more)
    plain = lookup(f"_fused_{kind}").create(**{n: getattr(layer, n) for n in layer.attributes() if n != "packed"})
    rng, run = np.random.default_rng(0), Run(devices.get(mx.cpu()), False)
    weight, scale = arrays(layer, data, rng)
    completed, (out,) = plain.infer_shape([data, *[None] * (len(plain.inputs()) - 1)])
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in completed]
    inputs[1] = weight * scale.reshape(-1, *(1,) * (weight.ndim - 1)) if scaled else weight
    expected, copy = np.empty(out, np.float32), np.empty(pack.size, np.float32)
    plain.forward(run, inputs, [expected])

    def compute(op, value, outputs):
        if by_kernel:
            kernel_for("cpu", op.name).compute(op, run, value, outputs)
        else:
            op.forward(run, value, outputs)

    compute(pack, [weight, scale][: 1 + scaled], [copy])
    for order in ("C", "channels last"):
        laid = [in_order(inputs[0], order), copy, *inputs[2:]]
        actual = np.full(out, 7, np.float32)
        compute(layer, laid, [actual])
        assert_close([expected], [actual])


@needs_onednn
def test_the_shapes_follow():
    layer, pack, data = packed_pair("Convolution", True, None)
    assert pack.spec((layer.weight_shape(data), (12,)), (FLOAT32,) * 2).shapes == [(pack.size,)]
    assert layer.spec((data, (pack.size,), (12,)), (FLOAT32,) * 3).shapes == [(2, 12, 7, 7)]
    assert pack.size >= 12 * 4 * 9


@needs_onednn
def test_packed_weights_are_not_confused(monkeypatch):
    layer, pack, data = packed_pair("Convolution", False, None)
    rng, run = np.random.default_rng(0), Run(devices.get(mx.cpu()), False)
    inputs = [rng.standard_normal(data), rng.standard_normal(pack.size), rng.standard_normal(12)]
    with pytest.raises(OneDNNError, match="_fused_Convolution cannot read the weight that was packed"):
        kernel_for("cpu", layer.name).compute(layer, run, inputs, [np.empty((2, 12, 7, 7))])
