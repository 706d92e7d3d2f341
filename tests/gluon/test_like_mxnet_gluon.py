"""Details of arrays, autograd and Gluon agree with MXNet 1.9.1; MXNet recorded the expected values."""

import json
import pickle

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd, gluon, nd
from flowmx.errors import AutogradError, DeviceError, MXNetError, ShapeError
from flowmx.gluon import nn
from flowmx.ndarray import NDArray

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])


# -- arrays ------------------------------------------------------------------------------------------------


def test_shapes_may_be_numpy_arrays():
    shape = np.array([2, 3])
    assert nd.empty(shape).shape == nd.zeros(shape).shape == nd.full(shape, 1.0).shape == (2, 3)
    assert nd.ones(np.int64(3)).shape == (3,)
    assert nd.ones(6).reshape(shape).shape == (2, 3)
    assert mx.random.normal(shape=shape).shape == (2, 3)


def test_reshape_like_is_the_operator():
    x = nd.arange(6)
    y = x.reshape_like(rhs=nd.ones((2, 3)))
    y += 10
    assert (y.shape, x.asnumpy().tolist()) == ((2, 3), [0, 1, 2, 3, 4, 5])
    z = nd.ones((2, 3, 4)).reshape_like(nd.ones((3, 2)), lhs_begin=0, lhs_end=2, rhs_begin=0, rhs_end=2)
    assert z.shape == (3, 2, 4)


def test_broadcast_like_requires_both_axes():
    with pytest.raises(MXNetError, match="at least one axis"):
        nd.broadcast_like(nd.ones((1, 2)), nd.ones((3, 2)), lhs_axes=(), rhs_axes=())


def test_memory_of_numpy_is_shared_more_than_once():
    source = np.ones((2, 3), np.float32)
    one, other = nd.from_numpy(source), nd.from_numpy(source)
    one[0, 0] = 5
    nd.waitall()
    assert other.asnumpy()[0, 0] == source[0, 0] == 5
    with pytest.raises(ValueError, match="C-contiguous"):
        nd.from_numpy(np.ones((2, 3), np.float32).T)


def test_read_only_memory_is_only_read():
    x = nd.from_numpy(np.frombuffer(b"\0" * 8, np.float32))
    assert x.asnumpy().tolist() == [0, 0]
    x[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        x.wait_to_read()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((1.3, 10, 1.3), [1, 2, 3, 4, 5, 6, 7]),
        ((0, 3, 0.5), [0, 0, 0, 0, 0, 0]),
        ((10, 1, -2.5), [10, 8, 6, 4]),
    ],
)
def test_integer_ranges_have_integer_steps(arguments, expected):
    assert nd.arange(*arguments, dtype="int32").asnumpy().tolist() == expected


def test_pickles_of_mxnet_are_read():
    # nd.arange(1, ctx=mx.gpu()).__getstate__() of MXNet 1.x, where there need be no GPU.
    handle = bytearray(
        b"\xc9\xfa\x93\xf9\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00"
        b"\x00\x00\x00\x00\x00\x00\x00\x00"
    )
    x = nd.ones(3)
    x.__setstate__({"handle": handle})
    assert (x.asnumpy().tolist(), x.context) == ([0], mx.cpu())
    assert pickle.loads(pickle.dumps(x)).shape == (1,)


def test_bfloat16_as_mxnet_writes_it():
    pytest.importorskip("ml_dtypes")
    x = nd.ones(2, dtype=BFLOAT16)
    assert x.dtype == nd.ones(2, dtype="bfloat16").dtype == nd.amp_cast(nd.ones(2), dtype=BFLOAT16).dtype


