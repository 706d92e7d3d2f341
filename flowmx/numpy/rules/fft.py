"""The gradients of Fourier transforms: the transposed transforms, cropped or padded like the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.numpy.rules.registry import getitem, rule

__all__: list[str] = []

_INVERSE_NORM = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}
"""The norm for which the inverse transform has the scale factor of the transform."""


def _resize(xp: Any, g: Any, length: int, axis: int) -> Any:
    """Crop or zero-pad a gradient along an axis to a length."""
    size = g.shape[axis]
    if size > length:
        return getitem(g, (slice(None),) * axis + (slice(0, length),))
    if size < length:
        return xp.pad(g, tuple((0, length - size if index == axis else 0) for index in range(g.ndim)))
    return g


def _complex_gradient(xp: Any, g: Any, x: Any, axis: int, norm: Any, inverse: bool) -> Any:
    back = xp.fft.fft if inverse else xp.fft.ifft
    return _resize(xp, back(g, axis=axis, norm=_INVERSE_NORM[norm]), x.shape[axis], axis)


def _real_input_gradient(xp: Any, g: Any, x: Any, axis: int, norm: Any, n: int | None) -> Any:
    count = x.shape[axis] if n is None else n
    gradient = xp.fft.ifft(g, n=count, axis=axis, norm=_INVERSE_NORM[norm])
    return xp.real(_resize(xp, gradient, x.shape[axis], axis))


def _real_output_gradient(xp: Any, g: Any, x: Any, axis: int, norm: Any) -> Any:
    """Return the gradient of a transform with real output, whose input also represents its mirrored half."""
    count = g.shape[axis]
    gradient = xp.fft.rfft(g, axis=axis, norm=_INVERSE_NORM[norm])
    places = xp.reshape(xp.arange(gradient.shape[axis]), tuple(-1 if index == axis else 1 for index in range(g.ndim)))
    once = (places == 0) | (places * 2 == count)
    return _resize(xp, gradient * xp.where(once, 1.0, 2.0).astype(g.dtype), x.shape[axis], axis)


@rule("fft.fft")
def _fft(xp: Any, g: Any, r: Any, a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return (_complex_gradient(xp, g, a, axis % a.ndim, norm, False),)


@rule("fft.ifft")
def _ifft(xp: Any, g: Any, r: Any, a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return (_complex_gradient(xp, g, a, axis % a.ndim, norm, True),)


@rule("fft.rfft")
def _rfft(xp: Any, g: Any, r: Any, a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return (_real_input_gradient(xp, g, a, axis % a.ndim, norm, n),)


@rule("fft.irfft")
def _irfft(xp: Any, g: Any, r: Any, a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return (_real_output_gradient(xp, g, a, axis % a.ndim, norm),)


@rule("fft.hfft")
def _hfft(xp: Any, g: Any, r: Any, a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return (xp.conjugate(_real_output_gradient(xp, g, a, axis % a.ndim, _INVERSE_NORM[norm])),)


@rule("fft.ihfft")
def _ihfft(xp: Any, g: Any, r: Any, a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return (_real_input_gradient(xp, xp.conjugate(g), a, axis % a.ndim, _INVERSE_NORM[norm], n),)


def _resolve_axes(a: Any, s: Any, axes: Any) -> Sequence[int]:
    if axes is None:
        axes = range(a.ndim) if s is None else range(a.ndim - len(s), a.ndim)
    return [axis % a.ndim for axis in axes]


def _complex_gradients(xp: Any, g: Any, a: Any, axes: Sequence[int], norm: Any, inverse: bool) -> Any:
    for axis in axes:
        g = _complex_gradient(xp, g, a, axis, norm, inverse)
    return g


@rule("fft.fftn")
def _fftn(xp: Any, g: Any, r: Any, a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    return (_complex_gradients(xp, g, a, _resolve_axes(a, s, axes), norm, False),)


@rule("fft.ifftn")
def _ifftn(xp: Any, g: Any, r: Any, a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    return (_complex_gradients(xp, g, a, _resolve_axes(a, s, axes), norm, True),)


@rule("fft.fft2")
def _fft2(xp: Any, g: Any, r: Any, a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None) -> Any:
    return _fftn(xp, g, r, a, s, axes, norm)


@rule("fft.ifft2")
def _ifft2(xp: Any, g: Any, r: Any, a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None) -> Any:
    return _ifftn(xp, g, r, a, s, axes, norm)


@rule("fft.rfftn")
def _rfftn(xp: Any, g: Any, r: Any, a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    *others, last = _resolve_axes(a, s, axes)
    count = None if s is None or s[-1] == -1 else s[-1]
    return (_real_input_gradient(xp, _complex_gradients(xp, g, a, others, norm, False), a, last, norm, count),)


@rule("fft.irfftn")
def _irfftn(xp: Any, g: Any, r: Any, a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    *others, last = _resolve_axes(a, s, axes)
    return (_complex_gradients(xp, _real_output_gradient(xp, g, a, last, norm), a, others, norm, True),)


@rule("fft.rfft2")
def _rfft2(xp: Any, g: Any, r: Any, a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None) -> Any:
    return _rfftn(xp, g, r, a, s, axes, norm)


@rule("fft.irfft2")
def _irfft2(xp: Any, g: Any, r: Any, a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None) -> Any:
    return _irfftn(xp, g, r, a, s, axes, norm)
