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
def test_results_keep_their_type_and_are_as_those_of_float32(dtype):
    net = network(dtype)
    x = mx.nd.random.normal(shape=(2, 3, 6, 6)).astype(dtype)
    expected = net(x)
    net.hybridize()
    given = net(x)
    assert given.dtype == expected.dtype
    one, other = (each.astype("float32").asnumpy() for each in (given, expected))
    np.testing.assert_allclose(one, other, atol=0.03)


@pytest.mark.parametrize("dtype", DTYPES)
def test_new_parameters_count_at_once(dtype):
    net = network(dtype)
    net.hybridize(static_alloc=True)
    x = mx.nd.ones((2, 3, 6, 6), dtype=dtype)
    before = net(x).astype("float32").asnumpy()
    bias = net[4].bias
    bias.set_data(bias.data() + 1)
    np.testing.assert_allclose(net(x).astype("float32").asnumpy(), before + 1, atol=0.05)


def test_training_stays_in_its_type():
    net = network("float16")
    net.hybridize()
    x = mx.nd.ones((2, 3, 6, 6), dtype="float16")
    with mx.autograd.record():
        loss = net(x).sum()
    loss.backward()
    assert net[0].weight.grad().dtype == np.float16


def test_what_names_its_type_keeps_it():
    data = mx.sym.var("data", dtype="float16")
    made = mx.sym.Cast(mx.sym.FullyConnected(data, num_hidden=2, no_bias=True, name="fc"), dtype="float16")
    given = mx.nd.array([[1.0, 2048.0]], dtype="float16"), mx.nd.array([[1.0, 1.0], [0.0, 1.0]], dtype="float16")
    bound = made.bind(mx.cpu(), {"data": given[0], "fc_weight": given[1]})
    result = bound.forward()[0]
    assert result.dtype == np.float16
    np.testing.assert_array_equal(result.asnumpy(), np.array([[2048, 2048]], np.float16))  # 2049 is none of its numbers
