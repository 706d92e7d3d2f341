"""Prediction in 16 bits is computed in float32, from parameters that are cast once."""

import numpy as np
import pytest

import flowmx as mx

DTYPES = ["float16", "bfloat16"]


def network(dtype):
    net = mx.gluon.nn.HybridSequential()
    net.add(
        mx.gluon.nn.Conv2D(8, 3, padding=1), mx.gluon.nn.BatchNorm(), mx.gluon.nn.Activation("relu"),
        mx.gluon.nn.GlobalAvgPool2D(), mx.gluon.nn.Dense(5),
    )  # fmt: skip
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 3, 6, 6)))
    net.cast(dtype)
    return net


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_keep_their_dtype_and_match_float32(dtype):
    net = network(dtype)
    x = mx.nd.random.normal(shape=(2, 3, 6, 6)).astype(dtype)
    expected = net(x)
    net.hybridize()
    arrays = net(x)
    assert arrays.dtype == expected.dtype
    one, other = (each.astype("float32").asnumpy() for each in (arrays, expected))
    np.testing.assert_allclose(one, other, atol=0.03)


@pytest.mark.parametrize("dtype", DTYPES)
def test_new_parameters_apply_immediately(dtype):
    net = network(dtype)
    net.hybridize(static_alloc=True)
    x = mx.nd.ones((2, 3, 6, 6), dtype=dtype)
    before = net(x).astype("float32").asnumpy()
    bias = net[4].bias
    bias.set_data(bias.data() + 1)
    np.testing.assert_allclose(net(x).astype("float32").asnumpy(), before + 1, atol=0.05)


def test_training_keeps_its_dtype():
    net = network("float16")
    net.hybridize()
    x = mx.nd.ones((2, 3, 6, 6), dtype="float16")
    with mx.autograd.record():
        loss = net(x).sum()
    loss.backward()
    assert net[0].weight.grad().dtype == np.float16


def test_operators_with_an_explicit_dtype_keep_it():
    data = mx.sym.var("data", dtype="float16")
    net = mx.sym.Cast(mx.sym.FullyConnected(data, num_hidden=2, no_bias=True, name="fc"), dtype="float16")
    expected = mx.nd.array([[1.0, 2048.0]], dtype="float16"), mx.nd.array([[1.0, 1.0], [0.0, 1.0]], dtype="float16")
    bound = net.bind(mx.cpu(), {"data": expected[0], "fc_weight": expected[1]})
    result = bound.forward()[0]
    assert result.dtype == np.float16
    np.testing.assert_array_equal(
        result.asnumpy(), np.array([[2048, 2048]], np.float16)
    )  # float16 cannot represent 2049
