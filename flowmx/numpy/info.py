"""Array API namespace information, ``finfo`` and ``iinfo``."""

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
_UNIONS = {
    "integral": ("signed integer", "unsigned integer"),
    "numeric": ("signed integer", "unsigned integer", "real floating", "complex floating"),
}


class __array_namespace_info__:  # noqa: N801  # the standard's name
    """The capabilities of ``mx.np``, as the array API standard defines them."""

    def capabilities(self) -> dict[str, object]:
        """Return the supported optional features of the standard."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> devices.Context:
        """Return the default device of new arrays."""
        return devices.current_context()

    def devices(self) -> list[devices.Context]:
        """Return the devices of this machine."""
        return [devices.cpu(), *(devices.gpu(index) for index in range(devices.num_gpus()))]

    def default_dtypes(self, *, device: object = None) -> dict[str, object]:
        """Return the default dtypes of new arrays."""
        return {
            "real floating": default_float(),
            "complex floating": np.dtype(np.complex128 if semantics.get().dtype else np.complex64),
            "integral": np.dtype(np.int64),
            "indexing": np.dtype(np.int64),
        }

    def dtypes(self, *, device: object = None, kind: str | tuple[str, ...] | None = None) -> dict[str, Any]:
        """Return the dtypes of a kind, by name."""
        kinds = tuple(_KINDS) if kind is None else (kind,) if isinstance(kind, str) else kind
        names = [name for kind in kinds for part in _UNIONS.get(kind, (kind,)) for name in _KINDS[part]]
        return {name: np.dtype(name) for name in dict.fromkeys(names)}


def _dtype_of(value: object) -> Any:
    return value.element_type if isinstance(value, BaseArray) else value


class finfo:  # noqa: N801  # NumPy's name
    """The limits of a floating-point dtype or array: the attributes of :class:`numpy.finfo`, as Python numbers."""

    def __init__(self, dtype: object) -> None:
        self._limits = np.finfo(_dtype_of(dtype))
        self.dtype = self._limits.dtype

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._limits, name)
        return float(value) if isinstance(value, np.floating) else value

    def __repr__(self) -> str:
        return repr(self._limits)


def iinfo(type: object) -> Any:
    """Return the limits of an integer dtype or array."""
    return np.iinfo(_dtype_of(type))
