"""Formulas computed with NumPy's or CuPy's functions, primitive by primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from flowmx.ops.formulas.expressions import Expr, Parameters, evaluate, evaluation_order, placeholder, uniforms
from flowmx.ops.math.special import erf, erfinv, sigmoid
from flowmx.ops.math.special_gamma import gamma, gammaln, polygamma
from flowmx.ops.registry.dtypes import BY_NAME, FLOAT32, DType, is_floating
from flowmx.ops.registry.operators import Array, Bound
from flowmx.ops.registry.tensors import ArrayNamespace, UfuncCall

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
"""The array functions of primitives whose names differ."""

FLOAT64 = BY_NAME["float64"]
_ROOT_HALF, _TO_DENSITY = 0.7071067811865476, 0.3989422804014327


_umath: Any = import_module("numpy.core" if np.__version__.startswith("1.") else "numpy._core").umath
_clip: Any = _umath.clip  # without the argument checks of np.clip


def clip(xp: ArrayNamespace, x: Array, low: Array, high: Array, out: Array) -> None:
    """Clip each element to a range; NaN stays."""
    if xp is np and x.dtype == out.dtype and is_floating(x.dtype):
        _clip(x, low, high, out)
    else:
        xp.clip(x, low, high, out=out)


def clip_ufunc(xp: ArrayNamespace, dtype: DType, low: float, high: float) -> UfuncCall | None:
    """Return ``clip`` to a range as a function of an array, as :meth:`Operator.as_ufunc` returns it."""
    if xp is not np or dtype not in (FLOAT32, FLOAT64):
        return None
    numbers = np.array([low, high], dtype)
    low_element, high_element = numbers[:1].reshape(()), numbers[1:].reshape(())
    return lambda x, out: _clip(x, low_element, high_element, out), None


def _relu(xp: ArrayNamespace, x: Array, out: Array) -> None:
    if is_floating(x.dtype):
        kind = x.dtype.type
        clip(xp, x, kind(0), kind(np.inf), out)
    else:
        xp.maximum(x, x.dtype.type(0), out=out)


def _normal(xp: ArrayNamespace, x: Array, out: Array) -> None:
    erf(xp, x * _ROOT_HALF, out)
    xp.add(out, 1, out=out)
    xp.multiply(out, 0.5, out=out)


def _normal_density(xp: ArrayNamespace, x: Array, out: Array) -> None:
    xp.multiply(x, x * -0.5, out=out)
    xp.exp(out, out=out)
    xp.multiply(out, _TO_DENSITY, out=out)


def _sign(xp: ArrayNamespace, x: Array, out: Array) -> None:
    xp.sign(x, out=out, casting="unsafe")
    if is_floating(out.dtype):
        xp.copyto(out, 0, where=xp.isnan(out))


def _rsqrt(xp: ArrayNamespace, x: Array, out: Array) -> None:
    xp.sqrt(x, out=out, casting="unsafe")
    xp.reciprocal(out, out=out)


_SPECIAL: dict[str, Callable[[Any, Array, Array], Any]] = {
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
"""Functions that the array packages lack, or that are faster this way: ``function(xp, x, out)``."""


class ArrayFormula:
    """A formula as a function of arrays.

    Args:
        formula: called as ``formula(p, *inputs)``; returns the expression of the output, or a tuple of outputs.
        count: the number of inputs.
        p: the operator whose parameters select the form of the formula; None for a formula without parameters.

    Attributes:
        ufunc: the name of the array function that is equal to the formula, or None.
    """

    def __init__(self, formula: Callable[..., object], count: int = 1, p: object = None) -> None:
        self._inputs = [placeholder(position) for position in range(count)]
        outputs = formula(Parameters(p), *self._inputs)
        self._outputs: Sequence[Expr] = outputs if isinstance(outputs, tuple) else (outputs,)
        self._uniforms = uniforms(self._outputs)
        self._steps = [expr for expr in evaluation_order(self._outputs, {*self._inputs, *self._uniforms}) if expr.args]
        self._numbers = {arg for step in self._steps for arg in step.args if arg.kind == "number"}
        last: dict[Expr, int] = {arg: index for index, step in enumerate(self._steps) for arg in step.args}
        self._last = [
            [arg for arg in set(step.args) if last[arg] == index and arg not in self._outputs]
            for index, step in enumerate(self._steps)
        ]
        single = self._steps[0] if len(self._steps) == 1 and list(self._steps[0].args) == self._inputs else None
        self._special = _SPECIAL.get(single.kind) if single is not None else None
        self.ufunc = _NAMES.get(single.kind, single.kind) if single is not None and self._special is None else None
        self._numbers_by_dtype: dict[DType, dict[Expr, Any]] = {}

    def numbers(self, p: object, dtype: DType) -> dict[Expr, Any]:
        """Return the numbers of a call: the constants of the formula and its uniform expressions.

        Args:
            p: an object with the parameters as attributes.
            dtype: the dtype of the arrays.
        """
        kind = _computing_dtype(dtype)
        exact = {expr: evaluate(expr, lambda name: getattr(p, name)) for expr in (*self._uniforms, *self._numbers)}
        return {expr: kind.type(value) for expr, value in exact.items()}

    def __call__(self, xp: ArrayNamespace, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute a formula without parameters into the outputs."""
        if self._special is not None:
            self._special(xp, inputs[0], outputs[0])
        elif self.ufunc is not None:
            getattr(xp, self.ufunc)(*inputs, out=outputs[0], casting="unsafe")
        else:
            dtype = inputs[0].dtype
            if dtype not in self._numbers_by_dtype:
                self._numbers_by_dtype[dtype] = self.numbers(None, dtype)
            self.run(xp, self._numbers_by_dtype[dtype], inputs, outputs)

    def bound(self, xp: ArrayNamespace, dtype: DType) -> Bound | None:
        """Return a formula without parameters as a forward for arrays of a dtype; None for several outputs."""
        if len(self._outputs) != 1 or _computing_dtype(dtype) != dtype:
            return None
        special = self._special
        if special is not None:
            return lambda run, inputs, outputs: special(xp, inputs[0], outputs[0])
        numbers = self.numbers(None, dtype)
        indices = {expr: operands for operands, expr in enumerate([*self._inputs, *numbers, *self._steps])}
        steps = [(_function(xp, step.kind), [indices[arg] for arg in step.args]) for step in self._steps]
        if not steps or self._steps[-1].kind in _SPECIAL or self._outputs[0] is not self._steps[-1]:
            return None
        (last, last_operands), constants = steps.pop(), list(numbers.values())

        def forward(run: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            values = [*inputs, *constants]
            for function, operands in steps:
                values.append(function(*[values[operand] for operand in operands]))
            last(*[values[operand] for operand in last_operands], out=outputs[0])

        return forward

    def run(
        self, xp: ArrayNamespace, numbers: dict[Expr, Array], inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        """Compute into the outputs, which may be inputs too: integers in float64, 16-bit floats in float32."""
        values = dict(numbers)
        for expr, array in zip(self._inputs, inputs, strict=True):
            values[expr] = array.astype(_computing_dtype(array.dtype), copy=False)
        for step, last in zip(self._steps, self._last, strict=True):
            values[step] = _apply(xp, step.kind, [values[arg] for arg in step.args])
            for arg in last:
                del values[arg]
        # Copy outputs that are inputs, since another output may overwrite them.
        results = [values[expr] if expr.args else xp.array(values[expr]) for expr in self._outputs]
        for target, value in zip(outputs, results, strict=True):
            xp.copyto(target, value, casting="unsafe")


def _computing_dtype(dtype: DType) -> DType:
    if not is_floating(dtype):
        return FLOAT64
    return FLOAT32 if dtype.itemsize < 4 else dtype


def _function(xp: ArrayNamespace, kind: str) -> Callable[..., Array]:
    """Return the array function of a primitive."""
    return partial(_apply_to, xp, kind) if kind in _SPECIAL else getattr(xp, _NAMES.get(kind, kind))


def _apply_to(xp: ArrayNamespace, kind: str, *operands: Array) -> Array:
    return _apply(xp, kind, operands)


def _apply(xp: ArrayNamespace, kind: str, operands: Sequence[Array]) -> Array:
    special = _SPECIAL.get(kind)
    if special is None:
        result: Array = getattr(xp, _NAMES.get(kind, kind))(*operands)
        return result
    out = xp.empty_like(operands[0])
    special(xp, operands[0], out)
    return out
