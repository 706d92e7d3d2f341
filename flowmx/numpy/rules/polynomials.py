"""The gradients of convolutions and polynomials."""

from __future__ import annotations

import math

from flowmx.numpy.rules.registry import getitem, is_array, refuse, rule
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor

__all__: list[str] = []


def _full_gradient(xp: Functions, g: Tensor, long: int, short: int, mode: str) -> Tensor:
    """Pad the gradient of a cropped convolution to that of the full convolution."""
    full = long + short - 1
    first = {"full": 0, "same": (short - 1) // 2, "valid": short - 1}[mode]
    return xp.pad(g, (first, full - first - g.shape[0]))


@rule("convolve")
def _convolve(xp: Functions, g: Tensor, r: Tensor, a: Tensor, v: Tensor, mode: str = "full") -> Gradients:
    head = _full_gradient(xp, g, max(a.size, v.size), min(a.size, v.size), mode)
    return tuple(xp.convolve(head, xp.flip(xp.reshape(other, -1)), mode="valid") for other in (v, a))


@rule("correlate")
def _correlate(xp: Functions, g: Tensor, r: Tensor, a: Tensor, v: Tensor, mode: str = "valid") -> Gradients:
    swapped = v.size > a.size  # NumPy flips the shorter array, and then the result
    if swapped and mode != "full":
        v_gradient, a_gradient = _correlate(xp, xp.flip(g), r, v, a, mode)
        return a_gradient, v_gradient
    a_gradient, flipped_gradient = _convolve(xp, g, r, a, xp.flip(v), mode)
    return a_gradient, xp.flip(flipped_gradient)


def _trailing(xp: Functions, g: Tensor, x: Tensor) -> Tensor:
    return getitem(g, slice(g.shape[0] - x.shape[0], None)) if x.ndim else getitem(g, -1)


@rule("polyadd")
def _polyadd(xp: Functions, g: Tensor, r: Tensor, a: Tensor, b: Tensor) -> Gradients:
    return _trailing(xp, g, a), _trailing(xp, g, b)


@rule("polysub")
def _polysub(xp: Functions, g: Tensor, r: Tensor, a: Tensor, b: Tensor) -> Gradients:
    return _trailing(xp, g, a), -_trailing(xp, g, b)


@rule("polymul")
def _polymul(xp: Functions, g: Tensor, r: Tensor, a: Tensor, b: Tensor) -> Gradients:
    if not (is_array(a) and is_array(b)) or g.shape[0] != a.size + b.size - 1:
        refuse("polymul of lists, or with zeros for the highest powers,")
    return _convolve(xp, g, r, a, b)


@rule("polyder")
def _polyder(xp: Functions, g: Tensor, r: Tensor, p: Tensor, m: int = 1) -> Gradients:
    degree = p.shape[0] - 1
    factors = [math.perm(degree - index, m) for index in range(g.shape[0])]
    return (xp.pad(g * xp.array(factors, dtype=g.dtype), (0, p.shape[0] - g.shape[0])),)


@rule("polyint")
def _polyint(xp: Functions, g: Tensor, r: Tensor, p: Tensor, m: int = 1, k: Tensor | None = None) -> Gradients:
    if is_array(k):
        refuse("polyint with an array k")
    count = p.shape[0]
    factors = [1 / math.perm(count - 1 - index + m, m) for index in range(count)]
    return (getitem(g, slice(0, count)) * xp.array(factors, dtype=g.dtype),)


@rule("polyval")
def _polyval(xp: Functions, g: Tensor, r: Tensor, p: Tensor, x: Tensor) -> Gradients:
    if not is_array(p) or not is_array(x):
        refuse("polyval of a list")
    count = p.shape[0]
    powers = [xp.power(x, count - 1 - index) for index in range(count)]
    p_gradient = xp.stack([xp.sum(g * power) for power in powers])
    x_gradient = g * 0
    for index in range(count - 1):
        x_gradient = x_gradient + g * getitem(p, index) * powers[index + 1] * (count - 1 - index)
    return p_gradient, x_gradient


@rule("vander")
def _vander(xp: Functions, g: Tensor, r: Tensor, x: Tensor, N: object = None, increasing: bool = False) -> Gradients:
    count = g.shape[-1]
    powers = xp.arange(count, dtype=x.dtype)
    powers = powers if increasing else xp.flip(powers)
    lower = xp.power(xp.expand_dims(x, -1), xp.maximum(powers - 1, 0.0))
    return (xp.sum(g * powers * lower, axis=-1),)
