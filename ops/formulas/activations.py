"""Activations with their first and second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from flowmx.ops.formulas import unary_functions as f
from flowmx.ops.formulas.expressions import Expr, Operand, Parameters, absolute, clip, minimum, number, where

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def softsign(x: Expr) -> Expr:
    """x/(1 + |x|)."""
    return x / (absolute(x) + 1.0)


def hard_sigmoid(p: Parameters, x: Expr) -> Expr:
    """alpha·x + beta, clipped to 0 ... 1."""
    return clip(x * p.alpha + p.beta, 0.0, 1.0)


def smooth_l1(p: Parameters, x: Expr) -> Expr:
    """(σx)²/2 where |x| < 1/σ², |x| - 1/(2σ²) elsewhere; ``scalar`` is σ."""
    squared, size = p.scalar * p.scalar, absolute(x)
    return where(size < 1.0 / squared, x * x * (0.5 * squared), size - 0.5 / squared)


class Activation(NamedTuple):
    """An activation y = f(x) with its derivatives as functions of y, so that x need not be stored."""

    compute: Callable[[Expr], Expr]
    slope: Callable[[Expr], Expr]
    """f'(x) as a function of y."""
    slope_derivative: Callable[[Expr], Expr]
    """The derivative of the slope with respect to y."""


ACTIVATIONS = {
    "relu": Activation(f.relu, f.slope_of_relu, lambda y: number(0.0)),
    "sigmoid": Activation(f.sigmoid, lambda y: y * (1.0 - y), lambda y: 1.0 - y * 2.0),
    "tanh": Activation(f.tanh, lambda y: 1.0 - y * y, lambda y: y * -2.0),
    "softrelu": Activation(f.softplus, lambda y: -f.expm1(-y), lambda y: f.exp(-y)),
    "softsign": Activation(
        softsign,
        lambda y: (1.0 - absolute(y)) * (1.0 - absolute(y)),
        lambda y: f.sign(y) * (1.0 - absolute(y)) * -2.0,
    ),
}


class Rectifier(NamedTuple):
    """An activation with parameters, y = f(p, x), and its derivatives with respect to x."""

    compute: Callable[[Parameters, Expr], Expr]
    slope: Callable[[Parameters, Expr], Expr]
    second_derivative: Callable[[Parameters, Expr], Expr]
    """The second derivative."""


def _exponential(above: float, below: Callable[[Parameters], Operand]) -> Rectifier:
    """A rectifier that is ``above``·x above 0, and ``below``·(eˣ - 1) below."""
    return Rectifier(
        lambda p, x: where(x < 0.0, f.expm1(x) * below(p), x * above if above != 1.0 else x),
        lambda p, x: where(x > 0.0, above, f.exp(x) * below(p)),
        lambda p, x: where(x > 0.0, 0.0, f.exp(minimum(x, 0.0)) * below(p)),
    )


RECTIFIERS = {
    "leaky": Rectifier(
        lambda p, x: where(x < 0.0, x * p.slope, x),
        lambda p, x: where(x > 0.0, 1.0, p.slope),
        lambda p, x: number(0.0),
    ),
    "elu": _exponential(1.0, lambda p: p.slope),
    "selu": _exponential(SELU_SCALE, lambda p: SELU_SCALE * SELU_ALPHA),
    "gelu": Rectifier(
        lambda p, x: x * f.normal(x),
        lambda p, x: f.normal(x) + x * f.normal_density(x),
        lambda p, x: f.normal_density(x) * (2.0 - x * x),
    ),
}
