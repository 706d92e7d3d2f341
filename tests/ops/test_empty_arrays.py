"""Arrays without elements and without axes, as in MXNet's numpy shape semantics.

tests/ops/test_recorded_operators.py compares the rows of tests/op_cases/empty.py with MXNet. The tests here cover the
rows that MXNet refuses or crashes on, and functions that are not operators.
"""

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import ShapeError
from tests.op_cases.empty import CASES
from tests.rows import label, operator, rows

nd = mx.nd


@rows("case", CASES, of=operator, name=label)
def test_forward_and_gradient(case):
    arrays = [nd.array(array) for array in case.call_inputs()]
    positions = case.differentiable()
    for position in positions:
        arrays[position].attach_grad()
    with mx.autograd.record(train_mode=case.train) if positions else mx.autograd.pause(train_mode=case.train):
        outputs = nd.op.op(case.op, *arrays, **case.params)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    for array in outputs:
        assert array.asnumpy().shape == array.shape
    if positions:
        mx.autograd.backward(outputs, train_mode=case.train)
        for position in positions:
            gradient = arrays[position].grad.asnumpy()
            assert gradient.shape == arrays[position].shape
            if all(array.size == 0 for array in outputs):
                assert not gradient.any()  # nothing depends on it


@rows("case", CASES, of=operator, name=label)
def test_bound(case):
    arrays = [nd.array(array) for array in case.call_inputs()]
    names = [f"x{index}" for index in range(len(arrays))]
    result = getattr(mx.sym.op, case.op)(*map(mx.sym.Variable, names), **case.params)
    if any(0 in array.shape or array.shape == () for array in arrays) and not arrays:
        return
    values = dict(zip(names, arrays, strict=True))
    states = {name: values.pop(name) for name in result.list_auxiliary_states()}
    executor = result.bind(mx.cpu(), values, grad_req="null", aux_states=states)
    with mx.autograd.pause(train_mode=case.train):
        expected = nd.op.op(case.op, *[nd.array(array) for array in case.call_inputs()], **case.params)
    expected = expected if isinstance(expected, list) else [expected]
    for ours, second in zip(executor.forward(is_train=False), expected, strict=True):
        assert ours.shape == second.shape


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_searches_in_empty_axes(name):
    with pytest.raises(ShapeError, match=rf"{name}: input data has shape \(2, 0\), expected elements along axis 1"):
        getattr(nd, name)(nd.zeros((2, 0)), axis=1)
    assert getattr(nd, name)(nd.zeros((2, 0)), axis=0).shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nd.take(nd.zeros((0, 3)), nd.zeros(2)), r"take: input a has shape \(0, 3\)"),
        (lambda: nd.pick(nd.zeros((3, 0)), nd.zeros(3)), r"pick: input data has shape \(3, 0\)"),
        (lambda: nd.batch_take(nd.zeros((3, 0)), nd.zeros(3)), r"batch_take: input a has shape \(3, 0\)"),
        (lambda: nd.argmax_channel(nd.zeros((3, 0))), r"argmax_channel: input data has shape \(3, 0\)"),
        (
            lambda: nd.pad(nd.zeros((1, 1, 0, 2)), mode="edge", pad_width=(0, 0, 0, 0, 1, 1, 0, 0)),
            r"Pad: pad_width is \(1, 1\) on axis 2",
        ),
        (lambda: nd.softmax_cross_entropy(nd.zeros((2, 0)), nd.zeros(2)), r"softmax_cross_entropy: input data"),
        (lambda: nd.Pooling(nd.zeros((1, 1, 0, 4)), kernel=(2, 2), pad=(1, 1)), r"Pooling: input data has shape"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ShapeError, match=message):
        call()


def test_values_of_empty_reductions():
    nothing = nd.zeros((0, 2))
    np.testing.assert_array_equal(nothing.sum(axis=0).asnumpy(), [0, 0])
    np.testing.assert_array_equal(nothing.prod(axis=0).asnumpy(), [1, 1])
    np.testing.assert_array_equal(nothing.norm(axis=0).asnumpy(), [0, 0])
    with pytest.warns(RuntimeWarning):
        assert np.isnan(nothing.mean(axis=0).asnumpy()).all()


@pytest.mark.parametrize("name", ["sum", "mean", "nansum", "norm", "prod", "max"])
def test_many_empty_rows_have_an_empty_result(name):
    assert getattr(nd, name)(nd.zeros((1000, 0)), axis=0).shape == (0,)
    if name not in ("norm", "nansum"):
        assert getattr(mx.np, name)(mx.np.zeros((1000, 0)), axis=0).shape == (0,)
    assert mx.np.var(mx.np.zeros((1000, 0)), axis=0).shape == (0,)


