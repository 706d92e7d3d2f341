"""Mathematical functions of float32 as branchless formulas that are correct for every input.

Each is a range reduction and a polynomial. The polynomials minimize the greatest relative error on the reduced range
(weighted least squares, reweighted until the error is even), which stays below 4e-8.
With rounding, the functions are within about 2 units in the last place; infinities, NaN, zeros, denormals and
overflow give the function's limits. Tests measure all of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from flowmx.ops.formulas.expressions import (
    Expr,
    Operand,
    absolute,
    clip,
    copysign,
    equal,
    evaluation_order,
    exponent,
    fma,
    make,
    mantissa,
    nearest,
    one_if,
    polynomial,
    scale,
    sqrt,
    where,
)
from flowmx.ops.formulas.unary_functions import NAMES

INFINITY = math.inf
_LOG2_E = 1.4426950408889634
# ln 2 in two parts; the first has so few bits that its product with an integer is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.121944400546905e-4
_MIN_NORMAL = 1.1754943508222875e-38
_ROOT_HALF, _ROOT_TWO = 0.7071067811865476, 1.4142135623730951
_TO_DENSITY = 0.3989422804014327  # 1/√(2π)

# (eʳ - 1 - r)/r² for |r| ≤ ln(2)/2.
_EXPM1 = (0.5, 0.1666654348373413, 0.04166628420352936, 0.008366565220057964, 0.0013946412364020944)
# (log(1 + f) - f + f²/2)/f³ for √½ ≤ 1 + f < √2.
_LOG1P = (
    0.33333316445350647, -0.25000807642936707, 0.2000228613615036, -0.1662459522485733, 0.14181216061115265,
    -0.1312841922044754, 0.12881392240524292, -0.07860149443149567,
)  # fmt: skip
# erf(x)/x of x², for |x| ≤ 1.
_ERF = (
    1.1283791065216064, -0.3761262595653534, 0.11283580213785172, -0.026853585615754128, 0.005187884904444218,
    -0.0008006205898709595, 7.840427133487538e-05,
)  # fmt: skip
# (2ʳ - 1)/r for |r| ≤ ½.
_EXP2M1 = (
    0.6931470036506653, 0.24022242426872253, 0.05550733581185341, 0.009671512059867382, 0.0013264763401821256,
)  # fmt: skip
# log₂ Φ(-t) of t from 0 to 5.3, where Φ is the normal distribution's; the weights keep the absolute error of Φ at 1e-7,
# and the relative error of its small values at 2e-5. Beyond, the polynomial falls faster than Φ, which is below 6e-8.
_LOG2_TAIL = (
    -0.9999997615814209, -1.1511183977127075, -0.4590960741043091, -0.052840352058410645, 0.00755436671897769,
    -0.0004986055428162217, -4.4822725612903014e-05, 1.1609878129092976e-05, -6.813095865254581e-07,
)  # fmt: skip
_FAR_TAIL = 12.5
# log₂(1 - erf x) of x from 1 to 4; beyond, as above.
_LOG2_ERFC = (
    2.5511231797281653e-05, -1.6285415887832642, -0.9155861735343933, -0.1543525755405426, 0.03515252843499184,
    -0.005648492835462093, 0.0005594443064182997, -2.5345592803205363e-05,
)  # fmt: skip
_FAR_ERFC = 6.0


def _split(x: Expr) -> tuple[Expr, Expr]:
    """Return the numbers n and r of x = n · ln 2 + r, with |r| ≤ ln(2)/2."""
    n = nearest(x * _LOG2_E)
    return n, fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))


def _exp(x: Expr) -> Expr:
    """eˣ for x from -104 to 89; beyond, the limits are 0 and infinity."""
    n, r = _split(x)
    return scale(polynomial(r, (1.0, 1.0, *_EXPM1)), n)


def exp(x: Expr) -> Expr:
    """eˣ."""
    return _exp(clip(x, -104.0, 89.0))


def _half_expm1(x: Expr) -> Expr:
    """(eˣ - 1)/2 for x from -104 to 89, where eˣ itself may overflow."""
    n, r = _split(x)
    tail = fma(polynomial(r, _EXPM1), r * r, r)
    half = scale(0.5, n)
    return fma(half, tail, half - 0.5)


def expm1(x: Expr) -> Expr:
    """eˣ - 1, exact for small x."""
    return _half_expm1(clip(x, -104.0, 89.0)) * 2.0


def _log_normal(x: Expr) -> Expr:
    """The logarithm of normal positive numbers."""
    e, f = exponent(x), mantissa(x) - 1.0
    square = f * f
    result = fma(e, _LN2_LOW, polynomial(f, _LOG1P) * f * square)
    return fma(e, _LN2_HIGH, f + fma(square, -0.5, result))


def log(x: Expr) -> Expr:
    """The natural logarithm."""
    denormal = x < _MIN_NORMAL
    result = _log_normal(where(denormal, x * 8388608.0, x)) - where(denormal, 15.942385152878742, 0.0)
    result = where(x < INFINITY, result, x)
    return where(x > 0.0, result, where(equal(x, 0.0), -INFINITY, math.nan))


def log1p(x: Expr) -> Expr:
    """log(1 + x), exact for small x."""
    one_more = x + 1.0
    # Undoes the rounding error of 1 + x by a factor (W. Kahan).
    result = where(equal(one_more, 1.0), x, log(one_more) * (x / (one_more - 1.0)))
    return where(one_more < INFINITY, result, log(one_more))


def softplus(x: Expr) -> Expr:
    """log(1 + eˣ)."""
    small = exp(-absolute(x))
    one_more = small + 1.0
    correction = (small - (one_more - 1.0)) / one_more
    return where(x > 0.0, x, 0.0) + (_log_normal(one_more) + correction)


def sigmoid(x: Expr) -> Expr:
    """1/(1 + e⁻ˣ)."""
    return 1.0 / (_exp(-clip(x, -89.0, 104.0)) + 1.0)


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent."""
    double = absolute(x) * -2.0
    half = _half_expm1(where(double < -104.0, -104.0, double))
    return copysign(half / (half + 1.0), x)


