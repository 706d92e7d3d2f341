"""The answers of ``mx.np`` to what the array API standard asks a namespace, and the limits of dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx import devices
from flowmx.ndarray.core import BaseArray
from flowmx.semantics import default_float, semantics

__all__ = ["__array_namespace_info__", "finfo", "iinfo"]

_KINDS: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
_SUMS = {
    "integral": ("signed integer", "unsigned integer"),
    "numeric": ("signed integer", "unsigned integer", "real floating", "complex floating"),
}


class __array_namespace_info__:  # noqa: N801  # the standard's name
    """The abilities of ``mx.np``, in the array API standard's terms."""

    def capabilities(self) -> dict[str, Any]:
        """The optional parts of the standard that are there."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> devices.Context:
        """The device of arrays that were given none."""
        return devices.current_context()

    def devices(self) -> list[devices.Context]:
        """The devices of this machine."""
        return [devices.cpu(), *(devices.gpu(index) for index in range(devices.num_gpus()))]

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """The dtypes of arrays that were given none."""
        return {
            "real floating": default_float(),
            "complex floating": np.dtype(np.complex128 if semantics.get().dtype else np.complex64),
            "integral": np.dtype(np.int64),
            "indexing": np.dtype(np.int64),
        }

    def dtypes(self, *, device: Any = None, kind: str | tuple[str, ...] | None = None) -> dict[str, Any]:
        """The dtypes of a kind, by name."""
        kinds = tuple(_KINDS) if kind is None else (kind,) if isinstance(kind, str) else kind
        names = [name for each in kinds for one in _SUMS.get(each, (each,)) for name in _KINDS[one]]
        return {name: np.dtype(name) for name in dict.fromkeys(names)}


def _dtype_of(given: Any) -> Any:
    return given._dtype if isinstance(given, BaseArray) else given


class finfo:  # noqa: N801  # NumPy's name
    """The limits of a floating dtype, or of an array's: those of :class:`numpy.finfo`, as Python's numbers."""

    def __init__(self, dtype: Any) -> None:
        self._limits = np.finfo(_dtype_of(dtype))
        self.dtype = self._limits.dtype

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._limits, name)
        return float(found) if isinstance(found, np.floating) else found

    def __repr__(self) -> str:
        return repr(self._limits)


def iinfo(type: Any) -> Any:
    """The limits of a whole-number dtype, or of an array's."""
    return np.iinfo(_dtype_of(type))
