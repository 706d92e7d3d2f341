"""The gradients of Fourier transforms: the transposed transforms, with ends cut off or filled up as they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.numpy.rules.registry import part, rule

__all__: list[str] = []

_OTHER = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}
"""The norm with which the inverse transform has the factor that the transform has."""


def _fitted(np: Any, g: Any, length: int, axis: int) -> Any:
    """A gradient along an axis that was cut to another length, or filled up with zeros."""
    made = g.shape[axis]
    if made > length:
        return part(g, (slice(None),) * axis + (slice(0, length),))
    if made < length:
        return np.pad(g, tuple((0, length - made if at == axis else 0) for at in range(g.ndim)))
    return g


def _of_complex(np: Any, g: Any, x: Any, axis: int, norm: Any, inverse: bool) -> Any:
    back = np.fft.fft if inverse else np.fft.ifft
    return _fitted(np, back(g, axis=axis, norm=_OTHER[norm]), x.shape[axis], axis)


def _of_real(np: Any, g: Any, x: Any, axis: int, norm: Any, n: int | None) -> Any:
    count = x.shape[axis] if n is None else n
    found = np.fft.ifft(g, n=count, axis=axis, norm=_OTHER[norm])
    return np.real(_fitted(np, found, x.shape[axis], axis))


def _to_real(np: Any, g: Any, x: Any, axis: int, norm: Any) -> Any:
    """Of a transform to real numbers, whose input stands for its mirror image, too."""
    count = g.shape[axis]
    found = np.fft.rfft(g, axis=axis, norm=_OTHER[norm])
    places = np.reshape(np.arange(found.shape[axis]), tuple(-1 if at == axis else 1 for at in range(g.ndim)))
    once = (places == 0) | (places * 2 == count)
    return _fitted(np, found * np.where(once, 1.0, 2.0).astype(g.dtype), x.shape[axis], axis)


@rule("fft.fft")
def _fft(np: Any, g: Any, r: Any, a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return (_of_complex(np, g, a, axis % a.ndim, norm, False),)


@rule("fft.ifft")
def _ifft(np: Any, g: Any, r: Any, a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return (_of_complex(np, g, a, axis % a.ndim, norm, True),)


@rule("fft.rfft")
def _rfft(np: Any, g: Any, r: Any, a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return (_of_real(np, g, a, axis % a.ndim, norm, n),)


@rule("fft.irfft")
def _irfft(np: Any, g: Any, r: Any, a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return (_to_real(np, g, a, axis % a.ndim, norm),)


@rule("fft.hfft")
def _hfft(np: Any, g: Any, r: Any, a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return (np.conjugate(_to_real(np, g, a, axis % a.ndim, _OTHER[norm])),)


@rule("fft.ihfft")
def _ihfft(np: Any, g: Any, r: Any, a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return (_of_real(np, np.conjugate(g), a, axis % a.ndim, _OTHER[norm], n),)


def _several(a: Any, s: Any, axes: Any) -> Sequence[int]:
    if axes is None:
        axes = range(a.ndim) if s is None else range(a.ndim - len(s), a.ndim)
    return [each % a.ndim for each in axes]


def _unwound(np: Any, g: Any, a: Any, axes: Sequence[int], norm: Any, inverse: bool) -> Any:
    for axis in axes:
        g = _of_complex(np, g, a, axis, norm, inverse)
    return g


@rule("fft.fftn")
def _fftn(np: Any, g: Any, r: Any, a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    return (_unwound(np, g, a, _several(a, s, axes), norm, False),)


@rule("fft.ifftn")
def _ifftn(np: Any, g: Any, r: Any, a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    return (_unwound(np, g, a, _several(a, s, axes), norm, True),)


@rule("fft.fft2")
def _fft2(np: Any, g: Any, r: Any, a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None) -> Any:
    return _fftn(np, g, r, a, s, axes, norm)


@rule("fft.ifft2")
def _ifft2(np: Any, g: Any, r: Any, a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None) -> Any:
    return _ifftn(np, g, r, a, s, axes, norm)


@rule("fft.rfftn")
def _rfftn(np: Any, g: Any, r: Any, a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    *others, last = _several(a, s, axes)
    count = None if s is None or s[-1] == -1 else s[-1]
    return (_of_real(np, _unwound(np, g, a, others, norm, False), a, last, norm, count),)


@rule("fft.irfftn")
def _irfftn(np: Any, g: Any, r: Any, a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    *others, last = _several(a, s, axes)
    return (_unwound(np, _to_real(np, g, a, last, norm), a, others, norm, True),)


@rule("fft.rfft2")
def _rfft2(np: Any, g: Any, r: Any, a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None) -> Any:
    return _rfftn(np, g, r, a, s, axes, norm)


@rule("fft.irfft2")
def _irfft2(np: Any, g: Any, r: Any, a: Any, s: Any = None, axes: Any = (-2, -1), norm: Any = None) -> Any:
    return _irfftn(np, g, r, a, s, axes, norm)
