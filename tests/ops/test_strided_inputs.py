"""Operators have the same outputs, gradients and states for strided views as for contiguous arrays."""

import ctypes

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import AutogradError
from flowmx.ops.kernels.onednn import kernel
from tests.op_cases import every_case
from tests.strided import strided

CASES = every_case()


def stepped(values, dtype):
    """Return every other element of a longer last axis."""
    return strided(mx.nd.array(np.repeat(values, 2, axis=-1), dtype=dtype), ..., slice(None, None, 2))


def reversed_(values, dtype):
    """Return an array with its first axis reversed."""
    return strided(mx.nd.array(values[::-1].copy(), dtype=dtype), slice(None, None, -1))


def inner(values, dtype):
    """Return a longer first axis without its first and last element."""
    return mx.nd.array(np.pad(values, [(1, 1)] + [(0, 0)] * (values.ndim - 1)), dtype=dtype)[1:-1]


def results(case, make):
    """Return the results of a case with such inputs; the last one may be an error message."""
    mx.random.seed(0)
    inputs = [
        make(array, case.dtypes.get(position, "float32")) if array.size and array.ndim else mx.nd.array(array)
        for position, array in enumerate(case.arrays())
    ]
    positions = case.differentiable()
    for position in positions:
        inputs[position].attach_grad()
    with mx.autograd.record(train_mode=case.train) if positions else mx.autograd.pause(train_mode=case.train):
        outputs = mx.nd.op.op(case.op, *inputs, **case.params, **case.written(inputs))
    outputs = (outputs if isinstance(outputs, list) else [outputs])[: case.outputs]
    actual = [*outputs, *inputs]
    if positions:
        rng = np.random.default_rng(0)
        heads = [mx.nd.array(rng.standard_normal(array.shape), dtype=array.dtype) for array in outputs]
        try:
            mx.autograd.backward(outputs, heads, train_mode=case.train)
        except AutogradError as error:
            return [*[array.asnumpy() for array in actual], str(error)]
        actual += [inputs[position].grad for position in positions]
    return [array.asnumpy() for array in actual]


@pytest.mark.parametrize(
    ("make", "cases"),
    [
        (reversed_, CASES[::12]),
        (stepped, CASES[5::12]),
        *(pytest.param(make, CASES, marks=pytest.mark.soak) for make in (reversed_, stepped, inner)),
    ],
)
def test_views_have_the_results_of_contiguous_arrays(make, cases):
    for case in cases:
        expected, actual = results(case, lambda item, dtype: mx.nd.array(item, dtype=dtype)), results(case, make)
        for ours, reference in zip(actual, expected, strict=True):
            if isinstance(reference, str):
                assert ours == reference, case.id
                continue
            size = np.abs(reference[np.isfinite(reference)], dtype=np.float64).max(initial=1.0)
            np.testing.assert_allclose(ours, reference, rtol=1e-4, atol=1e-5 * size, err_msg=case.id)


@pytest.mark.parametrize("make", [reversed_, stepped, inner])
def test_max_pooling_of_views(make):
    x = make(np.random.default_rng(0).standard_normal((2, 3, 6, 8)), "float32")
    x.attach_grad()
    into = strided(mx.nd.zeros((2, 3, 3, 8)), ..., slice(None, None, 2))
    with mx.autograd.record():
        mx.nd.Pooling(x, kernel=(2, 2), stride=(2, 2), out=into)
    into.backward()
    windows = x.asnumpy().reshape(2, 3, 3, 2, 4, 2)
    maxima = windows.max(axis=(3, 5), keepdims=True)
    np.testing.assert_array_equal(into.asnumpy(), maxima[:, :, :, 0, :, 0])
    np.testing.assert_array_equal(x.grad.asnumpy(), (windows == maxima).reshape(x.shape))


def test_copies_of_vectors_live_until_the_kernel_has_read_them():
    loaded = []

    def work(address):
        others = [np.full(2, 7, np.float32) for _ in range(8)]  # in the memory of a released copy
        loaded.extend(np.ctypeslib.as_array((ctypes.c_float * 2).from_address(address)).tolist())
        del others

    kernel._compute_with(work)(None, None, [np.arange(4, dtype=np.float32)[::2]], [])
    assert loaded == [0, 2]
