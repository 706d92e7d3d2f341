"""The content of a checkpoint, and the encoding of its plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import msgpack
import numpy as np

from flowmx.errors import MXNetError
from flowmx.ops.registry.operators import Array
from flowmx.scanning import Bounds, build_map, scan_msgpack

_NUMBER, _TUPLE, _ARRAY = 1, 2, 3
_DTYPE = re.compile(r"[<>|=][biufcSUVMm]\d{1,9}(\[\w+\])?")
_BOUNDS = Bounds()

Blob: TypeAlias = bytes | memoryview | Sequence[bytes | memoryview]
"""Bytes, in one piece or in several."""


class CheckpointError(MXNetError, ValueError):
    """A file is not a checkpoint, is damaged, or does not belong to the training that is resumed."""


class Place(NamedTuple):
    """The position of a training run.

    Attributes:
        epoch: the epoch, from 0.
        batch: the number of its completed batches.
    """

    epoch: int
    batch: int


@dataclass
class Checkpoint:
    """A state of training.

    Attributes:
        place: the position of training.
        arrays: parameters and auxiliary states, by names that the writer chooses.
        blobs: bytes by name, such as the states of an optimizer: a `Blob`, in one piece after reading.
        content: everything else, as plain data: numbers, strings, None, lists, tuples, dicts, NumPy arrays.
        workers: the number of workers of the job.
    """

    place: Place
    arrays: Mapping[str, Array] = field(default_factory=dict)
    blobs: Mapping[str, Any] = field(default_factory=dict)
    content: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 1


def pack(value: object) -> bytes:
    """Encode plain data as msgpack with extensions for large ints, tuples and NumPy arrays.

    Raises:
        TypeError: a value is not plain data.
        ValueError: it is nested too deeply, or has too many elements, to be read.
    """
    data = _pack(value)
    scan_msgpack(data, _BOUNDS, (_TUPLE, _ARRAY))
    return data


def unpack(data: Any) -> Any:
    """Decode a result of :func:`pack`.

    Raises:
        ValueError: the data is invalid, or nested too deeply.
        msgpack.UnpackException: the data is truncated.
    """
    scan_msgpack(data, _BOUNDS, (_TUPLE, _ARRAY))  # before the recursive hook runs
    return _unpack(data)


def _pack(value: object) -> bytes:
    data: bytes = msgpack.packb(value, default=_to_extension, strict_types=True)
    return data


def _unpack(data: object) -> Any:
    return msgpack.unpackb(data, ext_hook=_from_extension, object_pairs_hook=build_map, strict_map_key=False)


def _to_extension(value: object) -> msgpack.ExtType:
    if isinstance(value, int):  # more than 64 bits
        return msgpack.ExtType(_NUMBER, str(int(value)).encode())
    if isinstance(value, tuple):
        return msgpack.ExtType(_TUPLE, _pack(list(value)))
    if isinstance(value, (np.ndarray, np.generic)):
        return msgpack.ExtType(
            _ARRAY, _pack([value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()])
        )
    raise TypeError(
        f"a checkpoint cannot hold {value!r} of type {type(value).__name__}, expected plain data: numbers, strings, "
        "None, lists, tuples, dicts and NumPy arrays"
    )


def _from_extension(code: int, data: bytes) -> Any:
    if code == _NUMBER:
        return int(data)
    if code == _TUPLE:
        return tuple(_unpack(data))
    if code != _ARRAY:
        raise ValueError(f"an extension of type {code}, expected {_NUMBER}, {_TUPLE} or {_ARRAY}")
    kind, shape, content = _unpack(data)
    if not isinstance(kind, str) or not _DTYPE.fullmatch(kind):
        raise ValueError(f"an array of dtype {str(kind)[:80]!r}, expected numbers or strings of a fixed size")
    array = np.frombuffer(content, np.dtype(kind)).reshape(shape).copy()
    return array if shape else array[()]
