"""Operators give the same of views with strides as of contiguous arrays: outputs, gradients, updated states."""

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
    """Every other element of a longer last axis."""
    return strided(mx.nd.array(np.repeat(values, 2, axis=-1), dtype=dtype), ..., slice(None, None, 2))


def reversed_(values, dtype):
    """The first axis from the end."""
    return strided(mx.nd.array(values[::-1].copy(), dtype=dtype), slice(None, None, -1))


def inner(values, dtype):
    """All but the first and last of a longer first axis."""
    return mx.nd.array(np.pad(values, [(1, 1)] + [(0, 0)] * (values.ndim - 1)), dtype=dtype)[1:-1]


def results(case, make):
    """Return what a case gives with inputs made so; the last may be the message of an error."""
    mx.random.seed(0)
    given = [
        make(each, case.dtypes.get(position, "float32")) if each.size and each.ndim else mx.nd.array(each)
        for position, each in enumerate(case.arrays())
    ]
    positions = case.differentiable()
    for position in positions:
        given[position].attach_grad()
    with mx.autograd.record(train_mode=case.train) if positions else mx.autograd.pause(train_mode=case.train):
        outputs = mx.nd.op.op(case.op, *given, **case.params, **case.written(given))
    outputs = (outputs if isinstance(outputs, list) else [outputs])[: case.outputs]
    found = [*outputs, *given]
    if positions:
        rng = np.random.default_rng(0)
        heads = [mx.nd.array(rng.standard_normal(each.shape), dtype=each.dtype) for each in outputs]
        try:
            mx.autograd.backward(outputs, heads, train_mode=case.train)
        except AutogradError as error:
            return [*[each.asnumpy() for each in found], str(error)]
        found += [given[position].grad for position in positions]
    return [each.asnumpy() for each in found]


@pytest.mark.parametrize(
    ("make", "cases"),
    [
        (reversed_, CASES[::12]),
        (stepped, CASES[5::12]),
        *(pytest.param(make, CASES, marks=pytest.mark.soak) for make in (reversed_, stepped, inner)),
    ],
)
def test_views_give_what_contiguous_arrays_give(make, cases):
    for case in cases:
        expected, found = results(case, lambda each, dtype: mx.nd.array(each, dtype=dtype)), results(case, make)
        for ours, theirs in zip(found, expected, strict=True):
            if isinstance(theirs, str):
                assert ours == theirs, case.id
                continue
            size = np.abs(theirs[np.isfinite(theirs)], dtype=np.float64).max(initial=1.0)
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * size, err_msg=case.id)


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
    read = []

    def work(address):
        others = [np.full(2, 7, np.float32) for _ in range(8)]  # in the memory of a copy that is let go of
        read.extend(np.ctypeslib.as_array((ctypes.c_float * 2).from_address(address)).tolist())
        del others

    kernel._by_work(work)(None, None, [np.arange(4, dtype=np.float32)[::2]], [])
    assert read == [0, 2]