@pytest.mark.parametrize("kind", ["cpu_pinned", "cpu_shared"])
def test_arrays_of_special_cpu_memory_mix_with_others(kind):
    context = mx.Context(kind, 0)
    x, y = nd.array([1, 2], ctx=context), nd.array([3, 4])
    y.attach_grad()
    for total in (x + y, y + x, nd.add_n(x, y)):
        assert (total.asnumpy().tolist(), total.context) == ([4, 6], mx.cpu())
    x += y
    assert (x.asnumpy().tolist(), x.context) == ([4, 6], context)
    with autograd.record():
        z = (x * y).sum()
    z.backward()
    assert y.grad.asnumpy().tolist() == [4, 6]
    net = nn.Dense(1, in_units=2)
    net.initialize()
    assert net(x.reshape((1, 2))).context == mx.cpu()
    with pytest.raises(DeviceError, match="bring them together"):
        x + nd.ones(2, mx.sim(0))


def test_arrays_of_several_cpus_are_combined():
    here, there = nd.ones(2), nd.ones(2, mx.cpu(1))
    here.attach_grad()
    there.attach_grad()
    with autograd.record():
        product = here * there * 3
    product.backward()
    assert (product.context, (there + here).context) == (mx.cpu(0), mx.cpu(1))
    assert (here.grad.context, there.grad.context) == (mx.cpu(0), mx.cpu(1))
    assert here.grad.asnumpy().tolist() == there.grad.asnumpy().tolist() == [3, 3]
    out = nd.zeros(2, mx.cpu(1))
    nd.elemwise_add(here, here, out=out)
    out += here
    assert (out.asnumpy().tolist(), out.context) == ([3, 3], mx.cpu(1))
    weight = nd.ones(2)
    mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=1.0))(0, there, weight)
    assert weight.asnumpy().tolist() == [0, 0]
    with pytest.raises(DeviceError, match="which it also writes"):
        nd.sgd_mom_update(weight, there, nd.zeros(2, mx.cpu(1)), out=weight, lr=0.1)


def test_node_names_omit_the_namespace():
    with mx.name.NameManager():
        x = mx.sym.var("x")
        symbols = [mx.sym.contrib.box_nms(x), mx.sym.linalg.potrf(x), mx.sym.image.to_tensor(x), mx.sym.random.normal()]
        layer = mx.sym.contrib.SyncBatchNorm(x, key="k")
    assert [each.name for each in symbols] == ["box_nms0", "potrf0", "to_tensor0", "_random_normal0"]
    assert layer.list_arguments() == ["x", "syncbatchnorm0_gamma", "syncbatchnorm0_beta"]


def test_star_imports_of_modules():
    names = {}
    exec("from flowmx.autograd import *", names)
    assert names["NDArray"] is NDArray
    assert names["get_symbol"] is autograd.get_symbol
    mx.install_as_mxnet()  # MXNet's modules list more names than flowmx's
    exec("from mxnet.gluon.nn.basic_layers import *", names)
    assert names["BatchNorm"] is nn.BatchNorm


# -- shapes that depend on values --------------------------------------------------------------------------


class Masked(gluon.HybridBlock):
    def hybrid_forward(self, F, data, index):
        return F.contrib.boolean_mask(data, index) * 2


@pytest.mark.parametrize("hybrid", [False, True])
def test_masks_in_blocks(hybrid):
    block, data = Masked(), nd.arange(6).reshape((3, 2))
    if hybrid:
        block.hybridize()
    data.attach_grad()
    with autograd.record():
        y = block(data, nd.array([1, 0, 1]))
    y.backward()
    assert y.asnumpy().tolist() == [[0, 2], [8, 10]]
    assert data.grad.asnumpy().tolist() == [[2, 2], [0, 0], [2, 2]]
    assert block(data, nd.array([0, 0, 1])).shape == (1, 2)


def test_masks_as_symbols():
    masked = mx.sym.contrib.boolean_mask(mx.sym.var("d"), mx.sym.var("i"), axis=1)
    assert masked.list_arguments() == ["d", "i"]
    assert masked.infer_shape_partial(d=(3, 2), i=(2,))[1] == [(3, 0)]


def bound_mask(request="write", **kwargs):
    masked = mx.sym.contrib.boolean_mask(mx.sym.var("d") * 3, mx.sym.var("i"), axis=1) * 2
    arrays = {"d": nd.arange(6).reshape((3, 2)), "i": nd.array([0, 1])}
    grads = {"d": nd.ones((3, 2))}
    return masked.bind(mx.cpu(), arrays, grads, {"d": request, "i": "null"}, **kwargs)


