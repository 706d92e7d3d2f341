"""The gradients of calls with complex numbers: of a real number, by the real part plus i times that by the imaginary.

Functions with a complex derivative d have the gradient g times the conjugate of d: the rule for real numbers, of
conjugated heads, conjugated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from flowmx.numpy.rules.registry import Rule, is_array, kept, refuse
from flowmx.numpy.table import names

__all__ = ["COMPLEX", "CONJUGATED", "conjugated"]

CONJUGATED = names("""
    add arccos arccosh arcsin arcsinh arctan arctanh cos cosh exp exp2 expm1 log log10 log1p log2 multiply negative
    positive reciprocal sin sinh sqrt square subtract tan tanh true_divide
    convolve cross cumprod cumsum diff dot einsum gradient inner kron linalg.cross linalg.det linalg.inv linalg.matmul
    linalg.matrix_power linalg.multi_dot linalg.outer linalg.solve linalg.tensordot linalg.tensorinv
    linalg.tensorsolve linalg.trace matmul matvec mean outer prod reshape sum tensordot trace trapezoid
""")
"""Functions with a complex derivative whose rule for real numbers holds for it."""

COMPLEX: dict[str, Rule] = {}
"""Rules of their own for complex numbers."""


def conjugated(np: Any, head: Any, rule: Callable[[Any], Any]) -> Any:
    """The gradients by a rule for real numbers, in which the derivative is not conjugated."""
    found = rule(np.conjugate(head) if is_array(head) else [np.conjugate(each) for each in head])
    return _each(np, found)


def _each(np: Any, found: Any) -> Any:
    if isinstance(found, (list, tuple)):
        return [_each(np, one) for one in found]
    return None if found is None else np.conjugate(found)


def _rule(*functions: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        COMPLEX.update(dict.fromkeys(functions, rule))
        return rule

    return register


@_rule("absolute")
def _absolute(np: Any, g: Any, r: Any, x: Any) -> Any:
    return (g * x / np.where(r == 0, 1.0, r),)


@_rule("angle")
def _angle(np: Any, g: Any, r: Any, z: Any, deg: bool = False) -> Any:
    length = np.absolute(z)
    return (z * 1j * (g / (length * length)) * (180 / math.pi if deg else 1.0),)


@_rule("real")
def _real(np: Any, g: Any, r: Any, x: Any) -> Any:
    return (g,)


@_rule("imag")
def _imag(np: Any, g: Any, r: Any, x: Any) -> Any:
    return (g * 1j,)


@_rule("conjugate")
def _conjugate(np: Any, g: Any, r: Any, x: Any) -> Any:
    return (np.conjugate(g),)


@_rule("power")
def _power(np: Any, g: Any, r: Any, x: Any, y: Any) -> Any:
    of_x = g * np.conjugate(y * np.power(x, y - 1)) if is_array(x) else None
    return of_x, g * np.conjugate(r * np.log(x)) if is_array(y) else None


@_rule("vdot")
def _vdot(np: Any, g: Any, r: Any, x: Any, y: Any) -> Any:
    return np.reshape(np.conjugate(g) * np.ravel(y), x.shape), np.reshape(g * np.ravel(x), y.shape)


@_rule("vecdot", "linalg.vecdot")
def _vecdot(np: Any, g: Any, r: Any, x: Any, y: Any, axis: int = -1) -> Any:
    g = np.expand_dims(g, axis)
    return np.conjugate(g) * y, g * x


@_rule("linalg.norm", "linalg.vector_norm", "linalg.matrix_norm")
def _norm(np: Any, g: Any, r: Any, x: Any, ord: Any = None, axis: Any = None, *_: Any, **others: Any) -> Any:
    is_vector = x.ndim == 1 if axis is None else isinstance(axis, int) or len(axis) == 1
    if ord not in (None, "fro") and not (ord == 2 and is_vector):
        refuse(f"linalg.norm of complex numbers with ord={ord!r}")
    result = kept(np, r, x, axis)
    return (kept(np, g, x, axis) * x / np.where(result == 0, 1.0, result),)
