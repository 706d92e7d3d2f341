"""NumPy's files: ``.npz``, a zip of named arrays, and ``.npy``, one array. Nothing is unpickled."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from flowmx.ops.registry.operators import Array
from flowmx.serialization import params
from flowmx.serialization.archives import Archive, NewArchive, read_entry
from flowmx.serialization.atomic import replace_file
from flowmx.serialization.reading import FileFormatError, bytes_of
from flowmx.shape_limits import ShapeError, read_shape

__all__ = ["MAGIC", "NumPyFormatError", "as_dense", "is_npz", "loads_npy", "loads_npz", "save_npy", "save_npz"]

MAGIC = b"\x93NUMPY"
"""The first bytes of an ``.npy`` file."""
_COMPRESSION = 1100
"""The highest compression ratio of a zip."""
_LONGEST_HEADER = 1 << 16
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class NumPyFormatError(FileFormatError):
    """A file is not a valid ``.npy`` or ``.npz`` file."""


def save_npz(path: str | os.PathLike[str], arrays: Mapping[str, npt.ArrayLike] | Iterable[npt.ArrayLike]) -> None:
    """Write arrays to an ``.npz`` file, as ``numpy.savez``. Arrays of a list are named ``arr_0``, ``arr_1``, ...

    Raises:
        TypeError: the format does not support a dtype, or an array is sparse.
        OSError: the file cannot be written.
    """
    by_name = arrays if isinstance(arrays, Mapping) else {f"arr_{index}": array for index, array in enumerate(arrays)}
    with NewArchive() as archive:
        for name, value in by_name.items():
            archive.add(f"{name}.npy", *_parts(name, value))
    replace_file(path, archive.pieces)


def save_npy(path: str | os.PathLike[str], arrays: Mapping[str, npt.ArrayLike] | Iterable[npt.ArrayLike]) -> None:
    """Write the only array of a list to an ``.npy`` file, as ``numpy.save``.

    Raises:
        TypeError: ``arrays`` is a dict or does not have exactly one array, or the format does not support the dtype.
        OSError: the file cannot be written.
    """
    values = [] if isinstance(arrays, Mapping) else list(arrays)
    if len(values) != 1:
        raise TypeError("save: an .npy file holds one unnamed array; write several to an .npz file")
    head, content = _parts("the array", values[0])
    replace_file(path, [head, bytes_of(content)])


def _parts(name: str, value: object) -> tuple[bytes, Array]:
    """Return the header of an array's file, and the array whose bytes follow it."""
    array = as_dense(name, value, "NumPy's files")
    if array.dtype.kind not in "biufc":
        raise TypeError(
            f"save: {name!r} has dtype {array.dtype}, which NumPy's files do not support; write a .safetensors file"
        )
    header = np.lib.format.header_data_from_array_1_0(array)
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, header)
    return head.getvalue(), array.T if header["fortran_order"] else array


def as_dense(name: str, value: object, format: str) -> Array:
    """Return a value as a dense array, for a format without sparse arrays.

    Raises:
        TypeError: the array is sparse.
    """
    if isinstance(value, params.SparseParts):
        raise TypeError(f"save: {name!r} is a sparse array, which {format} do not support; write a .safetensors file")
    return np.asarray(value)


def loads_npy(data: bytes | memoryview, *, source: str = "<bytes>") -> Array:
    """Read the content of an ``.npy`` file.

    Raises:
        NumPyFormatError: the data is damaged, or contains Python objects.
    """
    file = io.BytesIO(bytes(memoryview(data)[:_LONGEST_HEADER]))
    try:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"version {version}")
        shape, is_fortran, dtype = _HEADERS[version](file)
        if dtype.hasobject or dtype.kind not in "biufc":
            raise ValueError(f"elements of {dtype}")
        shape = read_shape(shape, dtype.itemsize)
    except (ValueError, TypeError, SyntaxError, RecursionError, ShapeError) as error:
        raise NumPyFormatError(source, 0, "the header of an .npy file of numbers", str(error)[:200]) from None
    start, count = file.tell(), math.prod(shape)
    if len(data) - start < count * dtype.itemsize:
        raise NumPyFormatError(source, start, f"{count} elements of {dtype}", f"{len(data) - start} bytes")
    flat = np.frombuffer(data, dtype, count, start)
    return flat.reshape(shape, order="F" if is_fortran else "C").astype(dtype.newbyteorder("="), order="C")


def loads_npz(data: bytes | bytearray | memoryview, *, source: str = "<bytes>") -> dict[str, Array]:
    """Read the content of an ``.npz`` file, which may be compressed. Return the arrays by name.

    Raises:
        NumPyFormatError: the data is damaged, or contains something other than arrays of numbers.
    """
    arrays: dict[str, Array] = {}
    try:
        with Archive(data) as file:
            if sum(info.file_size for info in file.infolist()) > _COMPRESSION * len(data):
                raise ValueError("entries that unpack to more than a zip can hold")
            for info in file.infolist():
                name = info.filename.removesuffix(".npy")
                arrays[name] = loads_npy(read_entry(file, info), source=f"{source}: {info.filename}")
    except FileFormatError:
        raise
    except Exception as error:  # a damaged zip can raise any exception
        raise NumPyFormatError(source, 0, "an .npz file", f"{type(error).__name__}: {error}") from None
    return arrays


def is_npz(data: bytes | bytearray | memoryview) -> bool:
    """Return whether a zip contains only NumPy arrays."""
    try:
        with Archive(data) as file:
            names = file.namelist()
    except Exception:  # a damaged zip
        return False
    return all(name.endswith(".npy") for name in names)