def test_masks_in_bound_symbols():
    executor = bound_mask()
    assert executor.outputs == []
    for mask, columns in (([0, 1], [1]), ([1, 1], [0, 1]), ([0, 0], [])):
        (result,) = executor.forward(is_train=True, i=nd.array(mask))
        expected = np.arange(6).reshape(3, 2)[:, columns] * 6
        np.testing.assert_array_equal(result.asnumpy(), expected)
        executor.backward(nd.array(expected))
        grad = np.zeros((3, 2))
        grad[:, columns] = expected * 6
        np.testing.assert_array_equal(executor.grad_dict["d"].asnumpy(), grad)
    assert executor.outputs[0].shape == (3, 0)
    with pytest.raises(ShapeError, match=r"out_grad 0 has shape \(2,\), expected \(3, 0\)"):
        executor.backward(nd.ones((2,)))
    with pytest.raises(ShapeError, match="has no plan"):
        _ = executor.plan


def test_gradients_of_masks_are_added_up():
    executor = bound_mask("add")
    executor.backward()
    executor.forward_backward()
    np.testing.assert_array_equal(executor.grad_dict["d"].asnumpy(), [[1, 13]] * 3)


def test_masks_in_bound_symbols_are_shown_to_monitors():
    executor, calls = bound_mask(), []
    executor.set_monitor_callback(lambda name, array: calls.append((name.rstrip("0123456789"), array.shape)))
    executor.forward()
    assert [shape for _, shape in calls] == [(3, 2), (3, 1), (3, 1)]


def test_masks_of_the_wrong_length_are_refused_when_bound():
    masked = mx.sym.contrib.boolean_mask(mx.sym.var("d"), mx.sym.var("i"))
    with pytest.raises(ShapeError, match=r"index has shape \(2,\), expected \(3,\)"):
        masked.bind(mx.cpu(), {"d": nd.ones((3, 2)), "i": nd.ones((2,))})
    with pytest.raises(ShapeError, match="cannot be inferred"):
        masked.simple_bind(mx.cpu(), d=(3, 2), i=(3,))


@pytest.mark.parametrize("draw", [mx.sym.random.uniform, mx.sym.random.normal, mx.sym.zeros, mx.sym.ones])
def test_lengths_of_zero_are_inferred_from_other_inputs(draw):
    samples, x = draw(shape=(0, 3)), mx.sym.var("x")
    assert samples.infer_shape() == (None, None, None)
    assert (samples + x).infer_shape(x=(4, 3))[1] == [(4, 3)]
    values = (samples * x).eval(x=nd.ones((4, 3)))[0].asnumpy()
    assert values.shape == (4, 3)
    with pytest.raises(ShapeError, match=r"cannot be inferred .*\(-1, 3\)"):
        samples.eval()


# -- Gluon -------------------------------------------------------------------------------------------------


def test_old_names_of_saving(tmp_path):
    net, file = nn.HybridSequential(prefix="net_"), str(tmp_path / "net.params")
    with net.name_scope():
        net.add(nn.Dense(2, in_units=3))
    net.initialize()
    with pytest.warns(DeprecationWarning, match="save_params"):
        net.save_params(file)
    assert sorted(nd.load(file)) == ["dense0_bias", "dense0_weight"]
    with pytest.warns(DeprecationWarning, match="load_params"):
        net.load_params(file)
    net.save_parameters(file)
    with pytest.warns(DeprecationWarning, match="load_params"):
        net.load_params(file)


def test_a_symbol_block_of_one_output_gives_an_array():
    a, x = mx.sym.var("a"), nd.ones(2)
    assert isinstance(gluon.SymbolBlock([a * 2], [a])(x), NDArray)
    assert len(gluon.SymbolBlock([a * 2, a + 1], [a])(x)) == 2
    assert isinstance(gluon.SymbolBlock([[a * 2], a], [a])(x)[0], list)


