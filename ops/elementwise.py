"""Elementwise operators of one input, each a row: name, function, derivative, documentation.

A derivative gets (F, x, y, g): the input, the output, the head gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.ops.dtypes import DType, is_floating
from flowmx.ops.registry import Array, Operator, Run, operator, option
from flowmx.ops.special import erf, erfinv, sigmoid
from flowmx.ops.special_gamma import gamma, gammaln, polygamma

Derivative = Callable[[Any, Any, Any, Any], Any]


class Row(NamedTuple):
    """One elementwise operator."""

    name: str
    function: Callable[..., Any]
    """Called as ``function(xp, x, out)``; returns nothing, or the ufunc's result."""
    derivative: Derivative | None
    needs: str
    """Those of x and y that the derivative reads (the others may have been changed since)."""
    doc: str
    aliases: tuple[str, ...] = ()


def ufunc(name: str) -> Callable[..., Any]:
    """The namespace's ufunc of that name."""

    def call(xp: Any, x: Array, out: Array) -> None:
        getattr(xp, name)(x, out=out, casting="unsafe")

    call.ufunc = name  # type: ignore[attr-defined]
    return call


def _rsqrt(xp: Any, x: Array, out: Array) -> None:
    xp.sqrt(x, out=out, casting="unsafe")
    xp.reciprocal(out, out=out)


def _round(xp: Any, x: Array, out: Array) -> None:
    # Halves go away from zero, as in MXNet; NumPy's go to the even number.
    if not is_floating(x.dtype):
        xp.copyto(out, x)
        return
    inner = xp.trunc(x)
    xp.add(inner, xp.copysign(xp.abs(x - inner) >= 0.5, x), out=out, casting="unsafe")


def _rint(xp: Any, x: Array, out: Array) -> None:
    # Halves go down, as in MXNet; NumPy's go to the even number.
    if not is_floating(x.dtype):
        xp.copyto(out, x)
        return
    below = xp.floor(x)
    xp.add(below, x - below > xp.ceil(x) - x, out=out, casting="unsafe")


def _sign(xp: Any, x: Array, out: Array) -> None:
    # That of NaN is 0, as in MXNet.
    xp.sign(x, out=out, casting="unsafe")
    if is_floating(out.dtype):
        xp.copyto(out, 0, where=xp.isnan(out))


def _copy(xp: Any, x: Array, out: Array) -> None:
    xp.copyto(out, x)


def _softsign(xp: Any, x: Array, out: Array) -> None:
    xp.divide(x, 1 + xp.abs(x), out=out)


def _relu(xp: Any, x: Array, out: Array) -> None:
    xp.maximum(x, x.dtype.type(0), out=out)


def _softrelu(xp: Any, x: Array, out: Array) -> None:
    xp.logaddexp(x, 0, out=out, casting="unsafe")


def _logical_not(xp: Any, x: Array, out: Array) -> None:
    xp.equal(x, 0, out=out, casting="unsafe")


_HALF_ROOT_PI = 0.886226925452758
_TWO_OVER_ROOT_PI = 1.1283791670955126

