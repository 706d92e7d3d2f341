"""The content of a checkpoint, and its file format.

A file is::

    8 bytes    "FLOWMXCP"
    uint32     format version, 1 (numbers are little-endian)
    uint64     length of the header
    header     msgpack: {"place": [epoch, batch], "workers": n, "content": {...}, "lengths": [arrays, blobs, ...]}
    the rest   the arrays, as a .params file; then the blobs
    32 bytes   BLAKE2b of all before it

so that a file that was torn, or changed, is never taken for a checkpoint.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import msgpack
import numpy as np

from flowmx.errors import MXNetError
from flowmx.scanning import Bounds, scan_msgpack
from flowmx.serialization import params

MAGIC = b"FLOWMXCP"
VERSION = 1
_START = struct.Struct("<8sIQ")
_DIGEST = 32
_NUMBER, _TUPLE, _ARRAY = 1, 2, 3
_DTYPE = re.compile(r"[<>|=][biufcSUVMm]\d{1,9}(\[\w+\])?")
_BOUNDS = Bounds()


class CheckpointError(MXNetError, ValueError):
    """A file is no checkpoint, is damaged, or is of something else than what is to be resumed."""


class Place(NamedTuple):
    """The progress of training.

    Attributes:
        epoch: the epoch, from 0.
        batch: the number of its batches that are done.
    """

    epoch: int
    batch: int


@dataclass
class Checkpoint:
    """A state of training.

    Attributes:
        place: the progress of training.
        arrays: parameters and auxiliary states, by names of the writer's.
        blobs: bytes by name, such as the states of an optimizer.
        content: all else, as plain data: numbers, texts, None, lists, tuples, dicts, NumPy arrays.
        workers: of how many workers the job was.
    """

    place: Place
    arrays: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    content: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 1


def dumps(checkpoint: Checkpoint) -> list[bytes]:
    """The parts of a file.

    Raises:
        TypeError: the content is no plain data.
        ValueError: it nests deeper, or has more elements, than is read again.
    """
    arrays = params.dumps(list(checkpoint.arrays.values()))
    blobs = list(checkpoint.blobs.values())
    header = pack(
        {
            "place": list(checkpoint.place), "workers": checkpoint.workers, "content": dict(checkpoint.content),
            "arrays": list(checkpoint.arrays), "blobs": list(checkpoint.blobs),
            "lengths": [len(arrays), *map(len, blobs)],
        }
    )  # fmt: skip
    scan_msgpack(header, _BOUNDS, (_TUPLE, _ARRAY))
    parts = [_START.pack(MAGIC, VERSION, len(header)), header, arrays, *blobs]
    return [*parts, _digest(parts)]


def loads(data: bytes, source: str = "the checkpoint") -> Checkpoint:
    """Read what :func:`dumps` wrote.

    Raises:
        CheckpointError: it is something else, or damaged.
    """
    if not data.startswith(MAGIC) or len(data) < _START.size + _DIGEST:
        raise CheckpointError(f"{source} starts with {data[:8]!r}, expected {MAGIC!r}: this is no checkpoint")
    _, version, length = _START.unpack_from(data)
    if version != VERSION:
        raise CheckpointError(f"{source} is of format version {version}, expected {VERSION}: a newer flowmx wrote it")
    body = memoryview(data)
    if body[-_DIGEST:] != _digest([body[:-_DIGEST]]):
        raise CheckpointError(f"{source} is damaged: its content has another digest than it says; use an earlier one")
    try:
        return _read(body[_START.size : -_DIGEST], length, source)
    except (ValueError, TypeError, KeyError, OverflowError, msgpack.UnpackException) as error:
        raise CheckpointError(
            f"{source} has another content than a checkpoint ({type(error).__name__}: {str(error)[:200]}); use an "
            "earlier one"
        ) from error


def _read(body: memoryview, length: int, source: str) -> Checkpoint:
    """The checkpoint in what stands between a file's start and its digest.

    Raises:
        ValueError, TypeError, KeyError, OverflowError, msgpack.UnpackException: it is none.
    """
    header = unpack(body[:length])
    lengths = header["lengths"]
    if length + sum(lengths) != len(body) or min(lengths) < 0:
        raise ValueError(f"parts of {length} and {str(lengths)[:80]} bytes, expected {len(body)} together")
    ends = np.cumsum([length, *lengths], dtype=np.int64).tolist()
    listed, *blobs = (body[start:end] for start, end in pairwise(ends))
    arrays = params.loads(listed, source=source)
    if not isinstance(arrays, list):
        raise ValueError("arrays with names, expected a list")
    epoch, batch = map(int, header["place"])
    return Checkpoint(
        Place(epoch, batch), dict(zip(header["arrays"], arrays, strict=True)),
        {name: bytes(part) for name, part in zip(header["blobs"], blobs, strict=True)},
        dict(header["content"]), int(header["workers"]),
    )  # fmt: skip


def _digest(parts: list[Any]) -> bytes:
    found = hashlib.blake2b(digest_size=_DIGEST)
    for part in parts:
        found.update(part)
    return found.digest()


def pack(value: Any) -> bytes:
    """Plain data as msgpack; with ints of any size, tuples and NumPy arrays.

    Raises:
        TypeError: it is something else.
    """
    packed: bytes = msgpack.packb(value, default=_extended, strict_types=True)
    return packed


def unpack(data: Any) -> Any:
    """Read what :func:`pack` wrote.

    Raises:
        ValueError: it is something else, or nests too deeply.
        msgpack.UnpackException: it is cut off.
    """
    scan_msgpack(data, _BOUNDS, (_TUPLE, _ARRAY))  # before the hook runs, which calls itself
    return _unpack(data)


def _unpack(data: Any) -> Any:
    return msgpack.unpackb(data, ext_hook=_restored, strict_map_key=False, use_list=True)


def _extended(value: Any) -> msgpack.ExtType:
    if isinstance(value, int):  # of more than 64 bits
        return msgpack.ExtType(_NUMBER, str(int(value)).encode())
    if isinstance(value, tuple):
        return msgpack.ExtType(_TUPLE, pack(list(value)))
    if isinstance(value, (np.ndarray, np.generic)):
        return msgpack.ExtType(
            _ARRAY, pack([value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()])
        )
    raise TypeError(
        f"a checkpoint can not hold {value!r} of type {type(value).__name__}, expected plain data: numbers, texts, "
        "None, lists, tuples, dicts and NumPy arrays"
    )


def _restored(code: int, data: bytes) -> Any:
    if code == _NUMBER:
        return int(data)
    if code == _TUPLE:
        return tuple(_unpack(data))
    if code != _ARRAY:
        raise ValueError(f"an extension of type {code}, expected {_NUMBER}, {_TUPLE} or {_ARRAY}")
    kind, shape, content = _unpack(data)
    if not isinstance(kind, str) or not _DTYPE.fullmatch(kind):
        raise ValueError(f"an array of dtype {str(kind)[:80]!r}, expected numbers or texts of a fixed size")
    array = np.frombuffer(content, np.dtype(kind)).reshape(shape).copy()
    return array if shape else array[()]