def test_summary_before_the_first_call(capsys):
    net = nn.HybridSequential()
    net.add(nn.Dense(4, activation="relu"), nn.Dense(2))
    net.initialize()
    net.summary(nd.ones((2, 3)))
    first = capsys.readouterr().out
    net.summary(nd.ones((2, 3)))
    assert first == capsys.readouterr().out
    assert [line.split()[0] for line in first.split("=\n")[1].splitlines()[:4]] == [
        "Input", "Activation-1", "Dense-2", "Dense-3"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "layout", "shape"),
    [
        (nn.Conv2D, "NHWC", (2, 5, 6, 4)),
        (nn.Conv3D, "NDHWC", (2, 4, 5, 6, 4)),
        (nn.Conv2DTranspose, "NHWC", (2, 5, 6, 4)),
    ],
)
@pytest.mark.parametrize("channels", [4, 0])
def test_convolutions_with_the_channels_last(layer, layout, shape, channels):
    options = {"kernel_size": 3, "groups": 2, "use_bias": False}
    last = layer(8, layout=layout, in_channels=channels, **options)
    first = layer(8, in_channels=4, **options)
    x, order = nd.random.normal(shape=shape), (0, len(shape) - 1, *range(1, len(shape) - 1))
    for each in (last, first):
        each.initialize()
    actual = last(x)
    assert last.weight.shape == tuple(np.transpose(np.empty(first.weight.shape), (0, *range(2, len(shape)), 1)).shape)
    first.weight.set_data(last.weight.data().transpose(order))
    expected = first(x.transpose(order))
    np.testing.assert_allclose(actual.transpose(order).asnumpy(), expected.asnumpy(), rtol=1e-5, atol=1e-5)
    last.hybridize()
    np.testing.assert_allclose(last(x).asnumpy(), actual.asnumpy(), rtol=1e-5, atol=1e-5)


def test_channels_last_as_mxnet_describes_it():
    layer = nn.Conv2D(16, 3, layout="NHWC", in_channels=4, groups=2)
    assert layer.weight.shape == (16, 3, 3, 2)


def test_shapes_follow_backward_through_transpose():
    net = mx.sym.elemwise_add(mx.sym.transpose(mx.sym.var("a"), axes=(1, 2, 0)), mx.sym.var("b"))
    assert net.infer_shape(b=(2, 3, 4))[0] == [(4, 2, 3), (2, 3, 4)]
    both = mx.sym.elemwise_add(mx.sym.transpose(mx.sym.var("a", shape=(0, 5))), mx.sym.var("b", shape=(5, 7)))
    assert both.infer_shape()[0] == [(7, 5), (5, 7)]


def test_parameters_are_set_while_recording():
    weight, x = gluon.Parameter("w", shape=(2,)), nd.ones(2)
    weight.initialize(init="ones")
    for value in (np.array([5.0, 6.0], np.float32), nd.array([7.0, 8.0])):
        with autograd.record():
            weight.set_data(value)
            z = (weight.data() * x).sum()
        z.backward()
        assert z.asscalar() == np.sum(value).item() if isinstance(value, np.ndarray) else 15
        assert weight.grad().asnumpy().tolist() == [1, 1]
    with autograd.record(), pytest.raises(AutogradError, match="cannot be changed in place"):
        weight.set_data(weight.data() * 2)


def test_a_variable_can_be_overwritten_from_numpy():
    x = nd.ones((2, 2))
    x.attach_grad()
    with autograd.record():
        x[:] = np.full((2, 2), 3.0)
        y = (x * x).sum()
    y.backward()
    assert x.grad.asnumpy().tolist() == [[6, 6], [6, 6]]
    with autograd.record():
        y = (x * x).sum()
        x[:] = np.zeros((2, 2))
    with pytest.raises(AutogradError, match="was changed in place"):
        y.backward()


def test_a_constant_is_compared_in_its_own_type():
    params = gluon.ParameterDict("p_")
    one = params.get_constant("c", np.array([0.1, 2.0]))
    assert params.get_constant("c", np.array([0.1, 2.0])) is one
    with pytest.raises(ValueError, match="another value"):
        params.get_constant("c", np.array([0.2, 2.0]))


