"""Formulas: derivatives are right; arrays and operators compute formulas."""

from types import SimpleNamespace

import numpy as np
import pytest

import flowmx as mx
from flowmx.ops.formulas import unary_functions as f
from flowmx.ops.formulas.activations import ACTIVATIONS, RECTIFIERS
from flowmx.ops.formulas.array_formula import ArrayFormula
from flowmx.ops.formulas.expressions import number, where
from flowmx.ops.formulas.frontend_formula import FrontendFormula
from flowmx.ops.kernels.llvm.math_functions import EXPANSIONS

STEP = 1e-5
POINTS = np.array([-3.1, -1.2, -0.4, 0.3, 0.9, 2.7])
P = SimpleNamespace(slope=0.3)
F = SimpleNamespace(op=lambda name, *inputs: getattr(mx.nd, name)(*inputs), zeros_like=mx.nd.zeros_like)


def values(formula, x, *more):
    """Return the values of a formula at points, in double precision."""
    result = ArrayFormula(formula, 1 + len(more), P)
    out = np.empty_like(x)
    result.run(np, result.numbers(P, x.dtype), (x, *more), (out,))
    return out


def slope_of(formula, x):
    """Return the central difference of a formula."""
    return (values(formula, x + STEP) - values(formula, x - STEP)) / (2 * STEP)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_first_and_second_derivatives_of_an_activation(kind):
    row = ACTIVATIONS[kind]
    y = values(lambda p, x: row.compute(x), POINTS)
    expected = slope_of(lambda p, x: row.compute(x), POINTS)
    np.testing.assert_allclose(values(lambda p, y: row.slope(y), y), expected, rtol=1e-7, atol=1e-9)
    if kind != "relu":  # its slope is a step function
        expected = slope_of(lambda p, y: row.slope(y), y)
        np.testing.assert_allclose(
            values(lambda p, y: row.slope_derivative(y) + 0.0 * y, y), expected, rtol=1e-6, atol=1e-8
        )


@pytest.mark.parametrize("kind", RECTIFIERS)
def test_first_and_second_derivatives_of_a_rectifier(kind):
    row = RECTIFIERS[kind]
    np.testing.assert_allclose(values(row.slope, POINTS), slope_of(row.compute, POINTS), rtol=1e-7, atol=1e-9)
    result = values(lambda p, x: row.second_derivative(p, x) + 0.0 * x, POINTS)
    np.testing.assert_allclose(result, slope_of(row.slope, POINTS), rtol=1e-6, atol=1e-8)


def test_every_function_of_the_loops_is_a_primitive():
    assert set(EXPANSIONS) <= f.NAMES


def test_an_input_is_read_before_an_output_overwrites_it():
    pair = ArrayFormula(lambda p, a, b: (a + b, a), 2)
    a, b = np.array([1.0, 2.0]), np.array([10.0, 20.0])
    pair.run(np, pair.numbers(None, a.dtype), (a, b), (a, b))
    assert (a.tolist(), b.tolist()) == ([11, 22], [1, 2])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int8", "uint8"])
def test_scalars_take_the_arrays_dtype(dtype):
    x = np.array([1, 2, 3], dtype)
    out = np.empty_like(x)
    ArrayFormula(lambda p, x: where(x > 1.0, x * 2.0, number(7.0)))(np, (x,), (out,))
    assert out.tolist() == [7, 4, 6]
    assert out.dtype == dtype


def test_a_formula_of_operators_records_its_gradient():
    result = FrontendFormula(lambda p, x: where(x > 0.0, f.exp(x) * p.slope, 2.0), ("x",))
    assert result.reads == ["x"]
    x = mx.nd.array([-1, 0, 1])
    x.attach_grad()
    with mx.autograd.record():
        y = result(F, P, x)
    y.backward()
    np.testing.assert_allclose(y.asnumpy(), [2, 2, np.e * 0.3], rtol=1e-6)
    np.testing.assert_allclose(x.grad.asnumpy(), [0, 0, np.e * 0.3], rtol=1e-6)


def test_a_formula_without_inputs_returns_a_number():
    assert FrontendFormula(lambda p, x: number(3.0), ("x",))(F, None) == 3.0
