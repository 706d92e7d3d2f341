"""Compression of gradients for the wire, with error feedback: what one message leaves out is added to a later one.

``2bit`` is MXNet's: each element travels as plus or minus the threshold, or nothing. ``fp16`` and ``bf16`` round. All
three keep the rest of each gradient as a *residual* and add it to the next ("error feedback"), so that nothing is lost:
what was sent and the residual make up the sum of the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from flowmx.errors import ParameterError

__all__ = ["Compression", "Rounding", "TwoBit", "create"]

Array: TypeAlias = npt.NDArray[Any]

_CHUNK = 1 << 16
"""Elements that are worked on at once: their temporaries stay in the cache."""


class Compression:
    """A way to send float32 arrays in fewer bytes. Instances hold parameters only; residuals are the caller's."""

    type: str
    dtype: np.dtype[Any]
    """Of what travels."""

    def length(self, size: int) -> int:
        """Number of elements of :attr:`dtype` that are sent for an array of `size` elements."""
        return size

    def compress(self, gradient: Array, residual: Array) -> Array:
        """Compress a gradient plus its residual for sending.

        Args:
            gradient: float32, of any shape, C-contiguous.
            residual: float32, of the same size, zeros at first; changed in place to what is left behind.

        Returns:
            A 1-dimensional array of :attr:`dtype`.

        Raises:
            TypeError: either is not float32.
            ValueError: their sizes differ, or the residual can not be changed in place.
        """
        gradient, residual = self._checked(gradient, residual)
        sent = np.empty(self.length(gradient.size), self.dtype)
        for start in range(0, gradient.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            rest = residual[part]
            with np.errstate(all="ignore"):  # a gradient may hold anything, and what it holds goes on
                rest += gradient[part]
                found = self._compress(rest)
            begin = self.length(start)
            sent[begin : begin + found.size] = found
        return sent

    def decompress(self, sent: Array, size: int) -> Array:
        """The float32 array, 1-dimensional, of a compressed message.

        Args:
            sent: what :meth:`compress` gave.
            size: how many elements the gradient has.

        Raises:
            ValueError: it is no message for so many elements.
        """
        if sent.dtype != self.dtype or sent.shape != (self.length(size),):
            raise ValueError(
                f"a gradient of {size} elements travels under {self.type} as {self.length(size)} elements of "
                f"{self.dtype}, not as {sent.shape} of {sent.dtype}"
            )
        return self._decompress(sent, size)

    def config(self) -> dict[str, Any]:
        """The parameters, from which :func:`create` makes the same."""
        return {"type": self.type}

    def _compress(self, rest: Array) -> Array:
        """Take out of `rest`, in place, what travels, and return that."""
        raise NotImplementedError

    def _decompress(self, sent: Array, size: int) -> Array:
        raise NotImplementedError

    def _checked(self, gradient: Array, residual: Array) -> tuple[Array, Array]:
        for name, array in (("gradient", gradient), ("residual", residual)):
            if array.dtype != np.float32:
                raise TypeError(f"compression {self.type}: the {name} is {array.dtype}, expected float32")
        if gradient.size != residual.size or not (residual.flags.c_contiguous and residual.flags.writeable):
            raise ValueError(
                f"compression {self.type}: a gradient of {gradient.size} elements needs a residual of as many, "
                f"C-contiguous and writable; this one has {residual.size}"
            )
        return gradient.reshape(-1), residual.reshape(-1)


class TwoBit(Compression):
    """MXNet's 2-bit compression: 16 elements in a 32-bit word.

    An element whose residual reached the threshold travels as 11, minus the threshold as 10, anything between as 00.
    The first element of four takes the highest bits of its byte; the words are little-endian.

    Args:
        threshold: what 11 stands for; positive.

    Raises:
        ParameterError: the threshold is not a positive, finite number.
    """

    type = "2bit"
    dtype = np.dtype("<u4")

    def __init__(self, threshold: float = 0.5) -> None:
        threshold = float(threshold)
        if not 0 < threshold < math.inf or not np.float32(threshold) > 0:
            raise ParameterError(f"2bit compression: the threshold is {threshold}, expected a positive number")
        self.threshold = np.float32(threshold)
        values = np.array([0, 0, -self.threshold, self.threshold], np.float32)
        codes = np.arange(256)
        self._values = np.stack([values[codes >> shift & 3] for shift in (6, 4, 2, 0)], axis=1)

    def length(self, size: int) -> int:
        return -(-size // 16)

    def config(self) -> dict[str, Any]:
        return {"type": self.type, "threshold": float(self.threshold)}

    def _compress(self, rest: Array) -> Array:
        above, below = rest >= self.threshold, rest <= -self.threshold
        np.subtract(rest, self.threshold, out=rest, where=above)
        np.add(rest, self.threshold, out=rest, where=below)
        codes = np.zeros(16 * self.length(rest.size), np.uint8)
        codes[: rest.size] = 3 * above.view(np.uint8) + 2 * below.view(np.uint8)
        four = codes.reshape(-1, 4)
        packed = four[:, 0] << 6 | four[:, 1] << 4 | four[:, 2] << 2 | four[:, 3]
        return packed.view(self.dtype)

    def _decompress(self, sent: Array, size: int) -> Array:
        return self._values[np.ascontiguousarray(sent).view(np.uint8)].reshape(-1)[:size]


class Rounding(Compression):
    """Gradients rounded to a shorter floating-point type.

    What does not fit is cut to the greatest number there is, and the rest stays behind. An infinite element, or one
    that is no number, travels as it is and leaves nothing behind.
    """

    def __init__(self, type: str, dtype: Any) -> None:
        self.type = type
        self.dtype = np.dtype(dtype)
        self._greatest = np.float32(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]

    def _compress(self, rest: Array) -> Array:
        odd = ~np.isfinite(rest)
        sent = np.where(odd, rest, np.clip(rest, -self._greatest, self._greatest)).astype(self.dtype)
        rest -= sent.astype(np.float32)
        rest[odd] = 0
        return sent

    def _decompress(self, sent: Array, size: int) -> Array:
        return sent.astype(np.float32)


_MAKERS: dict[Any, Callable[..., Compression]] = {
    "2bit": TwoBit,
    "fp16": lambda: Rounding("fp16", np.float16),
    "bf16": lambda: Rounding("bf16", ml_dtypes.bfloat16),
}


def create(params: Mapping[str, Any]) -> Compression:
    """The compression that ``kv.set_gradient_compression`` names.

    Args:
        params: ``type``, one of ``"2bit"``, ``"fp16"`` and ``"bf16"``; for ``"2bit"`` also ``threshold``, which may be
            text, as MXNet allows.

    Raises:
        ParameterError: a name or value is none of these.
    """
    given = dict(params)
    kind = given.pop("type", None)
    if not isinstance(kind, str) or kind not in _MAKERS:
        raise ParameterError(f"gradient compression: the type is {kind!r}, expected one of {', '.join(_MAKERS)}")
    allowed = {"threshold"} if kind == "2bit" else set()
    if unknown := sorted(set(given) - allowed):
        raise ParameterError(f"gradient compression {kind}: it takes no {', '.join(map(repr, unknown))}")
    try:
        return _MAKERS[kind](**given)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"gradient compression {kind}: {error}") from error
