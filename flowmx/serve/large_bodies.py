"""Large bodies, written and parsed in chunks.

Large bodies are handled on threads. A C call that builds a million objects or copies many bytes would still hold the
GIL until it returns, and block every event loop. Here such calls take at most a few milliseconds, and copies release
the GIL.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flowmx.comm.offload import LARGE
from flowmx.ops.registry.operators import Array

__all__ = ["Body", "array_of", "chunks_of", "joined", "loads", "text_of"]

Body = bytes | memoryview

_NUMBERS = 4096
"""Numbers that are converted to text, or to an array, in one call."""
_TEXT = 1 << 16
"""Bytes of JSON above which parsing takes milliseconds."""
_CHUNK = 1 << 18
"""Size of the chunks that a body is sent in, in bytes."""


def joined(parts: Sequence[bytes | Array]) -> Body:
    """Join bytes and the bytes of arrays in C order, copying them once."""
    if sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts) < LARGE:
        return b"".join([part if isinstance(part, bytes) else part.tobytes() for part in parts])
    arrays = [np.frombuffer(part, np.uint8) if isinstance(part, bytes) else _bytes_of(part) for part in parts]
    body = np.empty(sum(array.nbytes for array in arrays), np.uint8)
    offset = 0
    for array in arrays:
        np.copyto(body[offset : offset + array.nbytes], array)  # NumPy releases the GIL
        offset += array.nbytes
    return body.data


def _bytes_of(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def chunks_of(body: Body) -> Iterator[Body]:
    """Split a body into the chunks that it is sent in."""
    view = memoryview(body)
    return (view[start : start + _CHUNK] for start in range(0, len(view), _CHUNK))


# -- JSON --------------------------------------------------------------------------------------------------


def text_of(value: object, numbers: int) -> bytes:
    """Return a value as JSON; its arrays, with ``numbers`` elements in total, are written as nested lists.

    NaN and infinities become null: JSON cannot represent them, and most parsers refuse Python's notation.
    """
    return (_text(value) if numbers <= _NUMBERS else "".join(_fragments(value))).encode()


def _text(value: object) -> str:
    try:
        return json.dumps(value, default=_to_list, allow_nan=False)
    except ValueError:
        return json.dumps(value, default=_with_nulls)


def _to_list(array: Array) -> Any:
    return array.tolist()


def _with_nulls(array: Array) -> Any:
    if array.dtype.kind in "biu":
        return array.tolist()
    exact = array.astype(np.float64)
    numbers = exact.astype(object)
    numbers[~np.isfinite(exact)] = None
    return numbers.tolist()


def _fragments(value: object) -> Iterator[str]:
    if isinstance(value, np.ndarray):
        yield from _array_fragments(value)
    elif isinstance(value, dict):
        yield "{"
        for index, (key, item) in enumerate(value.items()):
            yield f"{', ' if index else ''}{json.dumps(key)}: "
            yield from _fragments(item)
        yield "}"
    elif isinstance(value, list) and any(isinstance(item, (dict, np.ndarray)) for item in value):
        yield "["
        for index, item in enumerate(value):
            yield ", " if index else ""
            yield from _fragments(item)
        yield "]"
    else:
        yield json.dumps(value)


def _array_fragments(array: Array) -> Iterator[str]:
    """Yield the nested lists of an array, a few rows at a time."""
    if array.size <= _NUMBERS:
        yield _text(array)
        return
    row = math.prod(array.shape[1:])
    yield "["
    for start in range(0, len(array), max(1, _NUMBERS // row)):
        yield ", " if start else ""
        if row > _NUMBERS:
            yield from _array_fragments(array[start])
        else:
            yield _text(array[start : start + _NUMBERS // row])[1:-1]
    yield "]"


def loads(body: bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError, RecursionError: the JSON is invalid or nested too deeply.
    """
    if len(body) < _TEXT:
        return json.loads(body)
    return json.loads(body, parse_float=_float, parse_int=_int)


# Functions in Python, because the interpreter can switch threads at their calls.


def _float(text: str) -> float:
    return float(text)


def _int(text: str) -> int:
    return int(text)


# -- lists -------------------------------------------------------------------------------------------------


def array_of(value: object) -> Array:
    """Return the array of nested lists, as ``np.asarray`` does.

    Raises:
        ValueError, TypeError: the lists do not form an array.
    """
    parts = list(_parts(value)) if isinstance(value, list) else []
    if len(parts) < 2 or any(part.dtype.kind not in "biuf" or part.shape[1:] != parts[0].shape[1:] for part in parts):
        return np.asarray(value)
    return np.concatenate(parts)


def _parts(value: Sequence[object]) -> Iterator[Array]:
    """Yield arrays of some elements each, up to the first elements that do not form an array."""
    row = _size_of(value[0]) if value else 0
    if not row or row * len(value) <= _NUMBERS:
        return
    step = max(1, _NUMBERS // row)
    for start in range(0, len(value), step):
        try:
            yield array_of(value[start])[None] if row > _NUMBERS else np.asarray(value[start : start + step])
        except (TypeError, ValueError):  # the caller repeats np.asarray on the whole value, for its error message
            yield np.empty(0, object)
            return


def _size_of(value: object) -> int:
    """Return the number of elements of nested lists, judging by their first elements."""
    size = 1
    while isinstance(value, list) and size:
        size, value = size * len(value), value[0] if value else None
    return size
