"""The gradients of calls with complex numbers.

The gradient of a real loss is its derivative with respect to the real part, plus i times that for the imaginary part. A
function with a complex derivative d therefore has the gradient g * conj(d): the real rule, applied to the conjugated
head and conjugated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

from flowmx.numpy.rules.registry import Axis, Rule, is_array, refuse, restore_axes
from flowmx.numpy.table import names
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor

__all__ = ["COMPLEX", "CONJUGATED", "apply_conjugated"]

CONJUGATED = names("""
    add arccos arccosh arcsin arcsinh arctan arctanh cos cosh exp exp2 expm1 log log10 log1p log2 multiply negative
    positive reciprocal sin sinh sqrt square subtract tan tanh true_divide
    convolve cross cumprod cumsum diff dot einsum gradient inner kron linalg.cross linalg.det linalg.inv linalg.matmul
    linalg.matrix_power linalg.multi_dot linalg.outer linalg.solve linalg.tensordot linalg.tensorinv
    linalg.tensorsolve linalg.trace matmul matvec mean outer prod reshape sum tensordot trace trapezoid
""")
"""Functions with a complex derivative for which the real rule is valid."""

COMPLEX: dict[str, Rule] = {}
"""Separate rules for complex numbers."""


def apply_conjugated(xp: Functions, head: Tensor, rule: Callable[[Any], Any]) -> Gradients:
    """Apply a real rule, which does not conjugate the derivative."""
    gradients = rule(xp.conjugate(head) if is_array(head) else [xp.conjugate(output) for output in head])
    return cast("Gradients", _conjugate_nested(xp, gradients))


def _conjugate_nested(xp: Functions, value: object) -> Any:
    if isinstance(value, (list, tuple)):
        return [_conjugate_nested(xp, item) for item in value]
    return None if value is None else xp.conjugate(value)


def _rule(*functions: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        COMPLEX.update(dict.fromkeys(functions, rule))
        return rule

    return register


@_rule("absolute")
def _absolute(xp: Functions, g: Tensor, r: Tensor, x: Tensor) -> Gradients:
    return (g * x / xp.where(r == 0, 1.0, r),)


@_rule("angle")
def _angle(xp: Functions, g: Tensor, r: Tensor, z: Tensor, deg: bool = False) -> Gradients:
    length = xp.absolute(z)
    return (z * 1j * (g / (length * length)) * (180 / math.pi if deg else 1.0),)


@_rule("real")
def _real(xp: Functions, g: Tensor, r: Tensor, x: Tensor) -> Gradients:
    return (g,)


@_rule("imag")
def _imag(xp: Functions, g: Tensor, r: Tensor, x: Tensor) -> Gradients:
    return (g * 1j,)


@_rule("conjugate")
def _conjugate(xp: Functions, g: Tensor, r: Tensor, x: Tensor) -> Gradients:
    return (xp.conjugate(g),)


@_rule("power")
def _power(xp: Functions, g: Tensor, r: Tensor, x: Tensor, y: Tensor) -> Gradients:
    x_gradient = g * xp.conjugate(y * xp.power(x, y - 1)) if is_array(x) else None
    return x_gradient, g * xp.conjugate(r * xp.log(x)) if is_array(y) else None


@_rule("vdot")
def _vdot(xp: Functions, g: Tensor, r: Tensor, x: Tensor, y: Tensor) -> Gradients:
    return xp.reshape(xp.conjugate(g) * xp.ravel(y), x.shape), xp.reshape(g * xp.ravel(x), y.shape)


@_rule("vecdot", "linalg.vecdot")
def _vecdot(xp: Functions, g: Tensor, r: Tensor, x: Tensor, y: Tensor, axis: int = -1) -> Gradients:
    g = xp.expand_dims(g, axis)
    return xp.conjugate(g) * y, g * x


@_rule("linalg.norm", "linalg.vector_norm", "linalg.matrix_norm")
def _norm(
    xp: Functions, g: Tensor, r: Tensor, x: Tensor, ord: object = None, axis: Axis = None, *_: object, **others: object
) -> Gradients:
    is_vector = x.ndim == 1 if axis is None else isinstance(axis, int) or len(axis) == 1
    if ord not in (None, "fro") and not (ord == 2 and is_vector):
        refuse(f"linalg.norm of complex numbers with ord={ord!r}")
    result = restore_axes(xp, r, x, axis)
    return (restore_axes(xp, g, x, axis) * x / xp.where(result == 0, 1.0, result),)
