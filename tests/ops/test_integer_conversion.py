"""Numbers out of the range of an integer dtype are converted everywhere as in MXNet 1.9.1 (recorded in fixtures)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import flowmx as mx
from flowmx import nd
from tests.fixtures.record_whole import answer
from tests.whole_cases import CASES, DTYPES, NUMBERS

RECORDED = json.loads((Path(__file__).parent.parent / "fixtures" / "whole.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_numbers_wrap_as_in_mxnet(name):
    for dtype, recorded in zip(DTYPES, RECORDED[name], strict=True):
        for number, expected in zip(NUMBERS, recorded, strict=True):
            if expected is None:
                continue
            actual = answer(mx, CASES[name], dtype, number)
            # MXNet computes quotients and powers in float32.
            assert actual == pytest.approx(expected, rel=1e-7, abs=0), (dtype, number)


@pytest.mark.parametrize("dtype", DTYPES)
def test_powers_are_exact_where_the_dtype_holds_them(dtype):
    bases = nd.array([7, 3, -2, 0], dtype=dtype)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    for exponent in (0, 1, 2, 3, 7, 10):
        exact = [int(base) ** exponent for base in bases.asnumpy()]
        for power, expected in zip((bases**exponent).asnumpy().tolist(), exact, strict=True):
            assert power == expected or not low <= expected <= high


def test_negative_powers_of_integers():
    bases, exponents = nd.array([1, -1, 2, 0, -1], dtype="int32"), nd.array([-3, -3, -1, -1, -2], dtype="int32")
    expected = [1, -1, 0, -(2**31), 1]  # 1/0 is infinite, as C converts that
    assert nd.broadcast_power(bases, exponents).asnumpy().tolist() == expected
    assert mx.np.power(bases.as_np_ndarray(), exponents.as_np_ndarray()).asnumpy().tolist() == expected
    assert (2 ** nd.array([-1, 3], dtype="int64")).asnumpy().tolist() == [0, 8]


@pytest.mark.parametrize("size", [5, 100_000])
def test_chains_of_any_size_wrap_alike(size):
    def function(F, x):
        return F.maximum(((x + 300) * 257 - -5) * x, -7) % 300

    x = nd.array(np.resize([1, 2, 0, 100, 3], size), dtype="uint8")
    block = mx.gluon.nn.HybridLambda(function)
    block.hybridize(static_alloc=True)
    expected = function(nd, x).asnumpy()
    assert (block(x).asnumpy() == expected).all()
    assert (function(mx.sym, mx.sym.var("x")).bind(mx.cpu(), {"x": x}).forward()[0].asnumpy() == expected).all()


def test_lists_and_assigned_lists_wrap():
    assert nd.array([[1, -1], [300, 2.7]], dtype="uint8").asnumpy().tolist() == [[1, 255], [44, 2]]
    assert mx.np.array([-1, 300], dtype="uint8").asnumpy().tolist() == [255, 44]
    x = nd.zeros((2,), dtype="uint8")
    x[:] = [300, -1]
    assert x.asnumpy().tolist() == [44, 255]


@pytest.mark.parametrize(
    "call",
    [
        lambda: nd.array([2**70], dtype="int64"),
        lambda: nd.array([float("nan")], dtype="int32"),
        lambda: nd.array([1], dtype="uint8") + 10**400,
        lambda: nd.array([1], dtype="uint8").__setitem__(0, 10**400),
    ],
)
def test_numbers_outside_every_dtype_are_refused_by_the_call(call):
    with pytest.raises((OverflowError, ValueError), match=r"array|double|float"):
        call()


def test_integer_positions_do_not_wrap():
    x = mx.np.zeros((400,), dtype="uint8")
    assert mx.np.insert(x, 300, -1).asnumpy()[300] == 255
    assert mx.np.pad(x, 300).shape == (1000,)
    assert mx.np.append(x.reshape((1, -1)), mx.np.ones((1, 1), dtype="uint8"), -1).shape == (1, 401)


def test_norms_of_integers_do_not_overflow():
    assert nd.norm(nd.array([100, 100], dtype="uint8")).asscalar() == 141
