"""The gamma function, its logarithm and the derivatives of the logarithm, on whole arrays, in float64.

Each is called as ``function(xp, x, out)``. Arguments from 0 to 8 are moved near 2 by the recurrence, where a minimax
polynomial applies. Larger arguments use Stirling's series, negative ones the reflection formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial import Polynomial

from flowmx.ops.math.special import blockwise, horner, piecewise
from flowmx.ops.registry.operators import Array
from flowmx.ops.registry.tensors import ArrayNamespace

_FAR = 8
"""The argument from which Stirling's series is used."""

# Γ(2+u) = 1 + u·g(u) and log Γ(2+u) = u·l(u), for |u| ≤ 1/2.
_GAMMA = (
    0.42278433509846713, 0.4118403304264403, 0.08157691924708162, 0.07424901075341468, -0.0002669820683674259,
    0.011154045723632346, -0.0028526458348379666, 0.0021039331914658017, -0.0009195735695207951,
    0.0004903907338987765, -0.00024094459889592468, 0.0001216528008436019, -6.07697602617858e-05,
    3.0571821797080394e-05, -1.5340805952620528e-05, 7.225562877099087e-06, -3.5196069585565622e-06,
    2.6180157623408808e-06, -1.3893018668313577e-06,
)  # fmt: skip
_LGAMMA = (
    0.42278433509846713, 0.32246703342411326, -0.06735230105319831, 0.02058080842778057, -0.0073855510286496215,
    0.002890510331023699, -0.0011927539127614213, 0.0005096695156758811, -0.00022315473511433286,
    9.945767004705675e-05, -4.4926531621126796e-05, 2.0505617232536418e-05, -9.43723396475349e-06,
    4.38459064301037e-06, -2.049763429599801e-06, 9.203122319885392e-07, -4.200269527433687e-07,
    2.7849711529798437e-07, -1.4330683592391785e-07,
)  # fmt: skip
# Γ(x) = √(2π) x^(x-1/2) e^-x (1 + s(1/x)/x), and the correction of its logarithm, s(1/x²)/x.
_STIRLING = (
    0.08333333333333337, 0.003472222222204478, -0.0026813271579865247, -0.0002294722697722751, 0.0007840463798618955,
    6.954640376031148e-05, -0.0005891718226696327, -8.407204864390285e-05, 0.0010644094781422852,
    -0.0008688194561712969,
)  # fmt: skip
_STIRLING_LOG = (
    0.08333333333333333, -0.002777777777774101, 0.0007936507898362744, -0.0005952366073256403, 0.0008414728941784841,
    -0.001890542436091299, 0.00506930053531199,
)  # fmt: skip
# ψ(x) = (x - root) d(x - 3/2) for x from 1 to 2, and log x - 1/(2x) - d(1/x²)/x² far out.
_DIGAMMA = (
    0.9510558760318328, -0.4236274212814606, 0.24054248424078725, -0.14840492305388017, 0.09498872445284777,
    -0.06192213327555281, 0.040760833943492766, -0.026975796657232282, 0.017907248232794146, -0.011908220161612144,
    0.007927023373235349, -0.005279936526628339, 0.003518088224339048, -0.002345500724092515, 0.0015635066936078173,
    -0.0010364274571860736, 0.0006902674517186719, -0.00048604900452206497, 0.00032592181053176124,
    -0.00014463101168329625, 9.322975244909538e-05, -0.00017835259152868514, 0.00012121850362318896,
)  # fmt: skip
_DIGAMMA_FAR = (
    0.08333333333333316, -0.008333333333041464, 0.003968253804594593, -0.004166622998341309, 0.007569480213048248,
    -0.02058909534736434, 0.06153858063007377,
)  # fmt: skip
_ROOT = (1.4616321449683622, 9.549995429965697e-17)  # in two parts, since leading digits cancel


def _near_two(xp: ArrayNamespace, x: Array) -> tuple[Array, Array, Array]:
    """Return u, a product and a mask, for x from 0 to 8: Γ(x) = Γ(2+u) · product, or Γ(2+u)/product where masked."""
    u = x - xp.ceil(x - 0.5)  # halves round down, as in the comparisons below
    below = x <= 1.5
    product = xp.where(below, x, 1.0)
    product *= xp.where(x <= 0.5, x + 1, 1.0)
    for step in range(1, _FAR - 1):
        factor = x - step
        product *= xp.where(factor > 1.5, factor, 1.0)
    return u, product, below


def _sine(xp: ArrayNamespace, x: Array) -> Array:
    """Return the sine of πx, exact at integers and halves."""
    nearest = xp.rint(x)
    value = xp.sin(np.pi * (x - nearest))
    return xp.where(nearest % 2 == 0, value, -value)


# -- Γ -----------------------------------------------------------------------------------------------------


def _gamma_near(xp: ArrayNamespace, x: Array) -> Array:
    u, product, below = _near_two(xp, x)
    value = 1 + u * horner(_GAMMA, u)
    return xp.where(below, value / product, value * product)


def _gamma_far(xp: ArrayNamespace, x: Array) -> Array:
    x = xp.minimum(x, 200.0)  # Γ overflows long before
    root = xp.power(x, x / 2 - 0.25)  # the full power may overflow although Γ does not
    value = 1 + horner(_STIRLING, 1 / x) / x
    value *= math.sqrt(2 * math.pi) * xp.exp(-x)
    return value * root * root


