"""The file format of checkpoints.

A file is::

    8 bytes    "FLOWMXCP"
    uint32     format version, 2 (numbers are little-endian)
    uint64     length of the header
    header     msgpack: {"place": [epoch, batch], "workers": n, "content": {...},
               "arrays": [[name, dtype, shape, checksum], ...], "blobs": [[name, [[length, checksum], ...]], ...]}
    16 bytes   BLAKE2b digest of everything before it
    the rest   the arrays in C order, then the pieces of the blobs

so that a torn or corrupted file is never used. Version 1 is still read: it contains the arrays as a ``.params`` file
and ends with a digest of the whole file.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

import msgpack
import numpy as np

from flowmx.checkpoint.content import Checkpoint, CheckpointError, Place, pack, unpack
from flowmx.ops.registry.dtypes import BY_NAME, NAMES, DType
from flowmx.ops.registry.operators import Array
from flowmx.serialization import params
from flowmx.serialization.checksum import SIZE, checksum
from flowmx.serialization.reading import (
    FileFormatError,
    Reader,
    Source,
    bytes_of,
    in_memory,
    little_endian,
    read_source,
)
from flowmx.shape_limits import read_shape

__all__ = ["check_size", "dumps", "load", "loads"]

MAGIC = b"FLOWMXCP"
VERSION = 2
_START = struct.Struct("<8sIQ")
_V1_DIGEST = 32  # bytes, at the end of version 1
_BYTE = np.dtype(np.uint8)
_DAMAGED = (ValueError, TypeError, KeyError, OverflowError, msgpack.UnpackException)

T = TypeVar("T")


def dumps(checkpoint: Checkpoint) -> list[bytes | memoryview]:
    """Return the pieces of a file. The pieces of arrays and blobs are views.

    Raises:
        TypeError: the content is not plain data, or MXNet does not support the dtype of an array.
        ValueError: the content is nested too deeply, or has too many elements, to be read.
    """
    arrays = {name: np.asarray(array, order="C") for name, array in checkpoint.arrays.items()}
    blobs = {name: [blob] if isinstance(blob, (bytes, memoryview)) else blob for name, blob in checkpoint.blobs.items()}
    data = [little_endian(array) for array in arrays.values()]
    header = {
        "place": list(checkpoint.place),
        "workers": checkpoint.workers,
        "content": dict(checkpoint.content),
        "arrays": [
            [name, _name_of_dtype(name, array), list(array.shape), checksum(raw)]
            for (name, array), raw in zip(arrays.items(), data, strict=True)
        ],
        "blobs": [[name, [[len(piece), checksum(piece)] for piece in pieces]] for name, pieces in blobs.items()],
    }
    packed = pack(header)
    start = _START.pack(MAGIC, VERSION, len(packed)) + packed
    return [start, _digest(start, SIZE), *data, *(piece for pieces in blobs.values() for piece in pieces)]


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint file.

    Raises:
        CheckpointError: it is not a checkpoint, or is damaged.
        OSError: it cannot be read.
    """
    return read_source(path, lambda source, size, name: _checkpoint(Reader(source, size, name), name))


def loads(data: bytes, source: str = "the checkpoint") -> Checkpoint:
    """Read the content of a checkpoint file.

    Raises:
        CheckpointError: it is not a checkpoint, or is damaged.
    """
    return _checkpoint(Reader(*in_memory(data, source)), source)


def check_size(path: str | os.PathLike[str]) -> None:
    """Check the header and the length of a checkpoint file without reading its data.

    Raises:
        CheckpointError: it is not a checkpoint, or is truncated.
        OSError: it cannot be read.
    """

    def check(source: Source, size: int, name: str) -> None:
        reader = Reader(source, size, name)
        start, version = _start(reader, name)
        if version == VERSION:
            _wrap_errors(lambda: _header(reader, start, name), name)

    read_source(path, check)


def _checkpoint(reader: Reader, source: str) -> Checkpoint:
    start, version = _start(reader, source)
    read = _read if version == VERSION else _read_v1
    return _wrap_errors(lambda: read(reader, start, source), source)


def _wrap_errors(read: Callable[[], T], source: str) -> T:
    """Call a function that reads a file, and convert its errors to CheckpointError."""
    try:
        return read()
    except CheckpointError:
        raise
    except FileFormatError as error:
        raise CheckpointError(f"{source} is damaged ({error}); use an earlier one") from error
    except _DAMAGED as error:
        raise CheckpointError(
            f"{source} does not have the content of a checkpoint ({type(error).__name__}: {str(error)[:200]}); use an "
            "earlier one"
        ) from error