TABLE = [
    Row("negative", ufunc("negative"), lambda F, x, y, g: -g, "", "Elementwise -x.", ("_np_negative",)),
    Row("abs", ufunc("abs"), lambda F, x, y, g: g * F.sign(x), "x", "Elementwise absolute value."),
    Row("sign", _sign, lambda F, x, y, g: F.zeros_like(g), "", "Elementwise sign: -1, 0 or 1."),
    Row("round", _round, lambda F, x, y, g: F.zeros_like(g), "", "The nearest integer, halves away from zero."),
    Row("rint", _rint, lambda F, x, y, g: F.zeros_like(g), "", "The nearest integer, halves downwards."),
    Row("ceil", ufunc("ceil"), lambda F, x, y, g: F.zeros_like(g), "", "The smallest integer not below x."),
    Row("floor", ufunc("floor"), lambda F, x, y, g: F.zeros_like(g), "", "The largest integer not above x."),
    Row("trunc", ufunc("trunc"), lambda F, x, y, g: F.zeros_like(g), "", "x without its fractional part."),
    Row("fix", ufunc("trunc"), lambda F, x, y, g: F.zeros_like(g), "", "x rounded towards zero."),
    Row("square", ufunc("square"), lambda F, x, y, g: g * x * 2.0, "x", "Elementwise x²."),
    Row("sqrt", ufunc("sqrt"), lambda F, x, y, g: g * 0.5 / y, "y", "Elementwise square root."),
    Row("rsqrt", _rsqrt, lambda F, x, y, g: g * -0.5 * y / x, "xy", "Elementwise 1/√x."),
    Row("cbrt", ufunc("cbrt"), lambda F, x, y, g: g / (y * y * 3.0), "y", "Elementwise cube root."),
    Row("rcbrt", lambda xp, x, out: xp.copyto(out, 1 / xp.cbrt(x)), lambda F, x, y, g: g * y / (x * -3.0),
        "xy", "Elementwise 1/∛x."),
    Row("exp", ufunc("exp"), lambda F, x, y, g: g * y, "y", "Elementwise eˣ."),
    Row("expm1", ufunc("expm1"), lambda F, x, y, g: g * (y + 1.0), "y", "Elementwise eˣ - 1."),
    Row("log", ufunc("log"), lambda F, x, y, g: g / x, "x", "Elementwise natural logarithm."),
    Row("log10", ufunc("log10"), lambda F, x, y, g: g / (x * 2.302585092994046), "x", "Elementwise log₁₀ x."),
    Row("log2", ufunc("log2"), lambda F, x, y, g: g / (x * 0.6931471805599453), "x", "Elementwise log₂ x."),
    Row("log1p", ufunc("log1p"), lambda F, x, y, g: g / (x + 1.0), "x", "Elementwise log(1 + x)."),
    Row("sin", ufunc("sin"), lambda F, x, y, g: g * F.cos(x), "x", "Elementwise sine."),
    Row("cos", ufunc("cos"), lambda F, x, y, g: -(g * F.sin(x)), "x", "Elementwise cosine."),
    Row("tan", ufunc("tan"), lambda F, x, y, g: g * (y * y + 1.0), "y", "Elementwise tangent."),
    Row("arcsin", ufunc("arcsin"), lambda F, x, y, g: g * F.rsqrt(1.0 - x * x), "x", "Elementwise inverse sine."),
    Row("arccos", ufunc("arccos"), lambda F, x, y, g: -(g * F.rsqrt(1.0 - x * x)), "x", "Elementwise inverse cosine."),
    Row("arctan", ufunc("arctan"), lambda F, x, y, g: g / (x * x + 1.0), "x", "Elementwise inverse tangent."),
    Row("sinh", ufunc("sinh"), lambda F, x, y, g: g * F.cosh(x), "x", "Elementwise hyperbolic sine."),
    Row("cosh", ufunc("cosh"), lambda F, x, y, g: g * F.sinh(x), "x", "Elementwise hyperbolic cosine."),
    Row("tanh", ufunc("tanh"), lambda F, x, y, g: g * (1.0 - y * y), "y", "Elementwise hyperbolic tangent."),
    Row("arcsinh", ufunc("arcsinh"), lambda F, x, y, g: g * F.rsqrt(x * x + 1.0), "x", "Inverse hyperbolic sine."),
    Row("arccosh", ufunc("arccosh"), lambda F, x, y, g: g * F.rsqrt(x * x - 1.0), "x", "Inverse hyperbolic cosine."),
    Row("arctanh", ufunc("arctanh"), lambda F, x, y, g: g / (1.0 - x * x), "x", "Inverse hyperbolic tangent."),
    Row("degrees", ufunc("degrees"), lambda F, x, y, g: g * 57.29577951308232, "", "Radians to degrees."),
    Row("radians", ufunc("radians"), lambda F, x, y, g: g * 0.017453292519943295, "", "Degrees to radians."),
    Row("reciprocal", ufunc("reciprocal"), lambda F, x, y, g: -(g * y * y), "y", "Elementwise 1/x."),
    Row("relu", _relu, lambda F, x, y, g: g * F.op("_slope_of_relu", y), "y", "Elementwise max(x, 0)."),
    Row("_slope_of_relu", ufunc("sign"), None, "", "The slope of relu by its output: 1 above 0, else 0; NaN stays."),
    Row("sigmoid", sigmoid, lambda F, x, y, g: g * y * (1.0 - y), "y", "Elementwise 1/(1 + e⁻ˣ)."),
    Row("softsign", _softsign, lambda F, x, y, g: g / F.square(F.abs(x) + 1.0), "x", "Elementwise x/(1 + |x|)."),
    Row("_softrelu", _softrelu, lambda F, x, y, g: g * F.sigmoid(x), "x", "Elementwise log(1 + eˣ)."),
    Row("erf", erf, lambda F, x, y, g: g * _TWO_OVER_ROOT_PI * F.exp(-(x * x)), "x", "The error function."),
    Row("erfinv", erfinv, lambda F, x, y, g: g * _HALF_ROOT_PI * F.exp(y * y), "y", "The inverse of erf."),
    Row("gamma", gamma, lambda F, x, y, g: g * y * F.op("_polygamma", x), "xy", "The gamma function."),
    Row("gammaln", gammaln, lambda F, x, y, g: g * F.op("_polygamma", x), "x",
        "The logarithm of the absolute gamma function."),
    Row("_contrib_round_ste", _round, lambda F, x, y, g: g, "",
        "The nearest integer, halves away from zero; the gradient passes through."),
    Row("_contrib_sign_ste", ufunc("sign"), lambda F, x, y, g: g, "",
        "Elementwise sign: -1, 0 or 1; the gradient passes through."),
    Row("logical_not", _logical_not, lambda F, x, y, g: F.zeros_like(g), "", "1 where x is 0, else 0."),
    Row("_copy", _copy, lambda F, x, y, g: g, "", "A copy of x.", ("identity",)),
    Row("BlockGrad", _copy, None, "", "x, through which no gradient flows.",
        ("stop_gradient",)),
]  # fmt: skip


