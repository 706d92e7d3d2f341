"""The safetensors format: named arrays behind a header of JSON.

All numbers are little-endian. A file is::

    uint64     length of the header
    header     {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {...}}
    the rest   the arrays in C order, without gaps, at their offsets

The package of this name would bring a compiled dependency for a hundred lines, and its NumPy side has no bfloat16.
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

from flowmx.serialization.atomic import replace_file
from flowmx.serialization.reading import Array, FileFormatError, Reader, in_memory, little_endian, opened

__all__ = ["SafetensorsFormatError", "dumps", "load", "loads", "metadata", "save"]

_LARGEST_HEADER = 100 << 20  # what the format's own reader takes
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
    """A file is no safetensors file; says where, what was expected and what was found."""


class _Entry(NamedTuple):
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


class _Reader(Reader):
    Error = SafetensorsFormatError


def save(
    path: str | os.PathLike[str], arrays: Mapping[str, npt.ArrayLike], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named arrays to a file, which is replaced as a whole or not at all.

    Args:
        path: The file.
        arrays: The arrays by name.
        metadata: Texts by name, to be kept beside them.

    Raises:
        TypeError: The format has no such dtype, or the arrays have no names.
        ValueError: An array has the name that stands for the metadata.
        OSError: The file cannot be written.
    """
    replace_file(path, _chunks(arrays, metadata))


def dumps(arrays: Mapping[str, npt.ArrayLike], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes that `save` writes; raises as it does."""
    return b"".join(_chunks(arrays, metadata))


def load(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Read a file, as `loads` does.

    Raises:
        SafetensorsFormatError: The file is damaged, or no safetensors file.
        OSError: The file cannot be read.
    """
    return load_with_texts(path)[0]


def load_with_texts(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays of a file, and the texts that it keeps beside them; raises as `load` does."""
    with opened(path) as source:
        return _read(_Reader(*source))


def loads(data: bytes | bytearray | memoryview, *, source: str = "<bytes>") -> dict[str, Array]:
    """The arrays by name, in the header's order: copies, writable and aligned.

    Args:
        data: The file's content.
        source: What errors call the file.

    Raises:
        SafetensorsFormatError: The data is damaged, in another format, or has a dtype that NumPy lacks.
    """
    return loads_with_texts(data, source=source)[0]


def loads_with_texts(
    data: bytes | bytearray | memoryview, *, source: str = "<bytes>"
) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays in a file's content, and the texts beside them; raises as `loads` does."""
    return _read(_Reader(*in_memory(data, source)))


def metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The texts that a file keeps beside its arrays; raises as `load` does."""
    with opened(path) as source:
        reader = _Reader(*source)
        return _metadata(reader, _header(reader))


# -- writing ---------------------------------------------------------------------------------------------------


def _chunks(arrays: Mapping[str, npt.ArrayLike], metadata: Mapping[str, str] | None) -> Iterator[bytes | memoryview]:
    """Yield the file in pieces; wide elements come first, so that each array is aligned."""
    if not isinstance(arrays, Mapping):
        raise TypeError(f"safetensors files hold arrays by name, expected a dict, found {type(arrays).__name__}")
    values = {name: _storable(name, value) for name, value in arrays.items()}
    ordered = sorted(values.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, Any] = {_METADATA: _texts(metadata)} if metadata else {}
    end = 0
    for name, value in ordered:
        begin, end = end, end + value.nbytes
        header[name] = {"dtype": _NAMES[value.dtype], "shape": value.shape, "data_offsets": (begin, end)}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for _, value in ordered:
        yield little_endian(value)


def _storable(name: str, value: npt.ArrayLike) -> Array:
    if name == _METADATA:
        raise ValueError(f"an array can not be called {_METADATA}: in a safetensors file that is the texts beside them")
    array = np.asarray(value)
    dtype = array.dtype.newbyteorder("=")
    if dtype not in _NAMES:
        raise TypeError(f"array {name!r}: safetensors has no dtype {array.dtype}")
    return np.asarray(array, dtype=dtype, order="C")


def _texts(metadata: Mapping[str, str]) -> dict[str, str]:
    for name, text in metadata.items():
        if not all(isinstance(each, str) for each in (name, text)):
            raise TypeError(f"metadata {name!r} is {text!r}, expected text by name")
    return dict(metadata)


# -- reading ---------------------------------------------------------------------------------------------------


def _read(reader: _Reader) -> tuple[dict[str, Array], dict[str, str]]:
    header = _header(reader)
    texts = _metadata(reader, header)
    entries = [_entry(reader, name, value) for name, value in header.items() if name != _METADATA]
    start, found = reader.offset, {}
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != reader.offset - start:
            raise reader.error(f"array {entry.name!r} at offset {reader.offset - start}", f"offset {entry.begin}")
        found[entry.name] = reader.array(entry.dtype, entry.shape, f"array {entry.name!r}")
    if reader.left:
        raise reader.error("the end of the file", f"{reader.left} more bytes")
    return {entry.name: found[entry.name] for entry in entries}, texts


def _header(reader: _Reader) -> dict[str, Any]:
    length = reader.number("Q", "the header's length")
    if length > min(reader.left, _LARGEST_HEADER):
        raise reader.error(f"a header of at most {min(reader.left, _LARGEST_HEADER)} bytes", length, 0)
    start = reader.offset
    text = reader.read(length, "the header")
    try:
        header = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise reader.error("a header of JSON", f"{text[:40]!r} ({str(error)[:100]})", start) from None
    if not isinstance(header, dict):
        raise reader.error("a header that is an object", type(header).__name__, start)
    return header


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice")
    return found


def _metadata(reader: _Reader, header: Mapping[str, Any]) -> dict[str, str]:
    texts = header.get(_METADATA, {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise reader.error(f"{_METADATA} with texts by name", repr(texts)[:80], 8)
    return texts


def _entry(reader: _Reader, name: str, value: Any) -> _Entry:
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
    if len(shape) > 32:
        raise reader.error(f"{where} of at most 32 dimensions", len(shape), 8)
    return _Entry(name, dtype, shape, offsets[0], offsets[1])


def _sizes(reader: _Reader, value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        raise reader.error(f"{what}, a list of sizes", repr(value)[:80], 8)
    return tuple(value)