def _start(reader: Reader, source: str) -> tuple[bytes, int]:
    """Return the first bytes of a file and the version of its format."""
    start = reader.read(min(_START.size, reader.remaining), "start")
    if not start.startswith(MAGIC) or len(start) < _START.size:
        raise CheckpointError(f"{source} starts with {start[:8]!r}, expected {MAGIC!r}: this is not a checkpoint")
    version: int = _START.unpack(start)[1]
    if version not in (1, VERSION):
        raise CheckpointError(f"{source} is of format version {version}, expected {VERSION}: a newer flowmx wrote it")
    return start, version


def _header(reader: Reader, start: bytes, source: str) -> dict[str, Any]:
    """Return the header of a file, after checking the file's length."""
    packed = reader.read(_START.unpack(start)[2], "header")
    if reader.read(SIZE, "digest") != _digest(start + packed, SIZE):
        raise _corruption_error(source)
    header: dict[str, Any] = unpack(packed)
    sizes = [_size(BY_NAME[dtype], shape) for _, dtype, shape, _ in header["arrays"]]
    sizes += [_size(_BYTE, [length]) for _, pieces in header["blobs"] for length, _ in pieces]
    if sum(sizes) != reader.remaining:
        raise CheckpointError(
            f"{source} is damaged: {reader.remaining} bytes after its header, expected {sum(sizes)}; use an earlier one"
        )
    return header


def _size(dtype: DType, shape: object) -> int:
    return dtype.itemsize * math.prod(read_shape(shape, dtype.itemsize))


def _read(reader: Reader, start: bytes, source: str) -> Checkpoint:
    """Read a file of the current version."""
    header = _header(reader, start, source)
    arrays: dict[str, Array] = {}
    for name, dtype, shape, digest in header["arrays"]:
        array = arrays[name] = reader.array(BY_NAME[dtype], tuple(shape), f"array {name!r}")
        if checksum(little_endian(array)) != digest:
            raise _corruption_error(source)
    blobs = {name: _blob(reader, pieces, source) for name, pieces in header["blobs"]}
    epoch, batch = map(int, header["place"])
    return Checkpoint(Place(epoch, batch), arrays, blobs, dict(header["content"]), int(header["workers"]))


def _blob(reader: Reader, pieces: list[tuple[int, bytes]], source: str) -> memoryview:
    """Read a blob from its consecutive pieces."""
    data = bytes_of(reader.array(_BYTE, (sum(length for length, _ in pieces),), "blob"))
    ends = np.cumsum([0, *(length for length, _ in pieces)], dtype=np.int64).tolist()
    for (begin, end), (_, digest) in zip(pairwise(ends), pieces, strict=True):
        if checksum(data[begin:end]) != digest:
            raise _corruption_error(source)
    return data


def _read_v1(reader: Reader, start: bytes, source: str) -> Checkpoint:
    """Read a file of version 1."""
    data = memoryview(start + reader.read(reader.remaining, "content"))
    if len(data) < _START.size + _V1_DIGEST or data[-_V1_DIGEST:] != _digest(data[:-_V1_DIGEST], _V1_DIGEST):
        raise _corruption_error(source)
    length, body = _START.unpack_from(data)[2], data[_START.size : -_V1_DIGEST]
    header = unpack(body[:length])
    lengths = header["lengths"]
    if length + sum(lengths) != len(body) or min(lengths) < 0:
        raise ValueError(f"parts of {length} and {str(lengths)[:80]} bytes, expected {len(body)} in total")
    ends = np.cumsum([length, *lengths], dtype=np.int64).tolist()
    params_file, *blobs = (body[begin:end] for begin, end in pairwise(ends))
    arrays = params.loads(params_file, source=source)
    if not isinstance(arrays, list):
        raise ValueError("arrays with names, expected a list")
    epoch, batch = map(int, header["place"])
    return Checkpoint(
        Place(epoch, batch), dict(zip(header["arrays"], arrays, strict=True)),
        dict(zip(header["blobs"], blobs, strict=True)), dict(header["content"]), int(header["workers"]),
    )  # fmt: skip


def _corruption_error(source: str) -> CheckpointError:
    return CheckpointError(f"{source} is damaged: its checksum does not match; use an earlier one")


def _digest(data: bytes | memoryview, size: int) -> bytes:
    return hashlib.blake2b(data, digest_size=size).digest()


def _name_of_dtype(name: str, array: Array) -> str:
    if array.dtype not in NAMES:
        raise TypeError(f"array {name!r} has the dtype {array.dtype}, expected one of {', '.join(BY_NAME)}")
    return NAMES[array.dtype]
