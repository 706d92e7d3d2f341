"""Formulas computed with NumPy's or CuPy's functions, one primitive after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from flowmx.ops.formulas.expressions import Expr, Parameters, evaluate, in_order, placeholder, uniforms
from flowmx.ops.math.special import erf, erfinv, sigmoid
from flowmx.ops.math.special_gamma import gamma, gammaln, polygamma
from flowmx.ops.registry.dtypes import BY_NAME, FLOAT32, DType, is_floating
from flowmx.ops.registry.operators import Array

_NAMES = {
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "neg": "negative",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
    "and": "logical_and",
    "or": "logical_or",
    "xor": "logical_xor",
    "select": "where",
}
"""The array functions of primitives that are called otherwise."""

FLOAT64 = BY_NAME["float64"]
_ROOT_HALF, _TO_DENSITY = 0.7071067811865476, 0.3989422804014327


_clip: Any = getattr(np, "core" if np.__version__ < "2" else "_core").umath.clip  # np.clip looks at its arguments first


def clip(xp: Any, x: Array, low: Any, high: Any, out: Array) -> None:
    """Each element taken to the nearest number of a range; NaN stays."""
    if xp is np and x.dtype == out.dtype and is_floating(x.dtype):
        _clip(x, low, high, out)
    else:
        xp.clip(x, low, high, out=out)


def clipping(xp: Any, dtype: DType, low: float, high: float) -> tuple[Callable[..., Any], Any] | None:
    """The same as a function of an array, for a range, as :meth:`Operator.as_ufunc` has it."""
    if xp is not np or dtype not in (FLOAT32, FLOAT64):
        return None
    numbers = np.array([low, high], dtype)
    least, most = numbers[:1].reshape(()), numbers[1:].reshape(())
    return lambda x, out: _clip(x, least, most, out), None


def _relu(xp: Any, x: Array, out: Array) -> None:
    if is_floating(x.dtype):
        kind = x.dtype.type
        clip(xp, x, kind(0), kind(np.inf), out)
    else:
        xp.maximum(x, x.dtype.type(0), out=out)


def _normal(xp: Any, x: Array, out: Array) -> None:
    erf(xp, x * _ROOT_HALF, out)
    xp.add(out, 1, out=out)
    xp.multiply(out, 0.5, out=out)


def _normal_density(xp: Any, x: Array, out: Array) -> None:
    xp.multiply(x, x * -0.5, out=out)
    xp.exp(out, out=out)
    xp.multiply(out, _TO_DENSITY, out=out)


def _sign(xp: Any, x: Array, out: Array) -> None:
    xp.sign(x, out=out, casting="unsafe")
    if is_floating(out.dtype):
        xp.copyto(out, 0, where=xp.isnan(out))


def _rsqrt(xp: Any, x: Array, out: Array) -> None:
    xp.sqrt(x, out=out, casting="unsafe")
    xp.reciprocal(out, out=out)


_OWN: dict[str, Callable[[Any, Array, Array], Any]] = {
    "copy": lambda xp, x, out: xp.copyto(out, x),
    "rsqrt": _rsqrt,
    "sign": _sign,
    "relu": _relu,
    "slope_of_relu": lambda xp, y, out: xp.sign(y, out=out, casting="unsafe"),  # y is not negative; NaN stays
    "sigmoid": sigmoid,
    "softplus": lambda xp, x, out: xp.logaddexp(x, x.dtype.type(0), out=out, casting="unsafe"),
    "erf": erf,
    "erfinv": erfinv,
    "gamma": gamma,
    "gammaln": gammaln,
    "digamma": polygamma(0),
    "normal": _normal,
    "normal_density": _normal_density,
}
"""Functions that the array packages lack, or that are faster by others: ``function(xp, x, out)``."""


class OnArrays:
    """Formulas as functions of arrays.

    Args:
        formula: called as ``formula(p, *inputs)``; returns the expression of the output, or those of the outputs.
        count: the number of inputs.
        p: the parameters of an operator, for the form that the formula has with them; None where it has none.

    Attributes:
        ufunc: the name of the one array function that is the whole formula, if there is one.
    """

    def __init__(self, formula: Callable[..., Any], count: int = 1, p: Any = None) -> None:
        self._inputs = [placeholder(position) for position in range(count)]
        made = formula(Parameters(p), *self._inputs)
        self._outputs: Sequence[Expr] = made if isinstance(made, tuple) else (made,)
        self._uniforms = uniforms(self._outputs)
        self._steps = [expr for expr in in_order(self._outputs, {*self._inputs, *self._uniforms}) if expr.args]
        self._numbers = {arg for step in self._steps for arg in step.args if arg.kind == "number"}
        last: dict[Expr, int] = {arg: at for at, step in enumerate(self._steps) for arg in step.args}
        self._last = [
            [arg for arg in set(step.args) if last[arg] == at and arg not in self._outputs]
            for at, step in enumerate(self._steps)
        ]
        only = self._steps[0] if len(self._steps) == 1 and list(self._steps[0].args) == self._inputs else None
        self._own = _OWN.get(only.kind) if only is not None else None
        self.ufunc = _NAMES.get(only.kind, only.kind) if only is not None and self._own is None else None
        self._known: dict[DType, dict[Expr, Any]] = {}

    def numbers(self, p: Any, dtype: DType) -> dict[Expr, Any]:
        """The numbers that come with a call: the formula's own and those that depend on parameters.

        Args:
            p: what has the parameters as attributes.
            dtype: the element type of the arrays.
        """
        kind = _computing(dtype)
        exact = {expr: evaluate(expr, lambda name: getattr(p, name)) for expr in (*self._uniforms, *self._numbers)}
        return {expr: kind.type(value) for expr, value in exact.items()}

    def __call__(self, xp: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute a formula without parameters into the outputs."""
        if self._own is not None:
            self._own(xp, inputs[0], outputs[0])
        elif self.ufunc is not None:
            getattr(xp, self.ufunc)(*inputs, out=outputs[0], casting="unsafe")
        else:
            dtype = inputs[0].dtype
            if dtype not in self._known:
                self._known[dtype] = self.numbers(None, dtype)
            self.run(xp, self._known[dtype], inputs, outputs)

    def bound(self, xp: Any, dtype: DType) -> Callable[[Any, Sequence[Array], Sequence[Array]], None] | None:
        """A formula without parameters, of one output, for arrays of this dtype as a forward; None where it is more."""
        if len(self._outputs) != 1 or _computing(dtype) != dtype:
            return None
        own = self._own
        if own is not None:
            return lambda run, inputs, outputs: own(xp, inputs[0], outputs[0])
        numbers = self.numbers(None, dtype)
        places = {expr: at for at, expr in enumerate([*self._inputs, *numbers, *self._steps])}
        steps = [(_function(xp, step.kind), [places[arg] for arg in step.args]) for step in self._steps]
        if not steps or self._steps[-1].kind in _OWN or self._outputs[0] is not self._steps[-1]:
            return None
        (last, ends), fixed = steps.pop(), list(numbers.values())

        def forward(run: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            values = [*inputs, *fixed]
            for function, at in steps:
                values.append(function(*[values[each] for each in at]))
            last(*[values[each] for each in ends], out=outputs[0])

        return forward

    def run(self, xp: Any, numbers: dict[Expr, Any], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute into the outputs, which may be inputs too: integers in float64, floating numbers of 16 bits in 32."""
        values = dict(numbers)
        for expr, array in zip(self._inputs, inputs, strict=True):
            values[expr] = array.astype(_computing(array.dtype), copy=False)
        for step, last in zip(self._steps, self._last, strict=True):
            values[step] = _apply(xp, step.kind, [values[arg] for arg in step.args])
            for arg in last:
                del values[arg]
        # One that is written may be an input that another output is.
        made = [values[expr] if expr.args else xp.array(values[expr]) for expr in self._outputs]
        for target, value in zip(outputs, made, strict=True):
            xp.copyto(target, value, casting="unsafe")


def _computing(dtype: DType) -> DType:
    if not is_floating(dtype):
        return FLOAT64
    return FLOAT32 if dtype.itemsize < 4 else dtype


def _function(xp: Any, kind: str) -> Callable[..., Any]:
    """The function of arrays that one step is."""
    return partial(_apply_to, xp, kind) if kind in _OWN else getattr(xp, _NAMES.get(kind, kind))


def _apply_to(xp: Any, kind: str, *operands: Any) -> Any:
    return _apply(xp, kind, operands)


def _apply(xp: Any, kind: str, operands: Sequence[Any]) -> Any:
    own = _OWN.get(kind)
    if own is None:
        return getattr(xp, _NAMES.get(kind, kind))(*operands)
    out = xp.empty_like(operands[0])
    own(xp, operands[0], out)
    return out
