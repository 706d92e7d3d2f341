"""Infinities, NaN, zeros and halves: large arrays, computed by faster kernels, agree with small ones.

tests/ops/test_recorded_operators.py compares the small ones with MXNet.
"""

import numpy as np

import flowmx as mx
from tests.op_cases import more_nn, more_tensor
from tests.rows import label, operator, rows

TIMES = 20000
CASES = [case for case in more_tensor.CASES + more_nn.CASES if case.note == "special"]


def compute(case, arrays):
    return mx.nd.op.op(case.op, *[mx.nd.array(array, dtype=array.dtype) for array in arrays], **case.params).asnumpy()


@rows("case", CASES, of=operator, name=label)
def test_large_arrays_match_small_ones(case):
    small = case.call_inputs()
    large = compute(case, [np.tile(item, (TIMES, *(1,) * (item.ndim - 1))) for item in small])
    expected = compute(case, small)
    for part in (large[: len(expected)], large[-len(expected) :]):
        np.testing.assert_allclose(part, expected, rtol=1e-5, atol=1e-5)


def test_rounding():
    x = mx.nd.array([0.49999997, -0.49999997, 8388609.0, -8388609.0])
    for name in ("round", "rint", "floor", "ceil", "trunc", "fix"):
        np.testing.assert_array_equal(getattr(mx.nd, name)(x)[2:].asnumpy(), [8388609.0, -8388609.0])
    for name in ("round", "rint"):
        np.testing.assert_array_equal(getattr(mx.nd, name)(x)[:2].asnumpy(), [0.0, 0.0])
