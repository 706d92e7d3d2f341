"""Neural-network operators beyond the tables of tests/op_cases: dtypes, modes, refusals."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.devices import cpu_pool
from flowmx.devices.cpu_device import CPUDevice
from flowmx.ops.registry.operators import lookup


def nd(*shape, dtype="float32"):
    return mx.nd.array(np.random.default_rng(len(shape)).standard_normal(shape), dtype=dtype)


def gradient(array):
    assert array.grad is not None
    return array.grad.asnumpy()


REFUSED = [
    ("FullyConnected", [(2, 3), (4, 5)], {"num_hidden": 4, "no_bias": True},
     r"weight has shape \(4, 5\), expected \(4, 3\)"),
    ("FullyConnected", [(2, 3), (4, 3), (5,)], {"num_hidden": 4}, r"bias has shape \(5,\), expected \(4,\)"),
    ("FullyConnected", [(2, 3), (4, 3), (4,)], {"num_hidden": 0}, "num_hidden is 0"),
    ("Convolution", [(1, 2, 5, 5), (4, 2, 3, 3), (4,)], {"num_filter": 4}, "missing parameter kernel"),
    ("Convolution", [(1, 2, 2, 5), (4, 2, 3, 3), (4,)], {"kernel": (3, 3), "num_filter": 4},
     "smaller than one window"),
    ("Convolution", [(1, 2, 5), (4, 2, 3, 3), (4,)], {"kernel": (3, 3), "num_filter": 4}, "expected 4 axes"),
    ("Convolution", [(1, 3, 5, 5), (4, 2, 3, 3), (4,)], {"kernel": (3, 3), "num_filter": 4, "num_group": 2},
     "num_group 2"),
    ("Convolution", [(1, 2, 5, 5), (4, 2, 3, 3), (4,)], {"kernel": (3, 3), "num_filter": 4, "stride": (1,)},
     "stride is"),
    ("Convolution", [(1, 2, 5, 5), (4, 2, 3, 3), (4,)], {"kernel": (3, 3), "num_filter": 4, "layout": "NHWC"},
     "layout is 'NHWC', expected 'NCHW'"),
    ("Deconvolution", [(1, 2, 3, 3), (2, 2, 2, 2)], {"kernel": (2, 2), "num_filter": 2, "target_shape": (9, 9)},
     "target_shape"),
    ("Deconvolution", [(1, 2, 3, 3), (2, 2, 2, 2)], {"kernel": (2, 2), "num_filter": 2, "adj": (1, 1)}, "adj is"),
    ("Pooling", [(1, 2, 5, 5)], {}, "kernel is missing"),
    ("Pooling", [(1, 2, 5, 5)], {"kernel": (2, 2), "pad": (2, 2)}, "pad is"),
    ("Pooling", [(1, 2, 1, 5)], {"kernel": (2, 2)}, "smaller than one window"),
    ("Pooling", [(1, 2, 5, 5)], {"kernel": (2, 2), "pool_type": "lp"}, "p_value is missing"),
    ("Pooling", [(1, 2, 5, 5)], {"kernel": (2, 2), "pool_type": "min"}, "pool_type is 'min'"),
    ("Activation", [(2,)], {"act_type": "swish"}, "act_type is 'swish'"),
    ("LeakyReLU", [(2, 3), (4,)], {"act_type": "prelu"}, r"gamma has shape \(4,\)"),
    ("softmax", [(2, 3)], {"axis": 2}, "axis is 2"),
    ("BatchNorm", [(2, 3), (4,), (3,), (3,), (3,)], {}, r"gamma has shape \(4,\), expected \(3,\)"),
    ("GroupNorm", [(2, 3, 4), (2,), (2,)], {"num_groups": 2}, "num_groups 2"),
    ("LRN", [(2, 3, 4, 4)], {"nsize": 4}, "nsize is 4"),
    ("Dropout", [(2, 3)], {"p": 1.5}, "p is 1.5"),
    ("Dropout", [(2, 3)], {"axes": (2,)}, "axes are"),
    ("SoftmaxOutput", [(4, 3), (3,)], {}, r"label has shape \(3,\), expected \(4,\)"),
    ("LinearRegressionOutput", [(4, 3), (4,)], {}, r"label has shape \(4,\), expected \(4, 3\)"),
    ("sgd_update", [(4, 3), (3, 4)], {"lr": 0.1}, r"grad has shape \(3, 4\), expected \(4, 3\)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shapes", "params", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused_at_the_call(name, shapes, params, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        mx.nd.op.op(name, *(nd(*shape) for shape in shapes), **params)
    assert name in str(caught.value)


# operator, parameters, known input shapes, completed input shapes, output shapes
INFERRED = [
    ("FullyConnected", {"num_hidden": 5}, [(7, 2, 3)], [(7, 2, 3), (5, 6), (5,)], [(7, 5)]),
    ("FullyConnected", {"num_hidden": 5}, [(-1, 2, 3)], [(-1, 2, 3), (5, 6), (5,)], [(-1, 5)]),
    ("FullyConnected", {"num_hidden": 5}, [None], [None, None, None], [None]),
    ("Convolution", {"kernel": (3, 3), "num_filter": 8}, [(-1, 4, 9, -1)],
     [(-1, 4, 9, -1), (8, 4, 3, 3), (8,)], [(-1, 8, 7, -1)]),
    ("Convolution", {"kernel": (3, 3), "num_filter": 8}, [None], [None, None, None], [None]),
    ("Deconvolution", {"kernel": (2, 2), "num_filter": 8, "stride": (2, 2)}, [(1, 4, 3, -1)],
     [(1, 4, 3, -1), (4, 8, 2, 2)], [(1, 8, 6, -1)]),
    ("Pooling", {"kernel": (2, 2), "stride": (2, 2)}, [(-1, 4, 9, 8)], [(-1, 4, 9, 8)], [(-1, 4, 4, 4)]),
    ("BatchNorm", {}, [(-1, 4, 9)], [(-1, 4, 9), (4,), (4,), (4,), (4,)], [(-1, 4, 9), (4,), (4,), (1,)]),
    ("LeakyReLU", {"act_type": "prelu"}, [(2, 4, 9)], [(2, 4, 9), (4,)], [(2, 4, 9)]),
    ("SoftmaxOutput", {}, [(6, 3)], [(6, 3), (6,)], [(6, 3)]),
    ("SoftmaxOutput", {"multi_output": True}, [(6, 3, 4, 5)], [(6, 3, 4, 5), (6, 20)], [(6, 3, 4, 5)]),
    ("SoftmaxOutput", {"multi_output": True}, [(6, 3, -1, 5)], [(6, 3, -1, 5), (6, -1)], [(6, 3, -1, 5)]),
    ("SoftmaxOutput", {"multi_output": True}, [(6, 3, 4, 5), (6, 1, -1, 5)],
     [(6, 3, 4, 5), (6, 1, 4, 5)], [(6, 3, 4, 5)]),
    ("LinearRegressionOutput", {}, [(6, 3)], [(6, 3), (6, 3)], [(6, 3)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "params", "known_shapes", "inputs", "outputs"), INFERRED, ids=lambda value: str(value)[:40]
)
def test_shapes_of_inputs_follow_from_the_data(name, params, known_shapes, inputs, outputs):
    op = lookup(name).create(**params)
    missing = len(op.inputs()) + len(op.auxiliary) - len(known_shapes)
    assert op.infer_shape([*known_shapes, *[None] * missing]) == (inputs, outputs)


def test_batch_norm_uses_batch_statistics_only_in_training():
    x, gamma, beta = nd(8, 3, 4), mx.nd.ones((3,)), mx.nd.zeros((3,))
    mean, var = mx.nd.zeros((3,)), mx.nd.ones((3,))
    mx.nd.BatchNorm(x, gamma, beta, mean, var)
    assert not mean.asnumpy().any()
    with mx.autograd.train_mode():
        mx.nd.BatchNorm(x, gamma, beta, mean, var, momentum=0.75)
    host = x.asnumpy()
    np.testing.assert_allclose(mean.asnumpy(), 0.25 * host.mean(axis=(0, 2)), rtol=1e-5)
    np.testing.assert_allclose(var.asnumpy(), 0.75 + 0.25 * host.var(axis=(0, 2)), rtol=1e-5)


def test_batch_norm_returns_its_statistics():
    x = nd(8, 3)
    ones = [mx.nd.ones((3,)) for _ in range(4)]
    with mx.autograd.train_mode():
        _, mean, inverse = mx.nd.BatchNorm(x, *ones, output_mean_var=True, eps=1e-3)
    np.testing.assert_allclose(mean.asnumpy(), x.asnumpy().mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(inverse.asnumpy(), 1 / np.sqrt(x.asnumpy().var(axis=0) + 1e-3), rtol=1e-5)


def test_a_gradient_recorded_in_predict_mode_stays_so():
    x, data = mx.nd.ones((4, 3)), [mx.nd.ones((3,)) for _ in range(4)]
    x.attach_grad()
    with mx.autograd.record(train_mode=False):
        y = mx.nd.Dropout(mx.nd.BatchNorm(x, *data))
    y.backward()  # the backward pass counts as training by default
    np.testing.assert_allclose(gradient(x), 1 / np.sqrt(1.001), rtol=1e-5)


def test_max_pooling_recorded_in_predict_mode_has_a_gradient():
    x = mx.nd.array(np.random.default_rng(0).permutation(288).reshape(1, 8, 6, 6))  # oneDNN's layout of 8 channels
    x.attach_grad()
    with mx.autograd.record(train_mode=False):
        y = mx.nd.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")
    y.backward(train_mode=False)
    assert sorted(x.asnumpy()[gradient(x) == 1]) == sorted(y.asnumpy().ravel())
    assert gradient(x).sum() == y.size


@pytest.mark.parametrize("recorded", [True, False])
def test_moving_statistics_follow_in_the_forward_pass(recorded):
    x, ones = mx.nd.array([[1.0, 5], [3, 5]]), [mx.nd.ones((2,)) for _ in range(4)]
    with mx.autograd.record() if recorded else mx.autograd.train_mode():
        mx.nd.BatchNorm(x, *ones)  # data needs no gradient, so there is no backward pass
    np.testing.assert_allclose(ones[2].asnumpy(), [1.1, 1.4], rtol=1e-6)
    np.testing.assert_allclose(ones[3].asnumpy(), [1, 0.9], rtol=1e-6)


@pytest.mark.parametrize(("params", "keep_rate"), [({}, 0.5), ({"p": 0.1}, 0.9), ({"p": 1.0}, 0.0), ({"p": 0.0}, 1.0)])
def test_dropout_keeps_the_mean(params, keep_rate):
    mx.random.seed(1)
    with mx.autograd.train_mode():
        result = mx.nd.Dropout(mx.nd.ones((100, 100)), **params).asnumpy()
    assert abs((result != 0).mean() - keep_rate) < 0.02
    assert np.isfinite(result).all() and (keep_rate == 0 or abs(result.mean() - 1) < 0.03)
    assert (mx.nd.Dropout(mx.nd.ones((10,))).asnumpy() == 1).all()
    assert mx.nd.Dropout(mx.nd.ones((1000,)), mode="always").asnumpy().min() == 0


def test_max_pooling_is_exact_where_gradients_are_infinite():
    x = mx.nd.array(np.arange(16).reshape(1, 1, 4, 4))
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Pooling(x, kernel=(2, 2), stride=(2, 2))
    y.backward(mx.nd.array([[[[np.inf, 1], [np.nan, 2]]]]))
    grads = gradient(x)[0, 0]
    assert np.isinf(grads[1, 1]) and np.isnan(grads[3, 1]) and np.isfinite(grads).sum() == 14


def test_elements_outside_all_pooling_windows_have_no_gradient(monkeypatch):
    real = cpu_pool.allocate

    def allocate(shape, dtype):
        result = real(shape, dtype)
        result.fill(np.nan)
        return result

    monkeypatch.setattr(CPUDevice, "allocate", staticmethod(allocate))
    x = mx.nd.ones((1, 1, 2, 3), dtype="float64")
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Pooling(x, kernel=(3, 3), stride=(3, 3), pad=(1, 1))
    y.backward()
    np.testing.assert_array_equal(gradient(x)[0, 0], [[1, 0, 0], [0, 0, 0]])


HALF = [
    ("FullyConnected", [(3, 4), (5, 4), (5,)], {"num_hidden": 5}),
    ("Convolution", [(2, 3, 6, 5), (4, 3, 3, 2), (4,)], {"kernel": (3, 2), "num_filter": 4}),
    ("Deconvolution", [(2, 3, 4, 3), (3, 2, 3, 3)], {"kernel": (3, 3), "num_filter": 2}),
    ("Pooling", [(2, 3, 6, 6)], {"kernel": (2, 2), "stride": (2, 2)}),
    ("Pooling", [(2, 3, 6, 6)], {"kernel": (3, 3), "pool_type": "avg"}),
    ("Activation", [(3, 4)], {"act_type": "sigmoid"}),
    ("LeakyReLU", [(3, 4)], {"act_type": "elu"}),
    ("softmax", [(3, 4)], {}),
    ("log_softmax", [(3, 4)], {}),
    ("LayerNorm", [(3, 4), (4,), (4,)], {}),
    ("L2Normalization", [(3, 4)], {}),
    ("LRN", [(2, 5, 3, 2)], {"nsize": 3}),
]


@pytest.mark.parametrize(("name", "shapes", "params"), HALF, ids=lambda value: str(value)[:40])
def test_half_precision_is_close_to_single(name, shapes, params):
    results = []
    for dtype in ("float16", "float32"):
        arrays = [nd(*shape).astype("float16").astype(dtype) for shape in shapes]
        for item in arrays:
            item.attach_grad()
        with mx.autograd.record():
            result = mx.nd.op.op(name, *arrays, **params)
        result.backward()
        assert result.dtype == np.dtype(dtype).type
        results.append([result.asnumpy(), *(item.grad.asnumpy() for item in arrays)])
    for half, single in zip(*results, strict=True):
        np.testing.assert_allclose(half, single, rtol=2e-2, atol=2e-2)


def test_views_are_valid_inputs():
    x = nd(4, 3, 6, 6)
    weight = nd(5, 3, 3, 3)
    part = x[1:3]
    result = mx.nd.Convolution(part, weight, kernel=(3, 3), num_filter=5, no_bias=True)
    full = mx.nd.Convolution(x, weight, kernel=(3, 3), num_filter=5, no_bias=True)
    np.testing.assert_allclose(result.asnumpy(), full.asnumpy()[1:3], rtol=1e-5, atol=1e-5)


def test_half_weights_have_a_master_copy():
    weight, grad = mx.nd.array([1, 2], dtype="float16"), mx.nd.array([1e-4, 1e-4], dtype="float16")
    master = mx.nd.array([1, 2], dtype="float32")
    for _ in range(10):
        mx.nd.mp_sgd_update(weight, grad, master, lr=0.1, out=weight)
    np.testing.assert_allclose(master.asnumpy(), np.array([0.9999, 1.9999]), rtol=1e-5)
    assert weight.dtype == np.float16


def test_softmax_of_large_numbers_is_finite():
    result = mx.nd.softmax(mx.nd.array([[1e4, 0.0, -1e4]])).asnumpy()
    np.testing.assert_array_equal(result, [[1, 0, 0]])
    assert np.isfinite(mx.nd.log_softmax(mx.nd.array([[1e4, 0.0, -1e4]])).asnumpy()).all()


def test_an_unknown_class_has_no_separate_gradient():
    x = nd(2, 3)
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.SoftmaxOutput(x, mx.nd.array([7, -2]))
    y.backward()
    np.testing.assert_allclose(gradient(x), y.asnumpy(), rtol=1e-6)


LABEL_SHAPES = [(2, 4, 5), (2, 1, 4, 5), (2, 20)]


@pytest.mark.parametrize("shape", LABEL_SHAPES, ids=str)
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"use_ignore": True, "ignore_label": 1, "normalization": "valid"},
        {"normalization": "batch", "out_grad": True},
    ],
    ids=["plain", "valid", "batch"],
)
def test_labels_of_many_positions_in_each_shape(shape, params):
    classes = np.arange(40).reshape(2, 4, 5) * 7 % 3
    x = nd(2, 3, 4, 5)
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.SoftmaxOutput(x, mx.nd.array(classes.reshape(shape)), multi_output=True, **params)
    y.backward()
    expected = y.asnumpy() - np.moveaxis(np.eye(3)[classes], -1, 1)
    if "use_ignore" in params:
        expected *= (classes != 1)[:, None]
        expected /= (classes != 1).sum()
    else:
        expected /= 20 * (2 if params else 1)  # normalized by the positions, and by the batch
    np.testing.assert_allclose(gradient(x), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", LABEL_SHAPES, ids=str)
def test_a_module_takes_labels_of_many_positions_in_each_shape(shape):
    scores = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(1, 1), num_filter=3, name="scores")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(scores, multi_output=True, name="softmax"))
    module.bind([("data", (2, 1, 4, 5))], [("softmax_label", shape)])
    module.init_params(mx.init.One())
    module.forward_backward(mx.io.DataBatch([nd(2, 1, 4, 5)], [mx.nd.zeros(shape)]))
    assert module.get_outputs()[0].shape == (2, 3, 4, 5)
    bias = module._exec_group.execs[0].grad_dict["scores_bias"].asnumpy()
    np.testing.assert_allclose(bias, [-4 / 3, 2 / 3, 2 / 3], rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 1, 20), (2, 1, 5, 4), (20, 2)], ids=str)
def test_labels_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="label has shape"):
        mx.nd.SoftmaxOutput(nd(2, 3, 4, 5), mx.nd.zeros(shape), multi_output=True)


def test_the_target_shape_of_a_deconvolution_overrides_pad_and_adj():
    data, weight = mx.nd.array(np.arange(16.0).reshape(1, 1, 4, 4)), mx.nd.array(np.arange(9.0).reshape(1, 1, 3, 3))
    arguments = {"kernel": (3, 3), "num_filter": 1, "stride": (2, 2)}
    expected = mx.nd.Deconvolution(data, weight, **arguments, pad=(1, 1), adj=(1, 1))
    actual = mx.nd.Deconvolution(data, weight, **arguments, target_shape=(8, 8), pad=(99, 99), adj=(101, 101))
    np.testing.assert_array_equal(actual.asnumpy(), expected.asnumpy())


def test_pooling_uses_one_number_of_pad_for_each_axis():
    data = mx.nd.array(np.arange(10.0).reshape(1, 1, 10))
    actual = mx.nd.Pooling(data, kernel=2, stride=2, pad=(0, 0, 0), pool_type="max", pooling_convention="same")
    assert actual.asnumpy().ravel().tolist() == [1, 3, 5, 7, 9]


# As in MXNet 1.9.1, the axes of slopes belong to the batch and the channels.
@pytest.mark.parametrize(("shape", "slopes", "spread"), [
    ((2, 3), (3,), (1, 3)), ((2, 3), (2,), (2, 1)), ((2, 3), (2, 3), (2, 3)), ((2, 3), (1, 3), (1, 3)),
    ((2, 3, 4), (2, 1), (2, 1, 1)), ((2, 3, 4, 5), (2, 3), (2, 3, 1, 1)), ((2, 3, 4, 5), (1,), (1, 1, 1, 1)),
    ((4,), (4,), (4,)), ((4,), (1,), (1,)),
])  # fmt: skip
def test_slopes_of_prelu_broadcast_along_the_batch_and_the_channels(shape, slopes, spread):
    data, gamma = nd(*shape), nd(*slopes)
    for item in (data, gamma):
        item.attach_grad()
    with mx.autograd.record():
        out = mx.nd.LeakyReLU(data, gamma, act_type="prelu")
    out.backward()
    x, slope = data.asnumpy(), gamma.asnumpy().reshape(spread)
    np.testing.assert_allclose(out.asnumpy(), np.where(x > 0, x, x * slope), rtol=1e-6)
    np.testing.assert_allclose(gradient(data), np.where(x > 0, 1, np.broadcast_to(slope, shape)), rtol=1e-6)
    axes = tuple(axis for axis, length in enumerate(spread) if length == 1)
    expected = np.minimum(x, 0).sum(axis=axes, keepdims=True).reshape(slopes)
    np.testing.assert_allclose(gradient(gamma), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["depth_to_space", "space_to_depth"])
def test_empty_blocks_are_refused(name):
    with pytest.raises(mx.MXNetError, match="at least one element"):
        getattr(mx.nd, name)(mx.nd.zeros((0, 4, 2, 2)), block_size=2)


def test_take_refuses_indices_below_zero():
    with pytest.raises(IndexError, match="indices from -1 to 0, expected 0 to 2"):
        mx.nd.take(mx.nd.array([1, 2, 3]), mx.nd.array([-1, 0]), mode="raise").asnumpy()
