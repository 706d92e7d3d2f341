"""Files of arrays: ``mx.nd.save`` and ``mx.nd.load``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from flowmx import devices
from flowmx.engine.runtime import engine
from flowmx.late_binding import late
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.core import allocate
from flowmx.ops.registry.dtypes import as_dtype
from flowmx.ops.registry.operators import Array

__all__ = ["load", "load_frombuffer", "save"]

Saved = dict[str, NDArray] | list[NDArray]


def save(
    fname: str | os.PathLike[str],
    data: NDArray | Sequence[NDArray] | Mapping[str, NDArray],
    *,
    format: str | None = None,
) -> None:
    """Write arrays to a file in MXNet's ``.params`` format; block until they are computed and written.

    Args:
        fname: the file; the suffixes ``.safetensors``, ``.npz``, ``.npy``, and ``.pt`` or ``.pth`` (a state dict for
            torch) select those formats.
        data: an array, a list of arrays, or a dict of arrays by name (which safetensors and torch need).
        format: ``"params"``, ``"safetensors"``, ``"npz"``, ``"npy"`` or ``"torch"``, regardless of the suffix.

    Raises:
        TypeError: ``data`` is not an array, a list or dict of arrays; or the format needs names, or does not support
            the dtype.
        ValueError: the format is unknown, or the suffix is that of a read-only format (``.h5``, ``.onnx``).
        OSError: the file cannot be written.
    """
    if isinstance(data, NDArray):
        data = [data]
    values = list(data.values()) if isinstance(data, Mapping) else list(data)
    for value in values:
        if not isinstance(value, NDArray):
            raise TypeError(f"save: data holds {type(value).__name__}, expected NDArrays (a list, or a dict by name)")
    host = [_file_content(value) for value in values]
    late("serialization.formats").save(
        fname, dict(zip(data, host, strict=True)) if isinstance(data, Mapping) else host, format
    )


def load(fname: str | os.PathLike[str]) -> Saved:
    """Read a file that :func:`save` wrote, to the CPU; return a dict if the arrays have names, else a list.

    The format is detected from the content, not the name.

    State dicts written by ``torch.save`` are read without torch, and code in them is not executed. Files from all MXNet
    versions since 0.8 are supported, including sparse arrays.

    Raises:
        FileFormatError: the file is damaged, or its format is unknown.
        OSError: the file cannot be read.
    """
    return _arrays(late("serialization.formats").load(fname, keep_sparse=True))


def load_named(fname: str | os.PathLike[str]) -> dict[str, NDArray]:
    """Read a file as :func:`load` does, and return a dict, which is empty for a file without arrays.

    Raises:
        ValueError: the arrays have no names.
        FileFormatError, OSError: as for :func:`load`.
    """
    arrays = load(fname)
    if isinstance(arrays, dict):
        return arrays
    if arrays:
        raise ValueError(f"{os.fspath(fname)} holds a list of arrays without names, expected names")
    return {}


def load_frombuffer(buf: bytes | bytearray | memoryview) -> Saved:
    """Read the content of a ``.params`` or safetensors file from memory; see :func:`load`.

    Raises:
        FileFormatError: the data is damaged, or its format is unknown.
    """
    return _arrays(late("serialization.formats").loads(buf, keep_sparse=True))


def _arrays(values: dict[str, Array] | list[Array]) -> Saved:
    if isinstance(values, dict):
        return {name: _from_content(value) for name, value in values.items()}
    return [_from_content(value) for value in values]


def _file_content(array: NDArray) -> Any:
    """Return the content of an array in the form that files store."""
    if array.stype != "default":
        return _sparse().to_saved(array)
    engine.wait_variable(array.storage)
    return late("serialization.params").Deferred(array.shape, as_dtype(array.dtype), array.asnumpy)


def _sparse() -> Any:
    return late("ndarray.sparse.creation")


def _from_content(data: Any) -> NDArray:
    """Create an array on the CPU from what a file contains."""
    if isinstance(data, late("serialization.params").SparseParts):
        return cast("NDArray", _sparse().from_saved(data))
    return cast("NDArray", allocate(devices.get(devices.cpu()), data.shape, data.dtype, data))