def test_initializers_dump_their_arguments():
    for value in (nd.ones(2), np.ones(2)):
        init = mx.init.Constant(value)
        assert init.dumps() == json.dumps(["constant", init._kwargs]) == '["constant", {"value": [1.0, 1.0]}]'


def test_hooks_see_the_names_of_inputs():
    net, calls = nn.HybridSequential(prefix="n_"), []
    with net.name_scope():
        net.add(nn.Dense(2), nn.Activation("relu"), nn.Flatten(), nn.Dropout(0.5))
    net.initialize()
    net.hybridize()
    net.register_op_hook(lambda name, *_: calls.append(name.removeprefix("n_")), monitor_all=True)
    net(nd.ones((2, 3)))
    assert calls == [
        "dense0_fwd_data", "dense0_fwd_weight", "dense0_fwd_bias", "dense0_fwd_output", "relu0_fwd_input0",
        "relu0_fwd_output", "flatten0_flatten0_input0", "flatten0_flatten0_output", "dropout0_fwd_data",
        "dropout0_fwd_output",
    ]  # fmt: skip


def test_there_is_one_table_of_features():
    assert mx.runtime.Features() is mx.runtime.Features()


# -- mixed precision ---------------------------------------------------------------------------------------


def dtypes(symbol, **options):
    converted = mx.contrib.amp.convert_symbol(symbol, cast_optional_params=True, **options)
    shapes = dict.fromkeys(converted.list_arguments(), (1, 2))
    return [np.dtype(each.dtype).name for each in converted.simple_bind(mx.cpu(), **shapes).arg_arrays]


def test_types_of_variables_in_mixed_precision():
    narrow, wide, free = mx.sym.var("a", dtype="float16"), mx.sym.var("b", dtype="float32"), mx.sym.var("c")
    none = {"target_dtype_ops": [], "fp32_ops": []}
    assert dtypes(mx.sym.amp_multicast(wide, narrow, num_outputs=2)) == ["float16", "float16"]
    assert dtypes(mx.sym.amp_multicast(narrow, wide, free, num_outputs=3), **none) == ["float16", "float16", "float32"]
    both = mx.sym.Group([mx.sym.amp_multicast(wide, narrow, num_outputs=2), mx.sym.amp_cast(wide, dtype="float16")])
    assert dtypes(both, **none) == ["float16", "float16"]
    casts = [mx.sym.amp_cast(free, dtype=dtype) for dtype in ("float16", "float32", "float16")]
    assert dtypes(mx.sym.Group(casts[:2]), data_names=[]) == ["float32"]
    assert dtypes(mx.sym.Group(casts[::2]), data_names=[]) == ["float16"]


@pytest.mark.parametrize("optional", [False, True])
def test_parameters_of_unlisted_operators_have_the_type_of_the_data(optional):
    net = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4, name="conv")
    net = mx.sym.FullyConnected(net, num_hidden=3, name="fc")
    shapes = dict(zip(net.list_arguments(), net.infer_shape(data=(1, 1, 5, 5))[0], strict=True))
    arrays = {name: nd.ones(shape) for name, shape in shapes.items() if name != "data"}
    _, params, _ = mx.contrib.amp.convert_model(
        net, arrays, {}, target_dtype_ops=["Convolution"], cast_optional_params=optional
    )
    dtypes = {name: np.dtype(each.dtype).name for name, each in params.items()}
    of_conv = "float16" if optional else "float32"
    assert dtypes == {"conv_weight": of_conv, "conv_bias": of_conv, "fc_weight": "float16", "fc_bias": "float16"}


def test_a_context_is_immutable():
    """A context is shared: setting an attribute to its current value is accepted."""
    context = mx.cpu()
    context.device_typeid, context.device_id = 1, 0
    for name, value in {"device_id": 1, "device_typeid": 2, "device_type": "gpu", "other": 0}.items():
        with pytest.raises(mx.MXNetError, match="is shared and cannot be changed"):
            setattr(context, name, value)
    assert str(mx.cpu()) == "cpu(0)"
