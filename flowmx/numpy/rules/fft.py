"""The gradients of Fourier transforms: the transposed transforms, cropped or padded like the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.numpy.rules.registry import Axis, getitem, rule
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor

__all__: list[str] = []

_INVERSE_NORM = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}
"""The norm for which the inverse transform has the scale factor of the transform."""


def _resize(xp: Functions, g: Tensor, length: int, axis: int) -> Tensor:
    """Crop or zero-pad a gradient along an axis to a length."""
    size = g.shape[axis]
    if size > length:
        return getitem(g, (slice(None),) * axis + (slice(0, length),))
    if size < length:
        return xp.pad(g, tuple((0, length - size if index == axis else 0) for index in range(g.ndim)))
    return g


def _complex_gradient(xp: Functions, g: Tensor, x: Tensor, axis: int, norm: str | None, inverse: bool) -> Tensor:
    back = xp.fft.fft if inverse else xp.fft.ifft
    return _resize(xp, back(g, axis=axis, norm=_INVERSE_NORM[norm]), x.shape[axis], axis)


def _real_input_gradient(xp: Functions, g: Tensor, x: Tensor, axis: int, norm: str | None, n: int | None) -> Tensor:
    count = x.shape[axis] if n is None else n
    gradient = xp.fft.ifft(g, n=count, axis=axis, norm=_INVERSE_NORM[norm])
    return xp.real(_resize(xp, gradient, x.shape[axis], axis))


def _real_output_gradient(xp: Functions, g: Tensor, x: Tensor, axis: int, norm: str | None) -> Tensor:
    """Return the gradient of a transform with real output, whose input also represents its mirrored half."""
    count = g.shape[axis]
    gradient = xp.fft.rfft(g, axis=axis, norm=_INVERSE_NORM[norm])
    places = xp.reshape(xp.arange(gradient.shape[axis]), tuple(-1 if index == axis else 1 for index in range(g.ndim)))
    first: Any = places == 0
    once = first | (places * 2 == count)
    return _resize(xp, gradient * xp.where(once, 1.0, 2.0).astype(g.dtype), x.shape[axis], axis)


@rule("fft.fft")
def _fft(
    xp: Functions, g: Tensor, r: Tensor, a: Tensor, n: object = None, axis: int = -1, norm: str | None = None
) -> Gradients:
    return (_complex_gradient(xp, g, a, axis % a.ndim, norm, False),)


@rule("fft.ifft")
def _ifft(
    xp: Functions, g: Tensor, r: Tensor, a: Tensor, n: object = None, axis: int = -1, norm: str | None = None
) -> Gradients:
    return (_complex_gradient(xp, g, a, axis % a.ndim, norm, True),)


@rule("fft.rfft")
def _rfft(
    xp: Functions, g: Tensor, r: Tensor, a: Tensor, n: Any = None, axis: int = -1, norm: str | None = None
) -> Gradients:
    return (_real_input_gradient(xp, g, a, axis % a.ndim, norm, n),)


@rule("fft.irfft")
def _irfft(
    xp: Functions, g: Tensor, r: Tensor, a: Tensor, n: object = None, axis: int = -1, norm: str | None = None
) -> Gradients:
    return (_real_output_gradient(xp, g, a, axis % a.ndim, norm),)


@rule("fft.hfft")
def _hfft(
    xp: Functions, g: Tensor, r: Tensor, a: Tensor, n: object = None, axis: int = -1, norm: str | None = None
) -> Gradients:
    return (xp.conjugate(_real_output_gradient(xp, g, a, axis % a.ndim, _INVERSE_NORM[norm])),)


@rule("fft.ihfft")
def _ihfft(
    xp: Functions, g: Tensor, r: Tensor, a: Tensor, n: Any = None, axis: int = -1, norm: str | None = None
) -> Gradients:
    return (_real_input_gradient(xp, xp.conjugate(g), a, axis % a.ndim, _INVERSE_NORM[norm], n),)


def _resolve_axes(a: Any, s: Any, axes: Any) -> Sequence[int]:
    if axes is None:
        axes = range(a.ndim) if s is None else range(a.ndim - len(s), a.ndim)
    return [axis % a.ndim for axis in axes]


def _complex_gradients(
    xp: Functions, g: Tensor, a: Tensor, axes: Sequence[int], norm: str | None, inverse: bool
) -> Tensor:
    for axis in axes:
        g = _complex_gradient(xp, g, a, axis, norm, inverse)
    return g


@rule("fft.fftn")
def _fftn(
    xp: Functions, g: Tensor, r: Tensor, a: Tensor, s: object = None, axes: Axis = None, norm: str | None = None
) -> Gradients:
    return (_complex_gradients(xp, g, a, _resolve_axes(a, s, axes), norm, False),)


@rule("fft.ifftn")
def _ifftn(
    xp: Functions, g: Tensor, r: Tensor, a: Tensor, s: object = None, axes: Axis = None, norm: str | None = None
) -> Gradients:
    return (_complex_gradients(xp, g, a, _resolve_axes(a, s, axes), norm, True),)


@rule("fft.fft2")
def _fft2(
    xp: Functions, g: Tensor, r: Tensor, a: Tensor, s: object = None, axes: Axis = (-2, -1), norm: str | None = None
) -> Gradients:
    return _fftn(xp, g, r, a, s, axes, norm)


@rule("fft.ifft2")
def _ifft2(
    xp: Functions, g: Tensor, r: Tensor, a: Tensor, s: object = None, axes: Axis = (-2, -1), norm: str | None = None
) -> Gradients:
    return _ifftn(xp, g, r, a, s, axes, norm)


@rule("fft.rfftn")
def _rfftn(
    xp: Functions, g: Tensor, r: Tensor, a: Tensor, s: Any = None, axes: Axis = None, norm: str | None = None
) -> Gradients:
    *others, last = _resolve_axes(a, s, axes)
    count = None if s is None or s[-1] == -1 else s[-1]
    return (_real_input_gradient(xp, _complex_gradients(xp, g, a, others, norm, False), a, last, norm, count),)


@rule("fft.irfftn")
def _irfftn(
    xp: Functions, g: Tensor, r: Tensor, a: Tensor, s: object = None, axes: Axis = None, norm: str | None = None
) -> Gradients:
    *others, last = _resolve_axes(a, s, axes)
    return (_complex_gradients(xp, _real_output_gradient(xp, g, a, last, norm), a, others, norm, True),)


@rule("fft.rfft2")
def _rfft2(
    xp: Functions, g: Tensor, r: Tensor, a: Tensor, s: object = None, axes: Axis = (-2, -1), norm: str | None = None
) -> Gradients:
    return _rfftn(xp, g, r, a, s, axes, norm)


@rule("fft.irfft2")
def _irfft2(
    xp: Functions, g: Tensor, r: Tensor, a: Tensor, s: object = None, axes: Axis = (-2, -1), norm: str | None = None
) -> Gradients:
    return _irfftn(xp, g, r, a, s, axes, norm)
