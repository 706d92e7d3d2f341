"""SyncBatchNorm over several devices is a BatchNorm of the whole batch; a missing device is an error."""

from __future__ import annotations

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon.contrib.nn import SyncBatchNorm, cross_device
from flowmx.gluon.utils import split_and_load

DEVICES = [mx.cpu(0), mx.cpu(1), mx.cpu(2)]
RNG = np.random.default_rng(2)
X, HEAD = (RNG.standard_normal((6, 4, 3)).astype("float32") * 3 + 1 for _ in range(2))


def train(layers, devices):
    """Return outputs, gradients of the input, and parameters with gradients, of a step on each device."""
    net = mx.gluon.nn.Sequential()
    net.add(*layers)
    net.initialize(mx.init.Uniform(1), ctx=devices)
    parts, heads = (split_and_load(mx.nd.array(batch), devices) for batch in (X, HEAD))
    for part in parts:
        part.attach_grad()
    with mx.autograd.record():
        outputs = [net(part) for part in parts]
        losses = [(y * head).sum() for y, head in zip(outputs, heads, strict=True)]
    mx.autograd.backward(losses)
    arrays = [np.concatenate([part.asnumpy() for part in arrays]) for arrays in (outputs, [p.grad for p in parts])]
    params = net.collect_params().values()
    grads = [sum(grad.asnumpy() for grad in param.list_grad()) for param in params if param.grad_req != "null"]
    values = [param.list_data() for param in params]
    return [*arrays, *grads, *(value[0].asnumpy() for value in values)], values


def test_is_a_batch_norm_of_the_whole_batch():
    plain = [mx.gluon.nn.BatchNorm(in_channels=4), mx.gluon.nn.BatchNorm(scale=False, in_channels=4)]
    synchronized = [SyncBatchNorm(4, 3), SyncBatchNorm(4, 3, scale=False)]
    expected, _ = train(plain, [mx.cpu()])
    actual, values = train(synchronized, DEVICES)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)
    for copies in values:
        for copy in copies[1:]:
            np.testing.assert_array_equal(copy.asnumpy(), copies[0].asnumpy())


def test_predicts_like_a_batch_norm():
    layer = SyncBatchNorm(4, 2)
    layer.initialize()
    np.testing.assert_allclose(layer(mx.nd.array(X)).asnumpy(), X / np.sqrt(1 + 1e-5), rtol=1e-5)


def test_a_missing_device_is_an_error(monkeypatch):
    monkeypatch.setattr(cross_device, "TIMEOUT", 0.05)
    layer = SyncBatchNorm(4, 2)
    layer.initialize()
    with mx.autograd.record():
        y = layer(mx.nd.array(X))
    with pytest.raises(mx.MXNetError, match="1 of 2 devices contributed within"):
        y.asnumpy()


def test_a_compiled_graph_warns_of_separate_statistics():
    layer = SyncBatchNorm(4, 2)
    layer.initialize()
    layer.hybridize()
    with pytest.warns(UserWarning, match="statistics of each device separately"):
        layer(mx.nd.array(X))