def _exp2(x: Expr) -> Expr:
    """The power 2ˣ for x from -252 to 126, with a relative error of 1e-7."""
    n = nearest(x)
    return scale(polynomial(x - n, (1.0, *_EXP2M1)), n)


def normal(x: Expr) -> Expr:
    """The standard normal distribution's Φ(x)."""
    t = absolute(x)
    tail = _exp2(polynomial(where(t > _FAR_TAIL, _FAR_TAIL, t), _LOG2_TAIL))
    return where(x > 0.0, 1.0 - tail, tail)


def normal_density(x: Expr) -> Expr:
    """The standard normal distribution's density φ(x)."""
    power = x * x * (-0.5 * _LOG2_E)
    return _exp2(where(power < -200.0, -200.0, power)) * _TO_DENSITY


def erf(x: Expr) -> Expr:
    """The error function."""
    t = absolute(x)
    far = copysign(1.0 - _exp2(polynomial(where(t > _FAR_ERFC, _FAR_ERFC, t), _LOG2_ERFC)), x)
    return where(t < 1.0, polynomial(x * x, _ERF) * x, far)


def rsqrt(x: Operand) -> Expr:
    """1/√x."""
    return 1.0 / sqrt(x)


def relu(x: Expr) -> Expr:
    """max(x, 0); NaN stays."""
    return where(x < 0.0, 0.0, x)


def _sign(x: Expr) -> Expr:
    return one_if(x > 0.0) - one_if(x < 0.0)


EXPANSIONS: dict[str, Callable[[Expr], Expr]] = {
    "copy": lambda x: x,
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1.0 / x,
    "rsqrt": rsqrt,
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "softplus": softplus,
    "erf": erf,
    "normal": normal,
    "normal_density": normal_density,
    "relu": relu,
    "slope_of_relu": lambda y: where(y > 0.0, 1.0, y),
    "sign": _sign,
}
"""The formulas of the functions in :mod:`flowmx.ops.formulas.unary_functions` that loops compute; NaN stays."""


def expanded(outputs: Sequence[Expr]) -> list[Expr] | None:
    """Replace the functions in formulas by primitives; None if loops lack one of the functions."""
    expansions: dict[Expr, Expr] = {}
    for expr in evaluation_order(outputs, ()):
        args = [expansions[arg] for arg in expr.args]
        if expr.kind in EXPANSIONS:
            expansions[expr] = EXPANSIONS[expr.kind](*args)
        elif expr.kind in NAMES:
            return None
        else:
            expansions[expr] = make(expr.kind, *args) if args else expr
    return [expansions[output] for output in outputs]