def test_arrays_without_axes():
    number = nd.array(2.5)
    assert number.shape == ()
    assert number.size == 1
    assert float(number) == 2.5
    assert (number + 1).shape == ()
    assert (number * nd.ones((3,))).shape == (3,)
    assert nd.stack(number, number).shape == (2,)
    assert number.reshape((1, 1)).shape == (1, 1)
    assert nd.expand_dims(number, axis=0).shape == (1,)
    with pytest.raises(ShapeError, match=r"sum: axis is 0"):
        number.sum(axis=0)
    with pytest.raises(TypeError, match="0-d"):
        len(number)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 1)])
def test_functions(shape, tmp_path):
    nothing = nd.zeros(shape)
    assert nothing.size == 0
    assert not nothing
    assert nothing.asnumpy().shape == shape
    assert nothing.copy().shape == nothing.astype("int32").shape == shape
    assert nd.concatenate([nothing, nothing]).shape == (2 * shape[0], *shape[1:])
    assert nothing.T.shape == shape[::-1]
    nd.save(str(tmp_path / "nothing"), [nothing])
    assert nd.load(str(tmp_path / "nothing"))[0].shape == shape
    nothing[:] = 1
    nothing += 1
    assert "x".join(map(str, shape)) in repr(nothing)


def test_an_empty_batch_through_a_network():
    data = mx.sym.Variable("data")
    net = mx.sym.Convolution(data, kernel=(3, 3), num_filter=4, name="conv")
    net = mx.sym.Pooling(mx.sym.Activation(net, act_type="relu"), kernel=(2, 2), stride=(2, 2), pool_type="max")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=3, name="fc"), name="softmax")
    shapes = net.infer_shape(data=(2, 1, 8, 8))[0]
    arrays = {name: nd.ones(shape) for name, shape in zip(net.list_arguments(), shapes, strict=True)}
    arrays["data"], arrays["softmax_label"] = nd.ones((0, 1, 8, 8)), nd.ones((0,))
    gradients = {name: nd.ones(array.shape) for name, array in arrays.items()}
    executor = net.bind(mx.cpu(), arrays, gradients)
    assert executor.forward(is_train=True)[0].shape == (0, 3)
    executor.backward()
    for name in ("conv_weight", "conv_bias", "fc_weight", "fc_bias"):
        assert not gradients[name].asnumpy().any()


MODES = pytest.mark.parametrize(
    "modes", [{}, {"static_alloc": True, "static_shape": True}], ids=["hybridized", "static"]
)


@MODES
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_an_empty_batch_through_many_networks(dtype, modes):
    nn = mx.gluon.nn
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(8, 3, padding=1, activation="relu"), nn.BatchNorm(), nn.MaxPool2D(), nn.Conv2DTranspose(8, 2),
        nn.Conv2D(8, 3, groups=8), nn.PReLU(), nn.LayerNorm(axis=1), nn.GroupNorm(2), nn.InstanceNorm(),
        nn.AvgPool2D(), nn.GlobalAvgPool2D(), nn.Dense(5, activation="tanh"), nn.Dropout(0.5), nn.LayerNorm(),
    )  # fmt: skip
    net.initialize()
    net(nd.ones((2, 3, 12, 12)))
    net.cast(dtype)
    net.hybridize(**modes)
    assert net(nd.zeros((0, 3, 12, 12), dtype=dtype)).asnumpy().shape == (0, 5)
    with mx.autograd.record():
        out = net(nd.zeros((0, 3, 12, 12), dtype=dtype))
    out.backward()
    assert not net[0].weight.grad().asnumpy().any()


@MODES
@pytest.mark.parametrize("calibration", ["none", "naive"])
def test_an_empty_batch_through_a_quantized_network(calibration, modes):
    nn = mx.gluon.nn
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, activation="relu"), nn.MaxPool2D(), nn.Conv2D(8, 3, groups=2), nn.Flatten(), nn.Dense(5))
    net.initialize()
    images = nd.random.normal(shape=(4, 3, 12, 12))
    net(images)
    data = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(images, nd.zeros(4)), 4)
    inputs = {"calib_data": data} if calibration == "naive" else {"data_shapes": [("data", images.shape)]}
    quantized = mx.contrib.quantization.quantize_net_v2(net, calib_mode=calibration, **inputs)
    quantized.hybridize(**modes)
    for batch in (4, 0, 1):
        assert quantized(images[:batch]).asnumpy().shape == (batch, 5)
