"""The safetensors format: a JSON header and named arrays.

All numbers are little-endian. A file is::

    uint64     length of the header
    header     {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {...}}
    the rest   the arrays in C order, without gaps, at their offsets

The safetensors package is not used: it is a compiled dependency, and its NumPy interface does not support bfloat16.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array
from flowmx.serialization.atomic import replace_file
from flowmx.serialization.reading import FileFormatError, Reader, Source, in_memory, little_endian, read_source

__all__ = ["SafetensorsFormatError", "dumps", "load", "loads", "metadata", "save"]

_MAX_HEADER = 100 << 20  # the limit of the reference implementation
_METADATA = "__metadata__"
_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "I16": np.dtype(np.int16),
    "U16": np.dtype(np.uint16),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "I64": np.dtype(np.int64),
    "U64": np.dtype(np.uint64),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class SafetensorsFormatError(FileFormatError):
    """A file is not a valid safetensors file."""


class _Entry(NamedTuple):
    name: str
    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


class _Reader(Reader):
    Error = SafetensorsFormatError


def save(
    path: str | os.PathLike[str], arrays: Mapping[str, npt.ArrayLike], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named arrays to a file atomically.

    Args:
        path: The file.
        arrays: The arrays by name.
        metadata: Strings by name, which are saved with them.

    Raises:
        TypeError: The format does not support a dtype, or the arrays have no names.
        ValueError: An array has the name that is reserved for the metadata.
        OSError: The file cannot be written.
    """
    replace_file(path, _chunks(arrays, metadata))


def dumps(arrays: Mapping[str, npt.ArrayLike], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes that `save` writes, with the same errors."""
    return b"".join(_chunks(arrays, metadata))


def load(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Read a file, as `loads`.

    Raises:
        SafetensorsFormatError: The file is damaged, or not a safetensors file.
        OSError: The file cannot be read.
    """
    return load_with_metadata(path)[0]


def load_with_metadata(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the arrays and the metadata of a file, with the errors of `load`."""
    return read_source(path, lambda *source: _read(_Reader(*source)))


def loads(data: bytes | bytearray | memoryview, *, source: str = "<bytes>") -> dict[str, Array]:
    """Return the arrays of a file's content by name, in the order of the header. They are writable, aligned copies.

    Args:
        data: The content of the file.
        source: The name of the file in errors.

    Raises:
        SafetensorsFormatError: The data is damaged, in a different format, or has a dtype that NumPy does not support.
    """
    return loads_with_metadata(data, source=source)[0]


def loads_with_metadata(
    data: bytes | bytearray | memoryview, *, source: str = "<bytes>"
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the arrays and the metadata of a file's content, with the errors of `loads`."""
    return _read(_Reader(*in_memory(data, source)))


def metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of a file, with the errors of `load`."""

    def texts(source: Source, size: int, name: str) -> dict[str, str]:
        reader = _Reader(source, size, name)
        return _metadata(reader, _header(reader))

    return read_source(path, texts)


# -- writing ---------------------------------------------------------------------------------------------------


def _chunks(arrays: Mapping[str, npt.ArrayLike], metadata: Mapping[str, str] | None) -> Iterator[bytes | memoryview]:
    """Yield the file in pieces. Wide elements come first, so that every array is aligned."""
    if not isinstance(arrays, Mapping):
        raise TypeError(f"safetensors files have named arrays, expected a dict, got {type(arrays).__name__}")
    values = {name: _storable(name, value) for name, value in arrays.items()}
    by_width = sorted(values.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, object] = {_METADATA: _texts(metadata)} if metadata else {}
    end = 0
    for name, value in by_width:
        begin, end = end, end + value.nbytes
        header[name] = {"dtype": _NAMES[value.dtype], "shape": value.shape, "data_offsets": (begin, end)}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for _, value in by_width:
        yield little_endian(value)


def _storable(name: str, value: npt.ArrayLike) -> Array:
    if name == _METADATA:
        raise ValueError(f"an array cannot be named {_METADATA}, which is the metadata entry of safetensors files")
    array = np.asarray(value)
    dtype = array.dtype.newbyteorder("=")
    if dtype not in _NAMES:
        raise TypeError(f"array {name!r}: safetensors does not support dtype {array.dtype}")
    return np.asarray(array, dtype=dtype, order="C")


def _texts(metadata: Mapping[str, str]) -> dict[str, str]:
    for name, text in metadata.items():
        if not all(isinstance(item, str) for item in (name, text)):
            raise TypeError(f"metadata {name!r} is {text!r}, expected strings by name")
    return dict(metadata)


# -- reading ---------------------------------------------------------------------------------------------------


def _read(reader: _Reader) -> tuple[dict[str, Array], dict[str, str]]:
    header = _header(reader)
    texts = _metadata(reader, header)
    entries = [_entry(reader, name, value) for name, value in header.items() if name != _METADATA]
    start, arrays = reader.offset, {}
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != reader.offset - start:
            raise reader.error(f"array {entry.name!r} at offset {reader.offset - start}", f"offset {entry.begin}")
        arrays[entry.name] = reader.array(entry.dtype, entry.shape, f"array {entry.name!r}")
    if reader.remaining:
        raise reader.error("the end of the file", f"{reader.remaining} more bytes")
    return {entry.name: arrays[entry.name] for entry in entries}, texts


def _header(reader: _Reader) -> dict[str, Any]:
    length = reader.number("Q", "the header's length")
    if length > min(reader.remaining, _MAX_HEADER):
        raise reader.error(f"a header of at most {min(reader.remaining, _MAX_HEADER)} bytes", length, 0)
    start = reader.offset
    text = reader.read(length, "the header")
    try:
        header = json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise reader.error("a header of JSON", f"{text[:40]!r} ({str(error)[:100]})", start) from None
    if not isinstance(header, dict):
        raise reader.error("a header that is an object", type(header).__name__, start)
    return header


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    items = dict(pairs)
    if len(items) < len(pairs):
        raise ValueError("a duplicate name")
    return items


def _metadata(reader: _Reader, header: Mapping[str, object]) -> dict[str, str]:
    texts = header.get(_METADATA, {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise reader.error(f"{_METADATA} with strings by name", repr(texts)[:80], 8)
    return texts


def _entry(reader: _Reader, name: str, value: object) -> _Entry:
    where = f"array {name!r}"
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise reader.error(f"{where} with dtype, shape and data_offsets", repr(value)[:80], 8)
    dtype = _DTYPES.get(value["dtype"]) if isinstance(value["dtype"], str) else None
    if dtype is None:
        raise reader.error(f"{where} of a dtype among {', '.join(_DTYPES)}", repr(value["dtype"])[:80], 8)
    shape, offsets = (_sizes(reader, value[key], f"{where}, {key}") for key in ("shape", "data_offsets"))
    reader.check_size(dtype, shape, where)
    if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
        expected = f"{where} of shape {shape} and dtype {value['dtype']} in {math.prod(shape) * dtype.itemsize} bytes"
        raise reader.error(expected, f"data_offsets {offsets}", 8)
    return _Entry(name, dtype, shape, offsets[0], offsets[1])


def _sizes(reader: _Reader, value: object, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        raise reader.error(f"{what}, a list of sizes", repr(value)[:80], 8)
    return tuple(value)
