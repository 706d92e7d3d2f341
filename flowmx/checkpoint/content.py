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
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack
import numpy as np

from flowmx.errors import MXNetError
from flowmx.serialization import params

MAGIC = b"FLOWMXCP"
VERSION = 1
_START = struct.Struct("<8sIQ")
_DIGEST = 32
_NUMBER, _TUPLE, _ARRAY = 1, 2, 3


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
    header = unpack(body[_START.size : _START.size + length])
    parts, at = [], _START.size + length
    for size in header["lengths"]:
        parts.append(body[at : at + size])
        at += size
    arrays = params.loads(parts[0], source=source)
    assert isinstance(arrays, list), "arrays without names are a list"
    return Checkpoint(
        Place(*header["place"]), dict(zip(header["arrays"], arrays, strict=True)),
        {name: bytes(part) for name, part in zip(header["blobs"], parts[1:], strict=True)},
        header["content"], header["workers"],
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
    """Read what :func:`pack` wrote."""
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
        return tuple(unpack(data))
    kind, shape, content = unpack(data)
    array = np.frombuffer(content, np.dtype(kind)).reshape(shape).copy()
    return array if shape else array[()]
