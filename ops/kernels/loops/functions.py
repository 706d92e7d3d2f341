"""Mathematical functions of float32 as formulas without branches, right for every input.

Each is a range reduction and a polynomial; the polynomials are fitted to the least greatest relative error
on the reduced range (by weighted least squares, reweighted until the error is even) and stay below 4e-8.
With rounding the functions are within about 2 units in the last place; infinities, NaN, zeros, denormals and
overflow come out as the function's own limits. Tests measure all of that.
"""

from __future__ import annotations

import math

from flowmx.ops.kernels.loops.expressions import (
    Expr,
    Operand,
    absolute,
    clip,
    copysign,
    equal,
    exponent,
    fma,
    mantissa,
    nearest,
    polynomial,
    scale,
    sqrt,
    where,
)

INFINITY = math.inf
_LOG2_E = 1.4426950408889634
# ln 2 in two parts, of which the first has few enough bits that its product with a whole number is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.121944400546905e-4
_LEAST_NORMAL = 1.1754943508222875e-38
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
    0.6931471824645996, 0.24022647738456726, 0.055503323674201965, 0.00961843691766262, 0.0013398872688412666,
    0.00015353385242633522,
)  # fmt: skip
# log₂ Φ(-t) of t from 0 to 5.3, where Φ is the normal distribution's; the weights keep Φ itself exact to 3e-8.
# Beyond, the polynomial falls faster than the function, of which there is no more than 6e-8 left.
_LOG2_TAIL = (
    -1.0, -1.1511046886444092, -0.4592171907424927, -0.052449312061071396, 0.0069532389752566814,
    3.282277418747981e-07, -0.00028294333606027067, 7.843576167942956e-05, -1.150150092144031e-05,
    9.284328825742705e-07, -3.2384676273977675e-08,
)  # fmt: skip


def _split(x: Expr) -> tuple[Expr, Expr]:
    """The numbers n and r of x = n · ln 2 + r, with |r| ≤ ln(2)/2."""
    n = nearest(x * _LOG2_E)
    return n, fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))


def exp(x: Expr) -> Expr:
    """eˣ."""
    n, r = _split(clip(x, -104.0, 89.0))  # beyond them lie 0 and infinity
    return scale(polynomial(r, (1.0, 1.0, *_EXPM1)), n)


def expm1(x: Expr) -> Expr:
    """eˣ - 1, exact for small x."""
    n, r = _split(clip(x, -104.0, 89.0))
    tail = fma(polynomial(r, _EXPM1), r * r, r)
    half = scale(0.5, n)  # 2ⁿ itself may be too large, where the result is not
    return fma(half, tail, half - 0.5) * 2.0


def _log_normal(x: Expr) -> Expr:
    """The logarithm of normal positive numbers."""
    e, f = exponent(x), mantissa(x) - 1.0
    square = f * f
    result = fma(e, _LN2_LOW, polynomial(f, _LOG1P) * f * square)
    return fma(e, _LN2_HIGH, f + fma(square, -0.5, result))


def log(x: Expr) -> Expr:
    """The natural logarithm."""
    denormal = x < _LEAST_NORMAL
    result = _log_normal(where(denormal, x * 8388608.0, x)) - where(denormal, 15.942385152878742, 0.0)
    result = where(x < INFINITY, result, x)
    return where(x > 0.0, result, where(equal(x, 0.0), -INFINITY, math.nan))


def log1p(x: Expr) -> Expr:
    """log(1 + x), exact for small x."""
    one_more = x + 1.0
    # What rounding lost in 1 + x comes back as a factor (W. Kahan).
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
    return 1.0 / (exp(-x) + 1.0)


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent."""
    e = expm1(absolute(x) * -2.0)
    return copysign(e / (e + 2.0), x)


def _normal_tail(t: Expr) -> Expr:
    """Φ(-t) for t ≥ 0."""
    power = polynomial(where(t > 11.8, 11.8, t), _LOG2_TAIL)  # there it is 2^-193, which is 0
    n = nearest(power)
    return scale(polynomial(power - n, (1.0, *_EXP2M1)), n)


def normal(x: Expr) -> Expr:
    """The standard normal distribution's Φ(x)."""
    tail = _normal_tail(absolute(x))
    return where(x > 0.0, 1.0 - tail, tail)


def normal_density(x: Expr) -> Expr:
    """The standard normal distribution's density φ(x)."""
    return exp(x * x * -0.5) * _TO_DENSITY


def erf(x: Expr) -> Expr:
    """The error function."""
    far = copysign(1.0 - _normal_tail(absolute(x * _ROOT_TWO)) * 2.0, x)
    return where(absolute(x) < 1.0, polynomial(x * x, _ERF) * x, far)


def rsqrt(x: Operand) -> Expr:
    """1/√x."""
    return 1.0 / sqrt(x)
