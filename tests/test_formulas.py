"""Formulas: each derivative is that of what it belongs to; arrays and operators compute them."""

from types import SimpleNamespace

import numpy as np
import pytest

import flowmx as mx
from flowmx.ops.formulas import functions as f
from flowmx.ops.formulas.activations import ACTIVATIONS, RECTIFIERS
from flowmx.ops.formulas.arrays import OnArrays
from flowmx.ops.formulas.expressions import number, where
from flowmx.ops.formulas.frontend import OnFrontend
from flowmx.ops.kernels.llvm.functions import EXPANSIONS

STEP = 1e-5
POINTS = np.array([-3.1, -1.2, -0.4, 0.3, 0.9, 2.7])
P = SimpleNamespace(slope=0.3)
F = SimpleNamespace(op=lambda name, *inputs: getattr(mx.nd, name)(*inputs), zeros_like=mx.nd.zeros_like)


def values(formula, x, *more):
    """A formula's value at points, in double precision."""
    made = OnArrays(formula, 1 + len(more), P)
    out = np.empty_like(x)
    made.run(np, made.numbers(P, x.dtype), (x, *more), (out,))
    return out


def slope_of(formula, x):
    """The central difference of a formula."""
    return (values(formula, x + STEP) - values(formula, x - STEP)) / (2 * STEP)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_the_slope_and_the_bend_of_an_activation_are_derivatives(kind):
    row = ACTIVATIONS[kind]
    y = values(lambda p, x: row.compute(x), POINTS)
    expected = slope_of(lambda p, x: row.compute(x), POINTS)
    np.testing.assert_allclose(values(lambda p, y: row.slope(y), y), expected, rtol=1e-7, atol=1e-9)
    if kind != "relu":  # whose slope is a step
        expected = slope_of(lambda p, y: row.slope(y), y)
        np.testing.assert_allclose(values(lambda p, y: row.bend(y) + 0.0 * y, y), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", RECTIFIERS)
def test_the_slope_and_the_bend_of_a_rectifier_are_derivatives(kind):
    row = RECTIFIERS[kind]
    np.testing.assert_allclose(values(row.slope, POINTS), slope_of(row.compute, POINTS), rtol=1e-7, atol=1e-9)
    made = values(lambda p, x: row.bend(p, x) + 0.0 * x, POINTS)
    np.testing.assert_allclose(made, slope_of(row.slope, POINTS), rtol=1e-6, atol=1e-8)


def test_every_function_of_the_loops_is_one_of_formulas():
    assert set(EXPANSIONS) <= f.NAMES


def test_an_output_that_is_an_input_is_read_before_that_is_overwritten():
    both = OnArrays(lambda p, a, b: (a + b, a), 2)
    a, b = np.array([1.0, 2.0]), np.array([10.0, 20.0])
    both.run(np, both.numbers(None, a.dtype), (a, b), (a, b))
    assert (a.tolist(), b.tolist()) == ([11, 22], [1, 2])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int8", "uint8"])
def test_numbers_take_the_arrays_dtype(dtype):
    x = np.array([1, 2, 3], dtype)
    out = np.empty_like(x)
    OnArrays(lambda p, x: where(x > 1.0, x * 2.0, number(7.0)))(np, (x,), (out,))
    assert out.tolist() == [7, 4, 6]
    assert out.dtype == dtype


def test_a_formula_of_operators_records_its_gradient():
    made = OnFrontend(lambda p, x: where(x > 0.0, f.exp(x) * p.slope, 2.0), ("x",))
    assert made.reads == ["x"]
    x = mx.nd.array([-1, 0, 1])
    x.attach_grad()
    with mx.autograd.record():
        y = made(F, P, x)
    y.backward()
    np.testing.assert_allclose(y.asnumpy(), [2, 2, np.e * 0.3], rtol=1e-6)
    np.testing.assert_allclose(x.grad.asnumpy(), [0, 0, np.e * 0.3], rtol=1e-6)


def test_a_formula_of_no_input_is_a_number():
    assert OnFrontend(lambda p, x: number(3.0), ("x",))(F, None) == 3.0
