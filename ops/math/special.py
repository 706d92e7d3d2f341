"""Error functions and the sigmoid on whole arrays: minimax polynomials, evaluated in cache-sized blocks.

These functions are called as ``function(xp, x, out)``. In float16 and float32 they are accurate to a few units in the
last place, in float64 to a relative error of about 1e-15. The others are their building blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flowmx.ops.nn.common import blocks
from flowmx.ops.registry.dtypes import BY_NAME, FLOAT32, is_floating
from flowmx.ops.registry.operators import Array
from flowmx.ops.registry.tensors import ArrayNamespace

Core = Callable[[ArrayNamespace, Array], Array]
"""Called as ``core(xp, block)`` with a block of one axis; returns a new array."""


def horner(coefficients: Sequence[float], x: Array) -> Array:
    """Return a polynomial in ``x``, in its dtype; the constant coefficient comes first."""
    total = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        total += coefficient
        total *= x
    total += coefficients[0]
    return total


def piecewise(xp: ArrayNamespace, x: Array, pieces: Sequence[tuple[Array, Core]], otherwise: Core) -> Array:
    """Apply each function to the elements in its mask, and the last one to the rest."""
    if xp is not np:  # a mask would make the host wait, so compute every function on all elements
        result: Array = otherwise(xp, x)
        for mask, function in reversed(pieces):
            result = xp.where(mask, function(xp, x), result)
        return result
    remaining = xp.ones(x.shape, bool)
    result = xp.empty_like(x)
    for condition, function in [*pieces, (None, otherwise)]:
        mask = remaining if condition is None else condition & remaining
        count = int(xp.count_nonzero(mask))
        if count == x.size:
            return function(xp, x)
        if count:
            result[mask] = function(xp, x[mask])
            remaining &= ~mask
    return result


def sigmoid(xp: ArrayNamespace, x: Array, out: Array) -> None:
    """Compute 1/(1 + e⁻ˣ) with full relative precision, even for large negative x."""
    work = out if out.dtype.itemsize > 2 else xp.empty(out.shape, FLOAT32)  # 1 + e⁻ˣ loses small terms in 16 bits
    xp.multiply(x, -1.0, out=work, casting="unsafe")
    xp.exp(work, out=work)
    xp.add(work, 1.0, out=work)
    xp.reciprocal(work, out=work)
    if work is not out:
        out[...] = work


def blockwise(core: Core, float32_core: Core | None = None) -> Callable[[ArrayNamespace, Array, Array], None]:
    """Return a function ``(xp, x, out)`` from a core for float64, and one for float32 if that is precise enough."""

    def call(xp: ArrayNamespace, x: Array, out: Array) -> None:
        function, dtype = core, BY_NAME["float64"]
        if float32_core is not None and is_floating(x.dtype) and x.dtype.itemsize <= 4:
            function, dtype = float32_core, FLOAT32
        for part, result in blocks(x, out):
            result[...] = function(xp, part.reshape(-1).astype(dtype, copy=False)).reshape(result.shape)

    return call


# -- erf ---------------------------------------------------------------------------------------------------
# erf x = 1 - exp(-x·q(x)) for x ≥ 0, where q(x) = -log(erfc x)/x is smooth: one polynomial covers small x, with
# full relative precision, and large x, up to erf x = 1.

_ERF32 = (
    2.682470208, 0.8678436601, 0.0279590195, -0.005717098638, 0.001112262317, -0.0001919208337, -2.255117907e-5,
    -3.045833582e-5, -9.256399448e-6,
)  # fmt: skip
_ERF = (
    3.573454347327002, 0.9100997805592654, 0.015764812753510646, -0.0027843069745571093, 0.00047699880051024226,
    -7.710241535613372e-05, 1.1340041242417465e-05, -1.4078393478315862e-06, 1.1371753480724436e-07,
    8.012464561533759e-09, -7.094039238135968e-09, 1.0057003341251183e-09, -6.861188404790821e-10,
    4.4715568715512416e-10, 3.639048351495816e-10, 1.0322017771648844e-10, -5.6780640941582074e-11,
    -5.635690820527327e-11, -1.7170880399291657e-11, 7.678260890298663e-13, 2.4278689437701506e-12,
    9.050052802441203e-13, 1.7361709535641488e-13, 1.7893084011681847e-14, 7.831227770405972e-16,
)  # fmt: skip


def _erf(xp: ArrayNamespace, x: Array, coefficients: Sequence[float], limit: float) -> Array:
    size = xp.minimum(xp.abs(x), limit)
    power = horner(coefficients, size - limit / 2)
    power *= size
    xp.negative(power, out=power)
    xp.expm1(power, out=power)
    xp.negative(power, out=power)
    return xp.copysign(power, x, out=power)


erf = blockwise(lambda xp, x: _erf(xp, x, _ERF, 6.0), lambda xp, x: _erf(xp, x, _ERF32, 4.0))
"""The error function."""


# -- erfinv ------------------------------------------------------------------------------------------------
# erfinv x = x·p(w) with w = -log(1 - x²), and x·p(√w) for larger w.

_ERFINV_LOW = (
    1.501409351110792, 0.24664027674416708, -0.004177317724382954, -0.0012527079078118758, 0.0002182502643397091,
    -4.996079595929289e-06, -3.4166195855766776e-06, 4.787252138885053e-07, 1.3416789553542062e-08,
    -1.0861164895440619e-08, 9.073143414212431e-10, 1.1960486890986026e-10, -3.1107799013778734e-11,
    9.122622592671105e-13, 5.371418913236647e-13, -7.627109899651365e-14, -3.1721657463942127e-15,
    1.915091818350845e-15, -1.0175045859462624e-16, -2.81353329446472e-17, 2.550024303840694e-18,
    2.0993880610404935e-19,
)  # fmt: skip
_ERFINV_MIDDLE = (
    2.9482836734501325, 1.0035761285019538, 0.007209216776670488, -0.005455332619741073, 0.003922316594106941,
    -0.0025962078860394013, 0.0012834139152335048, -0.00032100088399678647, -0.00010206770428475513,
    0.00014199977086799926, -5.9016781496502025e-05, 7.661678003968569e-07, 1.2228551893504174e-05,
    -6.387142922910352e-06, 7.697285702080044e-07, 8.351994026793789e-07, -5.560955452255702e-07,
    1.290207355149319e-07, 4.023285925860436e-08, -4.9182504893891913e-08, 1.3876490832125824e-08,
    4.478114428535258e-09, -2.696617757227233e-09,
)  # fmt: skip
_ERFINV_HIGH = (
    4.90042105144364, 1.010285017597772, -0.00016985809149628928, -0.00020031200667863054, 7.124031549219013e-05,
    -1.8374536160087516e-05, 4.19385310480203e-06, -9.070859041753483e-07, 2.016220812351175e-07,
    -5.4932340487092564e-08, 2.18139148461544e-08, -1.1206837929963357e-08, 5.818083877506783e-09,
    -2.6317226686411228e-09, 1.037393734883676e-09, -3.8651299874156073e-10, 8.274335432158474e-11,
    2.8839584598479135e-11, -1.6505200835346353e-11,
)  # fmt: skip


def _erfinv(xp: ArrayNamespace, x: Array) -> Array:
    size = xp.abs(x)
    w = -xp.log((1 - size) * (1 + size))
    factor = piecewise(xp, w, [(w < 5, _factor_low), (w < 16, _factor_middle)], _factor_high)
    return xp.where(size == 1, xp.copysign(np.inf, x), x * factor)


def _factor_low(xp: ArrayNamespace, w: Array) -> Array:
    return horner(_ERFINV_LOW, w - 2.5)


def _factor_middle(xp: ArrayNamespace, w: Array) -> Array:
    return horner(_ERFINV_MIDDLE, xp.sqrt(w) - 3.115)


def _factor_high(xp: ArrayNamespace, w: Array) -> Array:
    return horner(_ERFINV_HIGH, xp.sqrt(w) - 5.05)


erfinv = blockwise(_erfinv)
"""The inverse of the error function: infinite at -1 and 1, NaN outside."""
