"""Headers of frames: the allowed content, and the description of tensors. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgpack

from flowmx.comm.errors import TooLarge, WireError
from flowmx.comm.limits import DEFAULT, Limits
from flowmx.scanning import Bounds, Excess, scan_msgpack

__all__ = ["ITEMSIZE", "Spec", "check_common", "check_size", "count_bytes", "read_specs", "take", "unpack"]

MAX_DIMENSIONS = 32

ITEMSIZE: Mapping[str, int] = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
"""The dtypes of the wire, and the bytes of an element."""


class Spec(NamedTuple):
    """A tensor in a header: dtype, shape, size in bytes, and `offset` (bytes) where it lies in shared memory."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int | None = None


def take(header: Mapping[str, Any], required: Mapping[str, Any], optional: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Check an operation's header: every required key, optional ones at will, and no other.

    Args:
        header: as it came.
        required: from key to the type (or types, as for isinstance) of its value. True and False are no numbers.
        optional: the same, for keys that may be missing. "id", "node" and "incarnation" always may.

    Raises:
        WireError: a key is missing or unknown, or a value of another type.
    """
    known = {**COMMON, **optional, **required}
    for key in required:
        if key not in header:
            raise WireError(f"the header misses {key!r}; it takes {', '.join(known)}")
    for key, value in header.items():
        if key not in known:
            raise WireError(f"the header has {key!r}, which is unknown here; it takes {', '.join(known)}")
        _check_type(key, value, known[key])
    return dict(header)


COMMON: Mapping[str, Any] = {"id": str, "node": str, "incarnation": int}
"""Keys that the header of any operation may have, with their types: see docs/wire.md."""


def check_common(header: Mapping[str, Any]) -> None:
    """Check the types of the common keys.

    Raises:
        WireError: one is of another type.
    """
    for key, kind in COMMON.items():
        if key in header:
            _check_type(key, header[key], kind)


def _check_type(key: str, value: Any, kinds: Any) -> None:
    allowed = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        names = " or ".join("nothing" if kind is type(None) else kind.__name__ for kind in allowed)
        raise WireError(f"the header's {key!r} is {_short(value)}, and must be {names}")


def unpack(data: memoryview, bounds: Bounds = DEFAULT.bounds) -> dict[str, Any]:
    """The header that msgpack's bytes stand for: maps with text keys, lists, text, bytes, numbers, True, False and nil.

    Raises:
        WireError: they stand for anything else, or for no one thing, or for more than the bounds allow.
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
        raise WireError(f"the header is nested too deep, or too large: {error}") from None
    except (ValueError, RecursionError, OverflowError, msgpack.UnpackException) as error:
        raise WireError(f"the header is no msgpack: {type(error).__name__}: {error}") from None
    if not isinstance(header, dict):
        raise WireError(f"the header is {_short(header)}, and must be a map")
    _check_plain(header)
    return cast("dict[str, Any]", header)


def _unique(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise WireError(f"a map of the header has the key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return found


def _no_extension(code: int, data: bytes) -> Any:
    raise WireError(f"the header has an extension of type {code}, {len(data)} bytes; none is known here")


def _check_plain(value: Any) -> None:
    """Refuse keys that are no text, and msgpack's timestamps."""
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


def read_specs(header: Mapping[str, Any], shared: bool, limits: Limits) -> list[Spec]:
    """The tensors that a header announces.

    Raises:
        WireError: they are not described as they must be, or too many or too large.
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


def _spec(index: int, entry: Any, shared: bool) -> Spec:
    form = "[dtype, shape, offset]" if shared else "[dtype, shape]"
    if not isinstance(entry, list) or len(entry) != 2 + shared:
        raise WireError(f"tensor {index} is described by {_short(entry)}, and must be {form}")
    dtype, shape, *rest = entry
    if not isinstance(shape, list) or not all(_is_size(size) for size in (*shape, *rest)):
        raise WireError(f"tensor {index} is described by {_short(entry)}: sizes are ints of at least 0")
    return Spec(dtype, tuple(shape), count_bytes(dtype, shape, index), *rest)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def count_bytes(dtype: Any, shape: Sequence[int], index: int) -> int:
    """The bytes of a tensor.

    Raises:
        WireError: the dtype is unknown, there are too many dimensions, or the sizes multiply to too much.
    """
    if not isinstance(dtype, str) or dtype not in ITEMSIZE:
        raise WireError(f"tensor {index} has the dtype {_short(dtype)}; the wire has {', '.join(ITEMSIZE)}")
    if len(shape) > MAX_DIMENSIONS:
        raise WireError(f"tensor {index} has {len(shape)} dimensions; at most {MAX_DIMENSIONS} are allowed")
    # Sizes of 0 aside, since NumPy refuses arrays whose other sizes multiply to too much.
    if math.prod(size or 1 for size in shape) * ITEMSIZE[dtype] >= 1 << 63:
        raise TooLarge(f"tensor {index} is {dtype} {list(shape)}: more bytes than a signed 64-bit number counts")
    return math.prod(shape) * ITEMSIZE[dtype]


def check_size(size: int, most: int, what: str, name: str) -> None:
    """Check a size against the limit of a name.

    Raises:
        TooLarge: it is above.
    """
    if size > most:
        raise TooLarge(f"{what} has {size} bytes; at most {most} are allowed (Limits.{name})")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
