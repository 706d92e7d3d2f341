"""Spatial operators beyond the tables: names, shapes, dtypes, empty batches, refusals."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.test_utils import assert_almost_equal


def nd(*shape, dtype="float32"):
    return mx.nd.array(np.random.default_rng(len(shape)).standard_normal(shape), dtype=dtype)


# operator, parameters, given shapes by argument, arguments, outputs, output shapes
AFFINE = {"transform_type": "affine", "target_shape": (3, 4)}
INFERRED = [
    ("UpSampling", {"scale": 2, "sample_type": "bilinear", "num_filter": 3}, {"data": (2, 3, 4, 5)},
     ["data", "n_weight"], [(3, 1, 4, 4)], [(2, 3, 8, 10)]),
    ("UpSampling", {"scale": 2, "sample_type": "bilinear", "num_filter": 3, "num_args": 2}, {"data": (2, 3, 4, 5)},
     ["data", "n_weight"], [(3, 1, 4, 4)], [(2, 3, 8, 10)]),
    ("UpSampling", {"scale": 2, "sample_type": "nearest"}, {"data": (2, 3, 4, 5)}, ["data"], [], [(2, 3, 8, 10)]),
    ("BilinearSampler", {}, {"data": (2, 3, 4, 5), "n_grid": (2, 2, 3, 3)}, ["data", "n_grid"], [(2, 2, 3, 3)],
     [(2, 3, 3, 3)]),
    ("GridGenerator", AFFINE, {"data": (2, 6)}, ["data"], [], [(2, 2, 3, 4)]),
    ("SpatialTransformer", {**AFFINE, "sampler_type": "bilinear"}, {"data": (2, 3, 5, 5)}, ["data", "n_loc"],
     [(2, 6)], [(2, 3, 3, 4)]),
    ("Correlation", {}, {"data": (2, 3, 6, 7)}, ["data", "n_data2"], [(2, 3, 6, 7)], [(2, 9, 4, 5)]),
    ("_contrib_BilinearResize2D", {"mode": "like"}, {"data": (2, 3, 6, 7), "n_like": (1, 1, 9, 4)},
     ["data", "n_like"], [(1, 1, 9, 4)], [(2, 3, 9, 4)]),
    ("_contrib_AdaptiveAvgPooling2D", {"output_size": 2}, {"data": (2, 3, 6, 7)}, ["data"], [], [(2, 3, 2, 2)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "params", "given", "names", "others", "outputs"), INFERRED,
                         ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_names_and_shapes_as_mxnet(name, params, given, names, others, outputs):
    net = getattr(mx.sym, name)(mx.sym.Variable("data"), name="n", **params)
    assert net.list_arguments() == names
    assert net.list_outputs() == ["n_output"]
    shapes, result, _ = net.infer_shape(**given)
    assert shapes[1:] == others
    assert result == outputs


def test_adaptive_pooling_to_one_is_global():
    x = nd(2, 3, 5, 4)
    assert_almost_equal(mx.nd.contrib.AdaptiveAvgPooling2D(x), x.mean(axis=(2, 3), keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(("name", "params", "shape"), [
    ("UpSampling", {"scale": 2, "sample_type": "nearest"}, (2, 3, 4, 5)),
    ("_contrib_BilinearResize2D", {"height": 7, "width": 3}, (2, 3, 4, 5)),
    ("_contrib_BilinearResize2D", {"height": 70, "width": 40}, (1, 1, 40, 50)),
    ("_contrib_AdaptiveAvgPooling2D", {"output_size": (3, 2)}, (2, 3, 4, 5)),
    ("_contrib_AdaptiveAvgPooling2D", {"output_size": (3, 2)}, (0, 3, 4, 5)),
    ("_contrib_BilinearResize2D", {"height": 7, "width": 3}, (0, 3, 4, 5)),
    ("UpSampling", {"scale": 2, "sample_type": "nearest"}, (0, 3, 4, 5)),
])  # fmt: skip
def test_half_precision_and_empty_batches(name, params, shape):
    outputs = []
    for dtype in ("float32", "float16"):
        x = mx.nd.array(np.random.default_rng(0).standard_normal(shape), dtype=dtype)
        x.attach_grad()
        with mx.autograd.record():
            y = mx.nd.op.op(name, x, **params)
        y.backward()
        assert x.grad is not None
        assert y.dtype == x.grad.dtype == np.dtype(dtype)
        outputs.append((y.astype("float32"), x.grad.astype("float32")))
    for one, other in zip(*outputs, strict=True):
        assert_almost_equal(one, other, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["BilinearSampler", "SpatialTransformer"])
def test_sampling_in_half_precision_and_of_no_examples(name):
    params = {} if name == "BilinearSampler" else {**AFFINE, "sampler_type": "bilinear"}
    for batch, dtype in ((2, "float16"), (0, "float32")):
        data = mx.nd.array(np.ones((batch, 3, 5, 5)), dtype=dtype)
        where = np.zeros((batch, 2, 3, 4)) if name == "BilinearSampler" else np.full((batch, 6), 0.1)
        data.attach_grad()
        with mx.autograd.record():
            y = getattr(mx.nd, name)(data, mx.nd.array(where, dtype=dtype), **params)
        y.backward()
        assert y.shape == (batch, 3, 3, 4)
        assert data.grad is not None
        np.testing.assert_allclose(y.asnumpy(), 1)
        np.testing.assert_allclose(data.grad.asnumpy().sum(), batch * 3 * 12, rtol=1e-2)


def test_identity_transformations_keep_the_image():
    x = nd(2, 3, 4, 5)
    same = mx.nd.array([[1, 0, 0, 0, 1, 0]] * 2)
    output = mx.nd.SpatialTransformer(x, same, target_shape=(4, 5), transform_type="affine", sampler_type="bilinear")
    assert_almost_equal(output, x, rtol=1e-5, atol=1e-6)
    still = mx.nd.GridGenerator(mx.nd.zeros((2, 2, 4, 5)), transform_type="warp")
    assert_almost_equal(mx.nd.BilinearSampler(x, still), x, rtol=1e-5, atol=1e-6)


def test_pooling_with_the_channels_last_in_a_graph():
    net = mx.sym.Pooling(mx.sym.Variable("data"), kernel=(2, 2), stride=(2, 2), layout="NHWC", pool_type="max")
    assert net.infer_shape_partial(data=(2, 0, 6, 3))[1] == [(2, 0, 3, 3)]
    executor = net.simple_bind(mx.cpu(), data=(2, 6, 6, 3))
    x = np.random.default_rng(0).standard_normal((2, 6, 6, 3)).astype("float32")
    executor.arg_dict["data"][:] = x
    expected = x.reshape(2, 3, 2, 3, 2, 3).max(axis=(2, 4))
    np.testing.assert_array_equal(executor.forward(is_train=True)[0].asnumpy(), expected)
    executor.backward([mx.nd.ones((2, 3, 3, 3))])
    whole = expected.repeat(2, axis=1).repeat(2, axis=2)
    np.testing.assert_array_equal(executor.grad_dict["data"].asnumpy(), x == whole)


@pytest.mark.parametrize("name", ["BatchNorm", "_contrib_SyncBatchNorm", "_contrib_BatchNormWithReLU"])
def test_an_empty_batch_leaves_the_moving_statistics(name):
    states = [mx.nd.array([1, 2, 3]), mx.nd.array([4, 5, 6])]
    data = mx.nd.array(np.zeros((0, 3, 4, 4), "float32"))
    params = {"key": "layer"} if "Sync" in name else {}
    with mx.autograd.record():
        outputs = mx.nd.op.op(name, data, mx.nd.ones((3,)), mx.nd.zeros((3,)), *states, **params)
    assert outputs.asnumpy().shape == data.shape
    assert [each.asnumpy().tolist() for each in states] == [[1, 2, 3], [4, 5, 6]]


REFUSED = [
    ("Pooling", [(2, 4, 4, 3)], {"kernel": (2, 2), "layout": "NWC"}, "expected 'NCHW' or 'NHWC' or None"),
    ("Pooling", [(2, 4, 3)], {"global_pool": True, "layout": "NHWC"}, "expected 4 axes"),
    ("UpSampling", [(2, 3, 4, 4)], {"scale": 0, "sample_type": "nearest"}, "scale is 0"),
    ("UpSampling", [(2, 3, 4)], {"scale": 2, "sample_type": "nearest"}, "expected 4 axes"),
    ("UpSampling", [(2, 3, 4, 4)], {"scale": 2, "sample_type": "cubic"}, "sample_type is 'cubic'"),
    ("UpSampling", [(2, 3, 4, 4), (2, 3, 3, 3)], {"scale": 2, "sample_type": "nearest"}, "does not divide"),
    ("UpSampling", [(2, 3, 4, 4), (2, 1, 4, 4)],
     {"scale": 2, "sample_type": "nearest", "multi_input_mode": "sum"}, "expected 3 channels"),
    ("UpSampling", [(2, 3, 4, 4), (3, 1, 4, 4)], {"scale": 2, "sample_type": "bilinear"}, "num_filter is 0"),
    ("UpSampling", [(2, 3, 4, 4)], {"scale": 2, "sample_type": "bilinear", "num_filter": 3}, "weight is missing"),
    ("UpSampling", [(2, 4, 4, 4), (3, 1, 4, 4)], {"scale": 2, "sample_type": "bilinear", "num_filter": 3},
     "expected 3 channels"),
    ("GridGenerator", [(2, 6)], {"transform_type": "affine"}, "target_shape is"),
    ("GridGenerator", [(2, 5)], AFFINE, r"data has shape \(2, 5\), expected \(-1, 6\)"),
    ("BilinearSampler", [(2, 3, 4, 4), (1, 2, 4, 4)], {}, r"grid has shape \(1, 2, 4, 4\)"),
    ("SpatialTransformer", [(2, 3, 4, 4), (2, 5)], {**AFFINE, "sampler_type": "bilinear"}, r"loc has shape \(2, 5\)"),
    ("Correlation", [(2, 3, 6, 6), (2, 3, 6, 6)], {"kernel_size": 2}, "kernel_size is 2"),
    ("Correlation", [(2, 3, 6, 6), (2, 3, 6, 6)], {"max_displacement": 3}, "too small"),
    ("Correlation", [(2, 3, 6, 6), (2, 3, 6, 7)], {}, r"data2 has shape \(2, 3, 6, 7\)"),
    ("_contrib_BilinearResize2D", [(2, 3, 6, 6)], {"mode": "odd_scale"}, "needs scale_height"),
    ("_contrib_BilinearResize2D", [(2, 3, 6, 6)], {"scale_height": 0.1, "scale_width": 1.0}, "resized to"),
    ("_contrib_AdaptiveAvgPooling2D", [(2, 3, 6, 6)], {"output_size": (1, 2, 3)}, "output_size is"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shapes", "params", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused_at_the_call(name, shapes, params, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        mx.nd.op.op(name, *(nd(*shape) for shape in shapes), **params)
    assert name in str(caught.value)


class Lateral(mx.gluon.HybridBlock):
    """A lateral connection of a SwiftNet: the upper feature map is resized like the lower one, and added to it."""

    def hybrid_forward(self, F, x):
        low = F.relu(x)
        high = F.Pooling(low * 1.5, kernel=(2, 2), stride=(2, 2), pool_type="avg")
        high = F.contrib.BilinearResize2D(high * high, like=low, mode="like")
        return (high + low * 2) ** 2


@pytest.mark.parametrize("ways", [None, {}, {"static_alloc": True, "static_shape": True}], ids=str)
def test_the_size_reference_of_a_resize_has_no_gradient(ways):
    net = Lateral()
    if ways is not None:
        net.hybridize(**ways)
    rng = np.random.default_rng(0)
    point, direction = rng.standard_normal((2, 1, 2, 8, 8))
    x = mx.nd.array(point, dtype="float64")
    x.attach_grad()
    with mx.autograd.record():
        loss = net(x).sum()
    loss.backward()
    above, below = (net(mx.nd.array(point + s * direction, dtype="float64")).sum().asscalar() for s in (1e-6, -1e-6))
    assert (x.grad.asnumpy() * direction).sum() == pytest.approx((above - below) / 2e-6, rel=1e-6)
