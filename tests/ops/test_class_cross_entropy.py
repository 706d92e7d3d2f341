"""The cross-entropy of logits and class numbers, and its gradient, against their formulas in float64."""

import numpy as np
import pytest

from flowmx import autograd, nd
from flowmx.gluon.loss import SoftmaxCrossEntropyLoss
from flowmx.ndarray.functions import op


def expected(x, label, head):
    """Return losses and gradients; labels out of range are clipped."""
    x = x.astype(np.float64)
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    softmax = exponentials / exponentials.sum(axis=1, keepdims=True)
    rows, places = np.arange(len(x)), np.clip(label, 0, x.shape[1] - 1)
    losses = -np.log(softmax[rows, places])
    softmax[rows, places] -= 1
    return losses, softmax * head[:, None]


@pytest.mark.parametrize("kind", ["float32", "int32", "int64", "uint8"])
@pytest.mark.parametrize(("rows", "classes"), [(1, 1), (1, 10), (32, 10), (5, 17), (32, 1000), (300, 130)])
def test_losses_and_gradients(rows, classes, kind):
    rng = np.random.default_rng(rows)
    x = 3 * rng.standard_normal((rows, classes)).astype("float32")
    label = rng.integers(0 if kind == "uint8" else -2, min(classes, 250) + 2, rows)
    head = rng.standard_normal(rows).astype("float32")
    data = nd.array(x)
    data.attach_grad()
    for _ in range(40):  # the first calls are not recorded
        with autograd.record():
            loss = SoftmaxCrossEntropyLoss()(data, nd.array(label, dtype=kind))
        loss.backward(nd.array(head))
    losses, gradients = expected(x, label, head)
    np.testing.assert_allclose(loss.asnumpy(), losses, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(data.grad.asnumpy(), gradients, rtol=2e-5, atol=1e-6)


def test_the_layout_of_the_logits_does_not_matter():
    x = np.random.default_rng(0).standard_normal((7, 12)).astype("float32")
    label = nd.array(np.arange(7))
    one = op("_class_cross_entropy", nd.array(x), label)
    other = op("_class_cross_entropy", nd.array(np.ascontiguousarray(x.T)).T, label)
    np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())


def test_nothing_to_learn():
    assert op("_class_cross_entropy", nd.zeros((0, 4)), nd.zeros(0)).shape == (0,)
