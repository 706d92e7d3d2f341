"""Elementwise operators of one input: a table of names, formulas, derivatives and documentation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from flowmx.ops.formulas import unary_functions as f
from flowmx.ops.formulas.activations import softsign
from flowmx.ops.formulas.array_formula import ArrayFormula, clip_ufunc
from flowmx.ops.formulas.expressions import (
    Expr,
    absolute,
    ceil,
    copysign,
    equal,
    floor,
    number,
    one_if,
    sqrt,
    trunc,
)
from flowmx.ops.formulas.frontend_formula import gradient_of
from flowmx.ops.math.special_gamma import polygamma
from flowmx.ops.registry.dtypes import DType, is_floating
from flowmx.ops.registry.operators import Array, Operator, Run, lookup, operator, option
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensor, Tensors, UfuncCall
from flowmx.ops.registry.traits import BatchWise, Passing, Precision


class Row(NamedTuple):
    """One elementwise operator."""

    name: str
    formula: Callable[[Expr], Expr]
    """The output as a function of the input."""
    derivative: Callable[[Expr, Expr, Expr], Expr] | None
    """The gradient as a function of the input, the output and the head gradient, or None."""
    doc: str
    aliases: tuple[str, ...] = ()
    onnx: str = ""
    """The operator of ONNX, as in :class:`Operator`."""
    precision: Precision | None = None
    activation: str = ""
    passing: Passing = Passing.NEVER


def _round(x: Expr) -> Expr:
    # Halves round away from zero, as in MXNet; NumPy rounds them to even.
    truncated = trunc(x)
    return truncated + copysign(one_if(absolute(x - truncated) >= 0.5), x)


def _rint(x: Expr) -> Expr:
    # Halves round down, as in MXNet; NumPy rounds them to even.
    below = floor(x)
    return below + one_if(x - below > ceil(x) - x)


def _logical_not(x: Expr) -> Expr:
    return one_if(equal(x, 0.0))


def _slope_of_silu(x: Expr, y: Expr, g: Expr) -> Expr:
    gate = f.sigmoid(x)
    return g * (gate + y * (1.0 - gate))


def _gate_of_gelu(x: Expr) -> Expr:
    return f.sigmoid(x * (x * x * (_GELU_SCALE * _GELU_CUBE) + _GELU_SCALE))


def _slope_of_gelu(x: Expr, y: Expr, g: Expr) -> Expr:
    gate = _gate_of_gelu(x)
    return g * (gate + y * (1.0 - gate) * (x * x * (3.0 * _GELU_SCALE * _GELU_CUBE) + _GELU_SCALE))


_FULL = Precision.FLOAT32
_HALF_ROOT_PI = 0.886226925452758
_TWO_OVER_ROOT_PI = 1.1283791670955126
_GELU_SCALE, _GELU_CUBE = 1.5957691216057308, 0.044715  # the first is 2√(2/π)

TABLE = [
    Row("negative", lambda x: -x, lambda x, y, g: -g, "Elementwise -x.", ("_np_negative",), onnx="Neg"),
    Row("abs", absolute, lambda x, y, g: g * f.sign(x), "Elementwise absolute value.", onnx="Abs"),
    Row("sign", f.sign, lambda x, y, g: number(0.0), "Elementwise sign: -1, 0 or 1.", onnx="Sign"),
    Row("round", _round, lambda x, y, g: number(0.0), "The nearest integer; ties are rounded away from zero."),
    Row("rint", _rint, lambda x, y, g: number(0.0), "The nearest integer; ties are rounded down."),
    Row("ceil", ceil, lambda x, y, g: number(0.0), "The smallest integer not below x.", onnx="Ceil"),
    Row("floor", floor, lambda x, y, g: number(0.0), "The largest integer not above x.", onnx="Floor"),
    Row("trunc", trunc, lambda x, y, g: number(0.0), "x without its fractional part."),
    Row("fix", trunc, lambda x, y, g: number(0.0), "x rounded towards zero."),
    Row("square", f.square, lambda x, y, g: g * x * 2.0, "Elementwise x².", precision=_FULL),
    Row("sqrt", sqrt, lambda x, y, g: g * 0.5 / y, "Elementwise square root.", onnx="Sqrt"),
    Row("rsqrt", f.rsqrt, lambda x, y, g: g * -0.5 * y / x, "Elementwise 1/√x.", precision=_FULL),
    Row("cbrt", f.cbrt, lambda x, y, g: g / (y * y * 3.0), "Elementwise cube root."),
    Row("rcbrt", lambda x: 1.0 / f.cbrt(x), lambda x, y, g: g * y / (x * -3.0),
        "Elementwise 1/∛x.", precision=_FULL),
    Row("exp", f.exp, lambda x, y, g: g * y, "Elementwise eˣ.", onnx="Exp", precision=_FULL),
    Row("expm1", f.expm1, lambda x, y, g: g * (y + 1.0), "Elementwise eˣ - 1.", precision=_FULL),
    Row("log", f.log, lambda x, y, g: g / x, "Elementwise natural logarithm.", onnx="Log", precision=_FULL),
    Row("log10", f.log10, lambda x, y, g: g / (x * 2.302585092994046), "Elementwise log₁₀ x.", precision=_FULL),
    Row("log2", f.log2, lambda x, y, g: g / (x * 0.6931471805599453), "Elementwise log₂ x.", precision=_FULL),
    Row("log1p", f.log1p, lambda x, y, g: g / (x + 1.0), "Elementwise log(1 + x).", precision=_FULL),
    Row("sin", f.sin, lambda x, y, g: g * f.cos(x), "Elementwise sine.", onnx="Sin"),
    Row("cos", f.cos, lambda x, y, g: -(g * f.sin(x)), "Elementwise cosine.", onnx="Cos"),
    Row("tan", f.tan, lambda x, y, g: g * (y * y + 1.0), "Elementwise tangent.", onnx="Tan", precision=_FULL),
    Row("arcsin", f.arcsin, lambda x, y, g: g * f.rsqrt(1.0 - x * x), "Elementwise inverse sine.", onnx="Asin",
        precision=_FULL),
    Row("arccos", f.arccos, lambda x, y, g: -(g * f.rsqrt(1.0 - x * x)), "Elementwise inverse cosine.", onnx="Acos",
        precision=_FULL),
    Row("arctan", f.arctan, lambda x, y, g: g / (x * x + 1.0), "Elementwise inverse tangent.", onnx="Atan"),
    Row("sinh", f.sinh, lambda x, y, g: g * f.cosh(x), "Elementwise hyperbolic sine.", onnx="Sinh", precision=_FULL),
    Row("cosh", f.cosh, lambda x, y, g: g * f.sinh(x), "Elementwise hyperbolic cosine.", onnx="Cosh", precision=_FULL),
    Row("tanh", f.tanh, lambda x, y, g: g * (1.0 - y * y), "Elementwise hyperbolic tangent.", onnx="Tanh",
        activation="tanh"),
    Row("arcsinh", f.arcsinh, lambda x, y, g: g * f.rsqrt(x * x + 1.0), "Inverse hyperbolic sine.", onnx="Asinh"),
    Row("arccosh", f.arccosh, lambda x, y, g: g * f.rsqrt(x * x - 1.0), "Inverse hyperbolic cosine.", onnx="Acosh"),
    Row("arctanh", f.arctanh, lambda x, y, g: g / (1.0 - x * x), "Inverse hyperbolic tangent.", onnx="Atanh",
        precision=_FULL),
    Row("degrees", f.degrees, lambda x, y, g: g * 57.29577951308232, "Radians to degrees."),
    Row("radians", f.radians, lambda x, y, g: g * 0.017453292519943295, "Degrees to radians."),
    Row("reciprocal", f.reciprocal, lambda x, y, g: -(g * y * y), "Elementwise 1/x.", onnx="Reciprocal",
        precision=_FULL),
    Row("relu", f.relu, lambda x, y, g: g * f.slope_of_relu(y), "Elementwise max(x, 0).", onnx="Relu",
        activation="relu"),
    Row("_slope_of_relu", f.slope_of_relu, None, "The slope of relu from its output: 1 above 0, else 0; NaN stays."),
    Row("sigmoid", f.sigmoid, lambda x, y, g: g * y * (1.0 - y), "Elementwise 1/(1 + e⁻ˣ).", onnx="Sigmoid",
        activation="sigmoid"),
    Row("silu", lambda x: x * f.sigmoid(x), _slope_of_silu,
        "Elementwise x/(1 + e⁻ˣ) (Elfwing et al., Sigmoid-Weighted Linear Units, 2017)."),
    Row("gelu_tanh", lambda x: x * _gate_of_gelu(x), _slope_of_gelu,
        "Elementwise x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))) (Hendrycks and Gimpel, 2016)."),
    Row("softsign", softsign, lambda x, y, g: g / f.square(absolute(x) + 1.0), "Elementwise x/(1 + |x|).",
        onnx="Softsign"),
    Row("_softrelu", f.softplus, lambda x, y, g: g * f.sigmoid(x), "Elementwise log(1 + eˣ).", onnx="Softplus"),
    Row("erf", f.erf, lambda x, y, g: g * _TWO_OVER_ROOT_PI * f.exp(-(x * x)), "The error function.", onnx="Erf"),
    Row("erfinv", f.erfinv, lambda x, y, g: g * _HALF_ROOT_PI * f.exp(y * y), "The inverse of erf.", precision=_FULL),
    Row("gamma", f.gamma, lambda x, y, g: g * y * f.digamma(x), "The gamma function.", precision=_FULL),
    Row("gammaln", f.gammaln, lambda x, y, g: g * f.digamma(x),
        "The logarithm of the absolute gamma function.", precision=_FULL),
    Row("_contrib_round_ste", _round, lambda x, y, g: g,
        "The nearest integer; ties are rounded away from zero; the gradient passes through."),
    Row("_contrib_sign_ste", f.sign, lambda x, y, g: g,
        "Elementwise sign: -1, 0 or 1; the gradient passes through.", onnx="Sign"),
    Row("logical_not", _logical_not, lambda x, y, g: number(0.0), "1 where x is 0, else 0.", onnx="Not"),
    Row("_copy", f.copy, lambda x, y, g: g, "A copy of x.", ("identity",), onnx="Identity", passing=Passing.ALWAYS),
    Row("BlockGrad", f.copy, None, "x, without a gradient.",
        ("stop_gradient",), onnx="Identity", passing=Passing.ALWAYS),
]  # fmt: skip


_EXACT_ON_INTEGERS = {
    "negative",
    "abs",
    "sign",
    "square",
    "relu",
    "logical_not",
    "_copy",
    "BlockGrad",
    "_contrib_sign_ste",
}
"""Operators that are exact on integers; the others compute integers as float32 and drop the fraction."""
_KEEP_INTEGERS = {"round", "rint", "ceil", "floor", "trunc", "fix", "_contrib_round_ste"}
"""Operators that do not change integers."""


def _register(row: Row) -> None:
    formula = ArrayFormula(lambda p, x: row.formula(x))

    def forward(self: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, out = inputs[0], outputs[0]
        if is_floating(out.dtype) or row.name in _EXACT_ON_INTEGERS:
            formula(run.xp, inputs, outputs)
        elif row.name in _KEEP_INTEGERS:
            run.xp.copyto(out, x)
        else:
            result = run.xp.empty(out.shape, np.float32)
            formula(run.xp, (x.astype(np.float32),), (result,))
            run.xp.copyto(out, result, casting="unsafe")

    def as_ufunc(self: Operator, xp: ArrayNamespace, dtype: DType) -> UfuncCall | None:
        if row.name == "relu":
            return clip_ufunc(xp, dtype, 0.0, math.inf)
        return (getattr(xp, formula.ufunc), None) if formula.ufunc is not None and dtype.kind == "f" else None

    body: dict[str, object] = {
        "__doc__": row.doc,
        "__module__": __name__,
        "forward": forward,
        "as_ufunc": as_ufunc,
        "onnx": row.onnx,
    }

    def through_activation(
        self: Operator, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors
    ) -> list[Tensor]:
        return [F.op("_backward_Activation", heads[0], outputs[0], act_type=row.activation)]

    if row.activation:  # share the gradient of Activation
        body["gradient"] = through_activation
    elif row.derivative is not None:
        body["gradient"] = gradient_of(row.derivative)
    operator(row.name, *row.aliases)(
        type(
            row.name,
            (Operator,),
            body,
            in_place=((0, 0),),
            keeps_layout=True,
            batch_wise=BatchWise.ALL,
            no_gradient=row.derivative is None,
            precision=row.precision,
            activation=row.activation,
            passing=row.passing,
        )
    )


for _row in TABLE:
    _register(_row)


@operator("_polygamma")
class Polygamma(Operator, hidden=True):
    """The digamma function (order 0), or its derivative of the given order."""

    order: int = option(0, "The order of the derivative.", low=0)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        polygamma(self.order)(run.xp, inputs[0], outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [heads[0] * F.op("_polygamma", inputs[0], order=self.order + 1)]


ABSOLUTE = lookup("abs")
"""The operator abs."""
