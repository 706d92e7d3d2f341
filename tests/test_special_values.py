"""Infinities, NaN, zeros and halves: large arrays, which faster kernels take, agree with small ones.

The small ones are compared with MXNet's (tests/test_ops_recorded.py).
"""

import numpy as np

import flowmx as mx
from tests.op_cases import more_nn, more_tensor
from tests.rows import label, operator, rows

TIMES = 20000
CASES = [case for case in more_tensor.CASES + more_nn.CASES if case.note == "special"]


def compute(case, arrays):
    return mx.nd.op.op(case.op, *[mx.nd.array(each, dtype=each.dtype) for each in arrays], **case.params).asnumpy()


@rows("case", CASES, of=operator, name=label)
def test_large_as_small(case):
    small = case.given()
    large = compute(case, [np.tile(each, (TIMES, *(1,) * (each.ndim - 1))) for each in small])
    expected = compute(case, small)
    for part in (large[: len(expected)], large[-len(expected) :]):
        np.testing.assert_allclose(part, expected, rtol=1e-5, atol=1e-5)


def test_rounding():
    x = mx.nd.array([0.49999997, -0.49999997, 8388609.0, -8388609.0])
    for name in ("round", "rint", "floor", "ceil", "trunc", "fix"):
        np.testing.assert_array_equal(getattr(mx.nd, name)(x)[2:].asnumpy(), [8388609.0, -8388609.0])
    for name in ("round", "rint"):
        np.testing.assert_array_equal(getattr(mx.nd, name)(x)[:2].asnumpy(), [0.0, 0.0])
