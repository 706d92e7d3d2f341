"""DLPack capsules, also of bfloat16, which NumPy does not support: the code presents it as 16-bit unsigned integers."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

from flowmx.ops.registry.operators import Array

__all__ = ["array_of_dlpack", "capsule_of"]

_BFLOAT16, _UINT16 = (4, 16), (1, 16)
"""DLPack's type codes and numbers of bits."""
_DTYPE_OFFSETS = {b"dltensor": 20, b"dltensor_versioned": 52}
"""Offset of the dtype in the capsule's structure, by the capsule's name: one byte for the code, one for the bits."""

_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def capsule_of(data: Array, **options: Any) -> Any:
    """Return a DLPack capsule of an array of any dtype.

    Args:
        data: the array.
        options: the arguments of ``__dlpack__``.
    """
    if data.dtype != ml_dtypes.bfloat16:
        return data.__dlpack__(**options)
    capsule = data.view(np.uint16).__dlpack__(**options)
    _dtype_of(capsule)[:] = _BFLOAT16
    return capsule


def array_of_dlpack(source: Any) -> Array:
    """Return a NumPy array that shares memory with a DLPack capsule, or with an object with ``__dlpack__``.

    Raises:
        BufferError: the memory is not on the CPU, or neither NumPy nor flowmx supports the dtype.
    """
    device = (1, 0)
    capsule = source
    if hasattr(source, "__dlpack__"):
        device = source.__dlpack_device__()
        if device[0] != 1:
            raise BufferError(f"from_dlpack: the memory is on DLPack device {device}, expected the CPU, (1, 0)")
        try:
            capsule = source.__dlpack__(max_version=(1, 0))
        except TypeError:  # older than version 1 of the protocol
            capsule = source.__dlpack__()
    dtype = _dtype_of(capsule)
    is_bfloat16 = tuple(dtype) == _BFLOAT16
    if is_bfloat16:
        dtype[:] = _UINT16
    try:
        data: Array = np.from_dlpack(_Capsule(capsule, device))
    except RuntimeError as error:
        raise BufferError(f"from_dlpack: NumPy does not support DLPack's dtype {tuple(dtype)} (code, bits)") from error
    return data.view(ml_dtypes.bfloat16) if is_bfloat16 else data


def _dtype_of(capsule: object) -> Any:
    """Return the code and the bits in a capsule, as writable memory."""
    try:
        name = _name(capsule)
    except ValueError:
        name = None
    if name not in _DTYPE_OFFSETS:
        raise BufferError(f"from_dlpack: {capsule!r} is not a DLPack capsule, or was used before")
    return (ctypes.c_uint8 * 2).from_address(_pointer(capsule, name) + _DTYPE_OFFSETS[name])


class _Capsule:
    """Adapter from a bare DLPack capsule to the object that ``numpy.from_dlpack`` takes."""

    def __init__(self, capsule: object, device: tuple[int, int]) -> None:
        self._capsule, self._device = capsule, device

    def __dlpack__(self, **options: object) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device