_WHOLE = {"negative", "abs", "sign", "round", "rint", "ceil", "floor", "trunc", "fix", "square", "relu", "logical_not",
          "_copy", "BlockGrad", "_contrib_round_ste", "_contrib_sign_ste"}  # fmt: skip
"""Operators that are exact on integers; the others compute them as float32 and drop the fraction."""


def _register(row: Row) -> None:
    def forward(self: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, out = inputs[0], outputs[0]
        if is_floating(out.dtype) or row.name in _WHOLE:
            row.function(run.xp, x, out)
            return
        made = run.xp.empty(out.shape, np.float32)
        row.function(run.xp, x.astype(np.float32), made)
        run.xp.copyto(out, made, casting="unsafe")

    def gradient(self: Operator, F: Any, inputs: Any, outputs: Any, heads: Any) -> list[Any]:
        assert row.derivative is not None
        x = inputs[0] if "x" in row.needs else None
        y = outputs[0] if "y" in row.needs else None
        return [row.derivative(F, x, y, heads[0])]

    def as_ufunc(self: Operator, xp: Any, dtype: DType) -> tuple[Callable[..., Any], Any] | None:
        name = getattr(row.function, "ufunc", None)
        return (getattr(xp, name), None) if name is not None and dtype.kind == "f" else None

    body: dict[str, Any] = {
        "__doc__": row.doc,
        "__module__": __name__,
        "forward": forward,
        "as_ufunc": as_ufunc,
        "in_place": ((0, 0),),
        "keeps_layout": True,
    }
    if row.derivative is None:
        body["no_gradient"] = True
    else:
        body["gradient"] = gradient
    operator(row.name, *row.aliases)(type(row.name, (Operator,), body))


for _row in TABLE:
    _register(_row)


@operator("_polygamma")
class Polygamma(Operator):
    """The derivatives of gammaln: the digamma function (order 0) and its own, order by order."""

    hidden = True
    order: int = option(0, "The order of the derivative of digamma.", low=0)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        polygamma(self.order)(run.xp, inputs[0], outputs[0])

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [heads[0] * F.op("_polygamma", inputs[0], order=self.order + 1)]
