"""Layers have MXNet's output shapes, and compute the same when compiled; recurrent cells unroll."""

from __future__ import annotations

import ast

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon import contrib, nn, rnn

LAYERS = {
    "Conv1D(4, 3)": ((2, 3, 8), (2, 4, 6)),
    "Conv1D(4, 3, strides=2, padding=1, groups=2, use_bias=False)": ((2, 2, 8), (2, 4, 4)),
    "Conv2D(4, (3, 2), dilation=(1, 2))": ((2, 3, 8, 8), (2, 4, 6, 6)),
    "Conv3D(2, 3, activation='relu')": ((1, 1, 4, 5, 6), (1, 2, 2, 3, 4)),
    "Conv1DTranspose(4, 3, strides=2, output_padding=1)": ((2, 3, 5), (2, 4, 12)),
    "Conv2DTranspose(4, 2, 2)": ((2, 3, 4, 4), (2, 4, 8, 8)),
    "Conv3DTranspose(2, 2)": ((1, 1, 2, 2, 2), (1, 2, 3, 3, 3)),
    "MaxPool1D(2)": ((2, 3, 8), (2, 3, 4)),
    "MaxPool2D(3, 2, 1)": ((2, 3, 8, 8), (2, 3, 4, 4)),
    "MaxPool3D((1, 2, 2), ceil_mode=True)": ((1, 1, 3, 5, 5), (1, 1, 3, 3, 3)),
    "AvgPool1D(3, 1, 1, count_include_pad=False)": ((2, 3, 8), (2, 3, 8)),
    "AvgPool2D()": ((2, 3, 8, 8), (2, 3, 4, 4)),
    "AvgPool3D()": ((1, 1, 4, 4, 4), (1, 1, 2, 2, 2)),
    "GlobalMaxPool1D()": ((2, 3, 8), (2, 3, 1)),
    "GlobalMaxPool2D()": ((2, 3, 8, 8), (2, 3, 1, 1)),
    "GlobalMaxPool3D()": ((1, 1, 3, 5, 5), (1, 1, 1, 1, 1)),
    "GlobalAvgPool1D()": ((2, 3, 8), (2, 3, 1)),
    "GlobalAvgPool2D()": ((2, 3, 8, 8), (2, 3, 1, 1)),
    "GlobalAvgPool3D()": ((1, 1, 3, 5, 5), (1, 1, 1, 1, 1)),
    "Dense(4)": ((2, 3, 5), (2, 4)),
    "Dense(4, flatten=False, activation='sigmoid')": ((2, 3, 5), (2, 3, 4)),
    "BatchNorm(axis=2, scale=False)": ((2, 3, 5), (2, 3, 5)),
    "LayerNorm(axis=1, center=False)": ((2, 3, 5), (2, 3, 5)),
    "RMSNorm(axis=1)": ((2, 3, 5), (2, 3, 5)),
    "SiLU()": ((2, 3), (2, 3)),
    "GLU()": ((2, 3, 6), (2, 3, 3)),
    "SwiGLU(axis=1)": ((2, 4, 3), (2, 2, 3)),
    "GEGLU()": ((2, 6), (2, 3)),
    "Flatten()": ((2, 3, 5), (2, 15)),
    "Dropout(0)": ((2, 3), (2, 3)),
    "PReLU(in_channels=3)": ((2, 3), (2, 3)),
    "HybridLambda('tanh')": ((2, 3), (2, 3)),
    "Lambda('tanh')": ((2, 3), (2, 3)),
}


def data(*shape):
    return mx.nd.array(np.random.default_rng(sum(shape)).normal(size=shape))


