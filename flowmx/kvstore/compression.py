"""Compression of gradients for the wire, with error feedback: what one message omits is added to a later one.

``2bit`` is MXNet's: each element is sent as plus or minus the threshold, or as zero. ``fp16`` and ``bf16`` round. All
three keep the rest of each gradient as a *residual* and add it to the next ("error feedback"), so that nothing is lost:
what was sent and the residual make up the sum of the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from flowmx.errors import ParameterError
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array

__all__ = ["Compression", "Rounding", "TwoBit", "create"]


_CHUNK = 1 << 16
"""Elements that are compressed at a time: their temporaries stay in the cache."""


class Compression:
    """A way to send float32 arrays in fewer bytes. Instances hold parameters only; the caller keeps the residuals."""

    type: str
    dtype: DType
    """The dtype of the compressed elements."""

    def length(self, size: int) -> int:
        """Number of elements of :attr:`dtype` that are sent for an array of `size` elements."""
        return size

    def compress(self, gradient: Array, residual: Array) -> Array:
        """Compress a gradient plus its residual for sending.

        Args:
            gradient: float32, of any shape, C-contiguous.
            residual: float32, of the same size, zeros at first; changed in place to the new residual.

        Returns:
            A 1-dimensional array of :attr:`dtype`.

        Raises:
            TypeError: one of them is not float32.
            ValueError: their sizes differ, or the residual cannot be changed in place.
        """
        gradient, residual = self._check(gradient, residual)
        message = np.empty(self.length(gradient.size), self.dtype)
        for start in range(0, gradient.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            residue = residual[part]
            with np.errstate(all="ignore"):  # infinities and NaN are passed through
                residue += gradient[part]
                encoded = self._compress(residue)
            begin = self.length(start)
            message[begin : begin + encoded.size] = encoded
        return message

    def decompress(self, message: Array, size: int) -> Array:
        """Decompress a message to a 1-dimensional float32 array.

        Args:
            message: the result of :meth:`compress`.
            size: the number of elements of the gradient.

        Raises:
            ValueError: the message is not one for this number of elements.
        """
        if message.dtype != self.dtype or message.shape != (self.length(size),):
            raise ValueError(
                f"a gradient of {size} elements is sent under {self.type} as {self.length(size)} elements of "
                f"{self.dtype}, not as {message.shape} of {message.dtype}"
            )
        return self._decompress(message, size)

    def config(self) -> dict[str, Any]:
        """Return the parameters, from which :func:`create` makes an equal instance."""
        return {"type": self.type}

    def _compress(self, residual: Array) -> Array:
        """Compress `residual`, subtract the sent values from it in place, and return the compressed elements."""
        raise NotImplementedError

    def _decompress(self, message: Array, size: int) -> Array:
        raise NotImplementedError

    def _check(self, gradient: Array, residual: Array) -> tuple[Array, Array]:
        for name, array in (("gradient", gradient), ("residual", residual)):
            if array.dtype != np.float32:
                raise TypeError(f"compression {self.type}: the {name} is {array.dtype}, expected float32")
        if gradient.size != residual.size or not (residual.flags.c_contiguous and residual.flags.writeable):
            raise ValueError(
                f"compression {self.type}: a gradient of {gradient.size} elements needs a residual of the same size, "
                f"C-contiguous and writable; this one has {residual.size}"
            )
        return gradient.reshape(-1), residual.reshape(-1)


class TwoBit(Compression):
    """MXNet's 2-bit compression: 16 elements in a 32-bit word.

    An element at or above the threshold is sent as 11, at or below minus the threshold as 10, anything between as 00.
    The first element of four takes the highest bits of its byte; the words are little-endian.

    Args:
        threshold: the value of the code 11; positive.

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

    def _compress(self, residual: Array) -> Array:
        is_above, is_below = residual >= self.threshold, residual <= -self.threshold
        np.subtract(residual, self.threshold, out=residual, where=is_above)
        np.add(residual, self.threshold, out=residual, where=is_below)
        codes = np.zeros(16 * self.length(residual.size), np.uint8)
        codes[: residual.size] = 3 * is_above.view(np.uint8) + 2 * is_below.view(np.uint8)
        quads = codes.reshape(-1, 4)
        packed = quads[:, 0] << 6 | quads[:, 1] << 4 | quads[:, 2] << 2 | quads[:, 3]
        return packed.view(self.dtype)

    def _decompress(self, message: Array, size: int) -> Array:
        return self._values[np.ascontiguousarray(message).view(np.uint8)].reshape(-1)[:size]


class Rounding(Compression):
    """Gradients rounded to a shorter floating-point type.

    Values out of range are clipped to the greatest finite number, and the residual keeps the rest. An infinity or a
    NaN is sent unchanged and leaves no residual.
    """

    def __init__(self, type: str, dtype: Any) -> None:
        self.type = type
        self.dtype = np.dtype(dtype)
        finfo: Any = ml_dtypes.finfo
        self._greatest = np.float32(finfo(dtype).max)

    def _compress(self, residual: Array) -> Array:
        nonfinite = ~np.isfinite(residual)
        message = np.where(nonfinite, residual, np.clip(residual, -self._greatest, self._greatest)).astype(self.dtype)
        residual -= message.astype(np.float32)
        residual[nonfinite] = 0
        return message

    def _decompress(self, message: Array, size: int) -> Array:
        return message.astype(np.float32)


_MAKERS: dict[Any, Callable[..., Compression]] = {
    "2bit": TwoBit,
    "fp16": lambda: Rounding("fp16", np.float16),
    "bf16": lambda: Rounding("bf16", ml_dtypes.bfloat16),
}


def create(params: Mapping[str, object]) -> Compression:
    """Make the compression for ``kv.set_gradient_compression``.

    Args:
        params: ``type``, one of ``"2bit"``, ``"fp16"`` and ``"bf16"``; for ``"2bit"`` also ``threshold``, which may be
            a string, as in MXNet.

    Raises:
        ParameterError: a name or value is invalid.
    """
    options = dict(params)
    kind = options.pop("type", None)
    if not isinstance(kind, str) or kind not in _MAKERS:
        raise ParameterError(f"gradient compression: the type is {kind!r}, expected one of {', '.join(_MAKERS)}")
    allowed = {"threshold"} if kind == "2bit" else set()
    if unknown := sorted(set(options) - allowed):
        raise ParameterError(f"gradient compression {kind}: unknown parameter {', '.join(map(repr, unknown))}")
    try:
        return _MAKERS[kind](**options)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"gradient compression {kind}: {error}") from error
