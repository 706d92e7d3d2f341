"""Max pooling in training graphs records the positions of maxima; gradients are the same with and without."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon import nn
from flowmx.graph import compiler
from flowmx.graph.passes.pooling_indices import record_pooling_indices
from flowmx.ops.kernels.onednn import library
from flowmx.ops.registry.operators import lookup


def gradient(shape, twice=False, **parameters):
    """Return the gradient of the data after one step, and the names of the plan's operators."""
    data = mx.sym.Variable("data")
    x = mx.sym.Pooling(mx.sym.relu(data), pool_type="max", **parameters)
    if twice:
        x = mx.sym.Pooling(x, pool_type="max", kernel=(2, 2))
    bound = mx.sym.sum(x * x).simple_bind(mx.cpu(), data=shape)
    rng = np.random.default_rng(0)
    bound.arg_dict["data"][:] = rng.integers(-3, 4, shape)  # with equal maxima
    for _ in range(2):
        bound.forward(is_train=True)
        bound.backward()
    return bound.grad_dict["data"].asnumpy(), [node.op.name for node in bound.plan.steps()]


@pytest.mark.parametrize(
    "case",
    [
        {"shape": (2, 3, 9, 9), "kernel": (3, 3), "stride": (2, 2)},
        {"shape": (2, 3, 8, 8), "kernel": (2, 2), "stride": (2, 2), "twice": True},
        {"shape": (1, 2, 20, 20), "kernel": (16, 17), "stride": (1, 1)},  # more elements than a byte can count
        {"shape": (2, 3, 9, 9), "kernel": (3, 3), "stride": (2, 2), "pooling_convention": "full", "pad": (1, 1)},
        {"shape": (2, 3, 9), "kernel": (3,), "stride": (2,)},
    ],
    ids=str,
)
def test_gradients_with_and_without_indices(case, monkeypatch):
    results, names = gradient(**case)
    assert "_noted_Pooling" in names
    assert "_backward_noted_Pooling" in names
    monkeypatch.setattr(compiler, "PASSES", [each for each in compiler.PASSES if each is not record_pooling_indices])
    expected, names = gradient(**case)
    assert "_noted_Pooling" not in names
    np.testing.assert_array_equal(results, expected)


@pytest.mark.parametrize("size", [(9,), (4, 4), (3, 4, 2)])
def test_indices_are_read_in_the_recorded_memory_order(size):
    pooling = (nn.MaxPool1D, nn.MaxPool2D, nn.MaxPool3D)[len(size) - 1]
    convolution = (nn.Conv1D, nn.Conv2D, nn.Conv3D)[len(size) - 1]
    net = nn.HybridSequential()
    net.add(pooling(), convolution(5, 1, in_channels=3))  # its gradient has the channels last, but its data does not
    net.initialize()
    x = mx.nd.array(np.random.default_rng(0).standard_normal((2, 3, *size)))
    x.attach_grad()
    results = []
    for compiled in (False, True):
        net.hybridize(compiled)
        with mx.autograd.record():
            out = net(x)
        out.backward()
        results.append(x.grad.asnumpy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(library.library() is None, reason="the oneDNN library is not installed")
@pytest.mark.parametrize("name", ["_noted_Pooling", "_backward_noted_Pooling"])
def test_onednn_writes_and_reads_the_indices(name, monkeypatch):
    monkeypatch.setattr(lookup(name), "forward", lambda *_: pytest.fail("computed by NumPy"))
    _, names = gradient((2, 3, 9, 9), kernel=(3, 3))
    assert name in names


def test_the_plain_forwards_need_no_indices(monkeypatch):
    expected, _ = gradient((2, 3, 9, 9), kernel=(3, 3))
    monkeypatch.setattr("flowmx.ops.kernels.onednn.pooling.plan", lambda *_: None)
    results, names = gradient((2, 3, 9, 9), kernel=(3, 3))
    assert "_noted_Pooling" in names
    np.testing.assert_array_equal(results, expected)


def test_prediction_records_no_indices():
    x = mx.sym.Pooling(mx.sym.Variable("data"), kernel=(2, 2), pool_type="max")
    bound = x.simple_bind(mx.cpu(), grad_req="null", data=(1, 1, 4, 4))
    assert [node.op.name for node in bound.plan.steps()] == ["Pooling"]
