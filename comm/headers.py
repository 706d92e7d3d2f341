"""Headers of frames: their validation, and the descriptions of tensors. This module does no I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgpack

from flowmx.comm.errors import TooLarge, WireError
from flowmx.comm.limits import DEFAULT, Limits
from flowmx.scanning import Bounds, Excess, scan_msgpack
from flowmx.shape_limits import ShapeError, ShapeOverflow, read_shape

__all__ = ["ITEMSIZE", "Spec", "check_common", "check_size", "count_bytes", "read_specs", "take", "unpack"]

ITEMSIZE: Mapping[str, int] = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
"""The dtypes of the wire format, and the bytes of an element."""


class Spec(NamedTuple):
    """A tensor in a header: dtype, shape, size in bytes, and its `offset` in bytes if it is in shared memory."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int | None = None


def take(
    header: Mapping[str, object], required: Mapping[str, object], optional: Mapping[str, object] = {}
) -> dict[str, Any]:
    """Check an operation's header: it must have every required key, and no unknown ones.

    Args:
        header: the received header.
        required: maps each key to the type (or types, as for isinstance) of its value. Bools are not numbers.
        optional: the same for keys that may be missing. "id", "node" and "incarnation" are always optional.

    Raises:
        WireError: a key is missing or unknown, or a value has a different type.
    """
    allowed_keys = {**COMMON, **optional, **required}
    for key in required:
        if key not in header:
            raise WireError(f"the header has no {key!r}; it takes {', '.join(allowed_keys)}")
    for key, value in header.items():
        if key not in allowed_keys:
            raise WireError(f"the header has {key!r}, which is unknown; it takes {', '.join(allowed_keys)}")
        _check_type(key, value, allowed_keys[key])
    return dict(header)


COMMON: Mapping[str, Any] = {"id": str, "node": str, "incarnation": int}
"""Keys that are optional in the header of any operation, with their types; see docs/wire.md."""


def check_common(header: Mapping[str, object]) -> None:
    """Check the types of the common keys.

    Raises:
        WireError: a value has a different type.
    """
    for key, kind in COMMON.items():
        if key in header:
            _check_type(key, header[key], kind)


def _check_type(key: str, value: object, kinds: object) -> None:
    allowed = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        names = " or ".join("nothing" if kind is type(None) else kind.__name__ for kind in allowed)
        raise WireError(f"the header's {key!r} is {_short(value)}, and must be {names}")


def unpack(data: memoryview, bounds: Bounds = DEFAULT.bounds) -> dict[str, Any]:
    """Decode a header from msgpack: maps with text keys, lists, text, bytes, numbers, bools and nil.

    Raises:
        WireError: the bytes encode something else or are invalid, or exceed the bounds.
    """
    size = len(data)
    try:
        scan_msgpack(data, bounds)
        header = msgpack.unpackb(
            data, raw=False, strict_map_key=True, object_pairs_hook=_unique, ext_hook=_no_extension,
            max_str_len=size, max_bin_len=size, max_array_len=size, max_map_len=size, max_ext_len=size,
        )  # fmt: skip
    except WireError:
        raise
    except Excess as error:
        raise WireError(f"the header is nested too deeply or too large: {error}") from None
    except (ValueError, RecursionError, OverflowError, msgpack.UnpackException) as error:
        raise WireError(f"the header is not valid msgpack: {type(error).__name__}: {error}") from None
    if not isinstance(header, dict):
        raise WireError(f"the header is {_short(header)}, and must be a map")
    _check_plain(header)
    return cast("dict[str, Any]", header)


def _unique(pairs: Sequence[tuple[Any, Any]]) -> dict[object, Any]:
    entries: dict[object, object] = {}
    for key, value in pairs:
        if key in entries:
            raise WireError(f"a map of the header has the key {_short(key)} twice")
        entries[key] = value
    return entries


def _no_extension(code: int, data: bytes) -> Any:
    raise WireError(f"the header has an extension of type {code}, {len(data)} bytes; extensions are not allowed")


def _check_plain(value: object) -> None:
    """Refuse keys that are not text, and msgpack's timestamps."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else ():
            if not isinstance(key, str):
                raise WireError(f"a map of the header has the key {_short(key)}, and keys must be text")
        for inner in value.values() if isinstance(value, dict) else value:
            if type(inner) not in _LEAVES:
                _check_plain(inner)
    elif type(value) not in _LEAVES:
        raise WireError(f"the header has a {type(value).__name__}; it takes text, numbers, bytes, lists and maps")


_LEAVES = frozenset({str, int, float, bytes, bool, type(None)})


def read_specs(header: Mapping[str, object], shared: bool, limits: Limits) -> list[Spec]:
    """Return the tensors that a header lists.

    Raises:
        WireError: the list is malformed, or there are too many or too large tensors.
    """
    listed = header.get("tensors", [])
    if not isinstance(listed, list):
        raise WireError(f"the header's 'tensors' is {_short(listed)}, and must be a list")
    if len(listed) > limits.tensors:
        raise TooLarge(f"the message has {len(listed)} tensors; at most {limits.tensors} are allowed (Limits.tensors)")
    specs = [_spec(index, entry, shared) for index, entry in enumerate(listed)]
    for index, spec in enumerate(specs):
        check_size(spec.nbytes, limits.tensor, f"tensor {index}", "tensor")
    return specs


def _spec(index: int, entry: object, shared: bool) -> Spec:
    form = "[dtype, shape, offset]" if shared else "[dtype, shape]"
    if not isinstance(entry, list) or len(entry) != 2 + shared:
        raise WireError(f"tensor {index} is described by {_short(entry)}, and must be {form}")
    dtype, shape, *rest = entry
    if rest and not (type(rest[0]) is int and 0 <= rest[0] < 1 << 63):
        raise WireError(f"tensor {index} has the offset {_short(rest[0])}, and must have an integer of at least 0")
    return Spec(dtype, *_measure(dtype, shape, index), *rest)


def count_bytes(dtype: object, shape: Sequence[int], index: int) -> int:
    """Return the bytes of a tensor.

    Raises:
        WireError: the dtype is unknown, there are too many dimensions, or the size overflows.
    """
    return _measure(dtype, list(shape), index)[1]


def _measure(dtype: object, shape: object, index: int) -> tuple[tuple[int, ...], int]:
    """Return the shape of a tensor, and its bytes."""
    if not isinstance(dtype, str) or dtype not in ITEMSIZE:
        raise WireError(f"tensor {index} has the dtype {_short(dtype)}; the wire format has {', '.join(ITEMSIZE)}")
    try:
        sizes = read_shape(shape, ITEMSIZE[dtype])
    except ShapeOverflow as error:
        raise TooLarge(f"the shape of tensor {index} {error}") from None
    except ShapeError as error:
        raise WireError(f"the shape of tensor {index} {error}") from None
    return sizes, math.prod(sizes) * ITEMSIZE[dtype]


def check_size(size: int, limit: int, what: str, name: str) -> None:
    """Check a size against a limit.

    Raises:
        TooLarge: it is larger.
    """
    if size > limit:
        raise TooLarge(f"{what} has {size} bytes; at most {limit} are allowed (Limits.{name})")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