@pytest.mark.parametrize("text", LAYERS)
def test_shapes_and_compiled_results(text):
    shape, expected = LAYERS[text]
    layer = eval(text, vars(nn))
    layer.initialize(mx.init.Xavier() if "Conv" in text else mx.init.Uniform())
    x = data(*shape)
    plain = layer(x)
    assert plain.shape == expected
    layer.hybridize()
    np.testing.assert_allclose(layer(x).asnumpy(), plain.asnumpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("text", [text for text in LAYERS if "Conv" in text or "Pool" in text])
def test_exported_parameters_have_a_number_for_each_spatial_axis(text):
    layer, (shape, _) = eval(text, vars(nn)), LAYERS[text]
    (attributes,) = [attrs for attrs in layer(mx.sym.var("x")).attr_dict().values() if "kernel" in attrs]
    for key in attributes.keys() & {"kernel", "stride", "pad", "dilate", "adj"}:
        assert len(ast.literal_eval(attributes[key])) == len(shape) - 2, key


@pytest.mark.parametrize("factors", [(3,), (2, 3), (2, 3, 4)], ids=len)
def test_pixel_shuffles(factors):
    axes = len(factors)
    layer = getattr(contrib.nn, f"PixelShuffle{axes}D")(factors if axes > 1 else factors[0])
    lengths = (4, 3, 2)[:axes]
    x = np.arange(2 * 5 * np.prod(factors) * np.prod(lengths)).reshape(2, 5 * np.prod(factors), *lengths)
    split = x.reshape(2, 5, *factors, *lengths)
    order = [axis for i in range(axes) for axis in (2 + axes + i, 2 + i)]
    expected = split.transpose(0, 1, *order).reshape(2, 5, *np.multiply(factors, lengths))
    for _ in range(2):
        np.testing.assert_array_equal(layer(mx.nd.array(x)).asnumpy(), expected)
        layer.hybridize()
    with pytest.raises(ValueError, match=f"expected a number or {axes} of them"):
        type(layer)((1,) * (axes + 1))


@pytest.mark.parametrize("layer", [nn.BatchNorm, nn.BatchNormReLU, contrib.nn.SyncBatchNorm])
@pytest.mark.parametrize("mirror", [None, False, True])
def test_two_batches_may_be_recorded_before_the_backward_pass(layer, mirror):
    net, x = nn.HybridSequential(), data(4, 3, 5)
    net.add(layer(in_channels=3), nn.Dense(5, flatten=False), nn.Activation("tanh"), nn.Dense(2))
    net.initialize()
    x.attach_grad()
    if mirror is not None:
        net.hybridize()
    with mx.engine.using(backward_do_mirror=bool(mirror)):
        with mx.autograd.record():
            first, second = mx.nd.exp(net(x)), mx.nd.exp(net(x * 2))
        mx.autograd.backward([first, second])
        both = x.grad.asnumpy()
        total = 0
        for factor in (1, 2):
            with mx.autograd.record():
                out = mx.nd.exp(net(x * factor))
            out.backward()
            total = total + x.grad.asnumpy()
    np.testing.assert_allclose(both, total, rtol=1e-4, atol=1e-4)


def test_an_activation_by_name():
    np.testing.assert_array_equal(nn.Activation("relu")(mx.nd.array([-1, 2])).asnumpy(), [0, 2])
    np.testing.assert_allclose(nn.Swish(2.0)(mx.nd.array([1])).asscalar(), 1 / (1 + np.exp(-2)), rtol=1e-6)


def test_batch_norm_stays_float32_after_a_cast_to_float16():
    layer = nn.BatchNorm(in_channels=2)
    layer.initialize()
    layer.cast("float16")
    assert layer.gamma.data().dtype is np.float32


# -- recurrent cells ---------------------------------------------------------------------------------------


def cells():
    created = [rnn.RNNCell(4), rnn.LSTMCell(4), rnn.GRUCell(4), rnn.SequentialRNNCell(), rnn.HybridSequentialRNNCell()]
    for stack in created[3:]:
        stack.add(rnn.LSTMCell(3))
        stack.add(rnn.RNNCell(4, activation=nn.LeakyReLU(0.1)))
    return created


@pytest.fixture(params=range(5))
def cell(request):
    created = cells()[request.param]
    created.initialize(mx.init.Xavier())
    return created


def test_unroll_matches_single_steps(cell):
    x = data(3, 2, 5)  # TNC
    outputs, states = cell.unroll(3, x, layout="TNC", merge_outputs=True)
    stepped = cell.begin_state(batch_size=2)
    for t in range(3):
        output, stepped = cell(x[t], stepped)
        np.testing.assert_allclose(outputs[t].asnumpy(), output.asnumpy(), rtol=1e-5, atol=1e-6)
    for one, other in zip(states, stepped, strict=True):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-6)


def test_layouts_and_lists_give_the_same_results(cell):
    x = data(2, 3, 5)
    merged, _ = cell.unroll(3, x, merge_outputs=True)
    listed, _ = cell.unroll(3, [x[:, t] for t in range(3)])
    assert isinstance(listed, list)
    np.testing.assert_allclose(mx.nd.stack(*listed, axis=1).asnumpy(), merged.asnumpy(), rtol=1e-5, atol=1e-6)
    one, _ = cell.unroll(1, x[:, :1])
    np.testing.assert_allclose(one[0].asnumpy(), merged[:, 0].asnumpy(), rtol=1e-5, atol=1e-6)


def test_steps_after_the_valid_length_are_ignored(cell):
    x = data(2, 4, 5)
    outputs, states = cell.unroll(4, x, merge_outputs=True, valid_length=mx.nd.array([2, 4]))
    short, short_states = cell.unroll(2, x[:1, :2], merge_outputs=True)
    assert not outputs[0, 2:].asnumpy().any()
    np.testing.assert_allclose(outputs[:1, :2].asnumpy(), short.asnumpy(), rtol=1e-5, atol=1e-6)
    for one, other in zip(states, short_states, strict=True):
        np.testing.assert_allclose(one[:1].asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-6)


def test_hybridized_cells_unroll_to_the_same_results(cell):
    x = data(2, 3, 5)
    plain, states = cell.unroll(3, x, merge_outputs=True)
    cell.hybridize()
    outputs, others = cell.unroll(3, x, merge_outputs=True)
    for one, other in zip((outputs, *others), (plain, *states), strict=True):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-6)


def test_cells_compose_symbols():
    cell = rnn.LSTMCell(4, prefix="lstm_")
    begin = cell.begin_state(func=mx.sym.zeros, batch_size=2)
    assert [state.name for state in begin] == ["lstm_begin_state_0", "lstm_begin_state_1"]
    outputs, _ = cell.unroll(2, mx.sym.var("x"), merge_outputs=True)
    assert outputs.infer_shape(x=(3, 2, 5))[1] == [(3, 2, 4)]
    assert "lstm_t1_out_output" in outputs.get_internals().list_outputs()


def test_a_function_can_make_the_states():
    cell = rnn.GRUCell(3)
    (state,) = cell.begin_state(2, mx.nd.ones, ctx=mx.cpu(1))
    assert state.asnumpy().tolist() == [[1] * 3] * 2
    assert state.context is mx.cpu(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2, data(2, 3, 5)), r"length is 2, and the inputs have shape \(2, 3, 5\)"),
        ((2, [data(2, 5)]), "length is 2, and there are 1 inputs"),
        ((2, data(2, 3, 5), None, "NT"), "layout is 'NT', expected 'NTC' or 'TNC'"),
    ],
)
def test_unroll_refuses(arguments, message):
    cell = rnn.RNNCell(3)
    cell.initialize()
    with pytest.raises(ValueError, match=message):
        cell.unroll(*arguments)
