"""Parameters that TVM and NNVM save with a compiled graph (``save_param_dict``)."""

from __future__ import annotations

import os
import struct

import ml_dtypes
import numpy as np

from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array
from flowmx.serialization.reading import FileFormatError, Reader, Source, in_memory, read_source

__all__ = ["MAGIC", "TVMFormatError", "load", "loads"]

MAGIC = struct.pack("<Q", 0xF7E58D4F05049CB7)
"""The first bytes of a file."""
_ARRAY_MAGIC = 0xDD5E40F096B4A13F
_MAX_NAME = 1 << 16
_MAX_AXES = 32
_KINDS = {0: "i", 1: "u", 2: "f"}
_BFLOAT = 4
_BFLOAT16: DType = np.dtype(ml_dtypes.bfloat16)


class TVMFormatError(FileFormatError):
    """A file is not a valid file of TVM's parameters."""


class _Reader(Reader):
    Error = TVMFormatError


def load(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Read the arrays of a file.

    Raises:
        TVMFormatError: the file is damaged.
        OSError: it cannot be read.
    """
    return read_source(path, _read)


def loads(data: bytes | bytearray | memoryview, *, source: str = "<bytes>") -> dict[str, Array]:
    """Read the arrays of a file's content."""
    return _read(*in_memory(data, source))


def _read(source: Source, size: int, name: str) -> dict[str, Array]:
    reader = _Reader(source, size, name)
    reader.read(16, "the header")
    count = reader.number("Q", "the number of names")
    reader.need(8 * count, "names")
    names = [_name(reader) for _ in range(count)]
    arrays = reader.number("Q", "the number of arrays")
    if arrays != count:
        raise reader.error(f"{count} arrays, as many as names", arrays)
    return {name: _array(reader) for name in names}


def _name(reader: Reader) -> str:
    length = reader.number("Q", "the length of a name")
    if length > _MAX_NAME:
        raise reader.error(f"a name of at most {_MAX_NAME} bytes", length)
    return reader.read(length, "a name").decode("utf-8", "replace")


def _array(reader: Reader) -> Array:
    magic, _, _, _, axes, kind, bits, lanes = reader.numbers("QQiiiBBH", "the header of an array")
    if magic != _ARRAY_MAGIC:
        raise reader.error("an array", f"{magic:#x}", reader.offset - 32)
    if not 0 <= axes <= _MAX_AXES:
        raise reader.error(f"an array of at most {_MAX_AXES} axes", axes)
    shape = reader.numbers(f"{axes}q", "a shape")
    dtype = _dtype(reader, kind, bits, lanes)
    reader.read(8, "the size of an array")
    return reader.array(dtype, shape, "an array")


def _dtype(reader: Reader, kind: int, bits: int, lanes: int) -> DType:
    if lanes == 1 and kind == _BFLOAT and bits == 16:
        return _BFLOAT16
    if lanes != 1 or kind not in _KINDS or bits not in ((16, 32, 64) if kind == 2 else (8, 16, 32, 64)):
        raise reader.error("numbers of a usual type", f"type {kind} of {bits} bits in {lanes} lanes")
    return np.dtype(f"<{_KINDS[kind]}{bits // 8}")
