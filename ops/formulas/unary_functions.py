"""Functions of one number, as primitives of formulas.

Array packages have a function for each (:mod:`.array_formula`); loops and CUDA kernels compute some of them by
polynomials (``ops/kernels/llvm/math_functions.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flowmx.ops.formulas.expressions import Expr, Operand, make

Function = Callable[[Operand], Expr]


NAMES: set[str] = set()
"""The names of the functions, as primitives."""


def function(name: str) -> Function:
    """Return the primitive of an array function."""
    NAMES.add(name)
    return partial(make, name)


cbrt, rsqrt, square, reciprocal = map(function, ("cbrt", "rsqrt", "square", "reciprocal"))
exp, expm1 = map(function, ("exp", "expm1"))
log, log10, log2, log1p = map(function, ("log", "log10", "log2", "log1p"))
sin, cos, tan, arcsin, arccos, arctan = map(function, ("sin", "cos", "tan", "arcsin", "arccos", "arctan"))
sinh, cosh, tanh = map(function, ("sinh", "cosh", "tanh"))
arcsinh, arccosh, arctanh = map(function, ("arcsinh", "arccosh", "arctanh"))
degrees, radians = map(function, ("degrees", "radians"))
erf, erfinv = map(function, ("erf", "erfinv"))
gamma, gammaln, digamma = map(function, ("gamma", "gammaln", "digamma"))
copy = function("copy")
sign = function("sign")
"""1, 0 or -1; that of NaN is 0, as in MXNet."""
relu = function("relu")
slope_of_relu = function("slope_of_relu")
"""The slope of relu as a function of its output: 1 above 0, else 0; NaN stays."""
sigmoid = function("sigmoid")
softplus = function("softplus")
"""log(1 + eˣ)."""
normal = function("normal")
"""The standard normal distribution's Φ(x)."""
normal_density = function("normal_density")
"""The standard normal distribution's density φ(x)."""