def _gamma_positive(xp: ArrayNamespace, x: Array) -> Array:
    return piecewise(xp, x, [(x < _FAR, _gamma_near)], _gamma_far)


def _gamma_negative(xp: ArrayNamespace, x: Array) -> Array:
    value = -np.pi / (x * _gamma_positive(xp, -x) * _sine(xp, x))
    return xp.where(x == xp.floor(x), np.nan, value)


gamma = blockwise(lambda xp, x: piecewise(xp, x, [(x < 0, _gamma_negative)], _gamma_positive))
"""The gamma function: NaN at negative integers."""


# -- log |Γ| -----------------------------------------------------------------------------------------------


def _gammaln_near(xp: ArrayNamespace, x: Array) -> Array:
    u, product, below = _near_two(xp, x)
    value = xp.log(product)
    result: Array = xp.where(below, -value, value) + u * horner(_LGAMMA, u)
    return result


def _gammaln_far(xp: ArrayNamespace, x: Array) -> Array:
    value: Array = (x - 0.5) * (xp.log(x) - 1)
    value += 0.5 * math.log(2 * math.pi) - 0.5
    value += horner(_STIRLING_LOG, 1 / (x * x)) / x
    return value


def _gammaln_positive(xp: ArrayNamespace, x: Array) -> Array:
    return piecewise(xp, x, [(x < _FAR, _gammaln_near)], _gammaln_far)


def _gammaln_negative(xp: ArrayNamespace, x: Array) -> Array:
    value = math.log(math.pi) - xp.log(-x) - xp.log(xp.abs(_sine(xp, x))) - _gammaln_positive(xp, -x)
    return xp.where(xp.isinf(x), np.inf, value)


gammaln = blockwise(lambda xp, x: piecewise(xp, x, [(x < 0, _gammaln_negative)], _gammaln_positive))
"""The logarithm of the absolute gamma function: infinite at 0 and negative integers."""


# -- ψ -----------------------------------------------------------------------------------------------------


def _digamma_near(xp: ArrayNamespace, x: Array) -> Array:
    y = xp.where(x < 1, x + 1, x - xp.floor(x) + 1)
    value = ((y - _ROOT[0]) - _ROOT[1]) * horner(_DIGAMMA, y - 1.5)
    value -= xp.where(x < 1, 1 / x, 0.0)
    for step in range(1, _FAR - 1):
        before = x - step
        value += xp.where(before >= 1, 1 / before, 0.0)
    return xp.where(x == 0, np.inf, value)


def _digamma_far(xp: ArrayNamespace, x: Array) -> Array:
    square = 1 / (x * x)
    return xp.log(x) - 0.5 / x - square * horner(_DIGAMMA_FAR, square)


def _digamma_positive(xp: ArrayNamespace, x: Array) -> Array:
    return piecewise(xp, x, [(x < _FAR, _digamma_near)], _digamma_far)


def _digamma_negative(xp: ArrayNamespace, x: Array) -> Array:
    value = _digamma_positive(xp, -x) - 1 / x - np.pi / xp.tan(np.pi * (x - xp.rint(x)))
    return xp.where(x == xp.floor(x), np.inf, value)


digamma = blockwise(lambda xp, x: piecewise(xp, x, [(x < 0, _digamma_negative)], _digamma_positive))
"""The derivative of gammaln: infinite at 0 and negative integers, as in MXNet."""


# -- the derivatives of ψ ----------------------------------------------------------------------------------

_SHIFT = 12
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330)


def _polygamma_positive(order: int) -> Any:
    def core(xp: ArrayNamespace, x: Array) -> Array:
        # The sum of n!/(x+k)^(n+1) over all k ≥ 0: the first terms directly, the others by the Euler-Maclaurin formula.
        total = xp.zeros_like(x)
        for step in range(_SHIFT):
            total += (x + step) ** -(order + 1)
        total *= math.factorial(order)
        z = x + _SHIFT
        remainder = math.factorial(order - 1) * z**-order + math.factorial(order) / 2 * z ** -(order + 1)
        for k, number in enumerate(_BERNOULLI, 1):
            remainder += number * math.factorial(order + 2 * k - 1) / math.factorial(2 * k) * z ** -(order + 2 * k)
        total += remainder
        return total if order % 2 else -total

    return core


def _cotangent(order: int) -> list[float]:
    """Return a derivative of π cot πx as coefficients of a polynomial in cot πx."""
    polynomial = Polynomial([0.0, np.pi])
    for _ in range(order):
        polynomial = polynomial.deriv() * Polynomial([-np.pi, 0.0, -np.pi])
    return [float(coefficient) for coefficient in polynomial.coef]


def polygamma(order: int) -> Callable[[ArrayNamespace, Array, Array], None]:
    """Return a derivative of digamma, from order 0, as a function ``(xp, x, out)``."""
    if order == 0:
        return digamma
    positive, cotangent = _polygamma_positive(order), _cotangent(order)

    def negative(xp: ArrayNamespace, x: Array) -> Array:
        value = positive(xp, -x) * (-1) ** order + math.factorial(order) * (-x) ** -(order + 1)
        value -= horner(cotangent, 1 / xp.tan(np.pi * (x - xp.rint(x))))
        return xp.where(x == xp.floor(x), np.nan, value)

    return blockwise(lambda xp, x: piecewise(xp, x, [(x < 0, negative)], positive))
