"""Formats of requests and replies: JSON, msgpack and NumPy's ``.npy``. This module does no I/O.

========  =====================================================  ===================================================
type      request                                                reply
========  =====================================================  ===================================================
JSON      nested lists, or ``{"inputs": lists or {name: ...}}``  ``{"outputs": lists or {name: lists}}``
msgpack   as JSON, arrays as ``{shape, dtype, data}``            as JSON, arrays as ``{shape, dtype, data}``
.npy      one array                                              the output of a model with one output
========  =====================================================  ===================================================
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgpack
import numpy as np

from flowmx.comm.limits import limits_for
from flowmx.comm.offload import LARGE
from flowmx.ops.registry.dtypes import DType, dtype_named
from flowmx.scanning import Bounds, Excess, scan_json, scan_msgpack
from flowmx.serve.errors import InvalidInput
from flowmx.serve.inputs import Array
from flowmx.serve.large_bodies import Body, joined, loads, text_of
from flowmx.shape_limits import ShapeError, read_shape

__all__ = ["FORMATS", "Format", "NotAcceptable", "parsed", "reply_format"]

Outputs = Mapping[str, Array]
_KINDS = "biufV"


class NotAcceptable(ValueError):
    """The reply cannot be written in the requested format."""


class Format(NamedTuple):
    """A format of bodies.

    Attributes:
        type: its media type.
        read: parses bytes into a predictor's input; raises InvalidInput.
        write: serializes named outputs.
        is_text: whether parsing is slow for its size.
        scan: checks the first bytes of a body against the limits on parsed values; raises InvalidInput.
        is_quick: returns whether parsing a body takes no longer than handing it to another thread.
    """

    type: str
    read: Callable[[bytes], Any]
    write: Callable[[Outputs], Body]
    is_text: bool = False
    scan: Callable[[bytes], None] = lambda body: None
    is_quick: Callable[[bytes], bool] = lambda body: len(body) < LARGE


def reply_format(accept: str, default: Format) -> Format:
    """Return the format of the reply: the first supported type of the Accept header, else the default.

    Raises:
        NotAcceptable: the header lists no supported type.
    """
    types = [part.partition(";")[0].strip().lower() for part in accept.split(",") if part.strip()]
    for media_type in types:
        if media_type in FORMATS:
            return FORMATS[media_type]
    if not types or any(media_type in ("*/*", "application/*", default.type) for media_type in types):
        return default
    raise NotAcceptable(f"Accept is {accept[:80]!r}, expected one of {', '.join(FORMATS)}")


def _inputs(value: object) -> Any:
    return value["inputs"] if isinstance(value, dict) and set(value) == {"inputs"} else value


def _reply(outputs: Outputs, form: Callable[[Array], Any]) -> dict[str, object]:
    values = {name: form(array) for name, array in outputs.items()}
    return {"outputs": values if len(values) > 1 else next(iter(values.values()), None)}


# -- JSON ----------------------------------------------------------------------------------------------


def _scan_json(body: bytes) -> None:
    try:
        scan_json(body, limits_for("serve").bounds)
    except Excess as error:
        raise InvalidInput(f"the JSON of the body is too large: {error}") from None


def _read_json(body: bytes) -> Any:
    return _inputs(parsed(body))


def parsed(body: bytes) -> Any:
    """Parse JSON after checking it against the limits on parsed values.

    Raises:
        InvalidInput: the JSON is invalid or exceeds the limits.
    """
    _scan_json(body)
    try:
        return loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the body is not valid JSON: {error}") from None


def _write_json(outputs: Outputs) -> bytes:
    return text_of(_reply(outputs, lambda array: array), sum(array.size for array in outputs.values()))


# -- msgpack -------------------------------------------------------------------------------------------


def _scan_msgpack(body: bytes) -> None:
    try:
        scan_msgpack(body, limits_for("serve").bounds)
    except Excess as error:
        raise InvalidInput(f"the msgpack of the body is too large: {error}") from None


def _read_msgpack(body: bytes) -> Any:
    _scan_msgpack(body)
    try:
        value = _inputs(msgpack.unpackb(body))
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise InvalidInput(f"the body is not valid msgpack: {type(error).__name__}: {error}") from None
    if isinstance(value, dict) and "data" in value and "dtype" in value:
        return _array(value)
    if isinstance(value, dict):
        return {name: _array(item) for name, item in value.items()}
    return value


def _array(value: object) -> Any:
    """Return the array of ``{shape, dtype, data}``, and any other value unchanged."""
    if not isinstance(value, dict):
        return value
    if set(value) != {"shape", "dtype", "data"}:
        raise InvalidInput(f"an array has the keys {', '.join(map(str, value))}, expected shape, dtype, data")
    dtype, data = _dtype(value["dtype"]), value["data"]
    shape = _shape(value["shape"], dtype)
    if not isinstance(data, bytes) or len(data) != math.prod(shape) * dtype.itemsize:
        actual = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
        raise InvalidInput(
            f"the data of an array are {actual}, expected {math.prod(shape) * dtype.itemsize} bytes for {dtype} "
            f"{list(shape)}"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def _shape(value: object, dtype: DType) -> tuple[int, ...]:
    try:
        return read_shape(value, dtype.itemsize)
    except ShapeError as error:
        raise InvalidInput(f"the shape of an array {error}") from None


def _dtype(name: object) -> DType:
    try:
        dtype = dtype_named(name) if isinstance(name, str) else np.dtype(object)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in _KINDS or dtype.fields or dtype.subdtype:
        raise InvalidInput(f"the dtype of an array is {str(name)[:80]!r}, expected the name of one, such as 'float32'")
    return dtype.newbyteorder("<")


def _is_quick(body: bytes) -> bool:
    """Return whether a msgpack body is small and contains little besides the bytes of arrays."""
    try:
        scan_msgpack(body, _QUICK_BOUNDS)
    except Excess:
        return False
    return len(body) < LARGE


_QUICK_BOUNDS = Bounds(depth=4, containers=32, items=128)


def _write_msgpack(outputs: Outputs) -> Body:
    """Return the bytes of ``packb({"outputs": ...})``, copying the arrays once."""
    if sum(array.nbytes for array in outputs.values()) < LARGE:
        packed: bytes = msgpack.packb(_reply(outputs, _msgpack_array))
        return packed
    packer = msgpack.Packer()
    parts: list[bytes | Array] = [packer.pack_map_header(1), packer.pack("outputs")]
    if len(outputs) > 1:
        parts.append(packer.pack_map_header(len(outputs)))
    for name, array in outputs.items():
        parts += [packer.pack(name)] if len(outputs) > 1 else []
        head = packer.pack({"shape": list(array.shape), "dtype": array.dtype.name})[1:]
        parts += [packer.pack_map_header(3), head, packer.pack("data"), _bin_head(array.nbytes), _little_endian(array)]
    return joined(parts)


def _msgpack_array(array: Array) -> dict[str, object]:
    return {"shape": list(array.shape), "dtype": array.dtype.name, "data": _little_endian(array).tobytes()}


def _little_endian(array: Array) -> Array:
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _bin_head(size: int) -> bytes:
    """Return the header of msgpack's binary data."""
    for code, width in ((0xC4, 1), (0xC5, 2), (0xC6, 4)):
        if size < 1 << 8 * width:
            return bytes([code]) + size.to_bytes(width, "big")
    raise NotAcceptable(f"an output has {size} bytes, and msgpack is limited to 4 GiB: ask for {NPY.type} in Accept")


# -- npy -----------------------------------------------------------------------------------------------


def _read_npy(body: bytes) -> Any:
    try:
        size = _NPY_SIZES.get(body[6:8], 0)
        end = 8 + size + int.from_bytes(body[8 : 8 + size], "little")
        if end > _NPY_HEADER:
            raise ValueError(f"the header has {end} bytes, expected at most {_NPY_HEADER}")
        shape, fortran, dtype = _npy_header(body[:end])
    except Exception as error:  # NumPy evaluates the header with ast.literal_eval, which raises various exceptions
        raise InvalidInput(f"the body is not a valid .npy file: {type(error).__name__}: {error}") from None
    if dtype.kind not in _KINDS or dtype.fields or dtype.subdtype or dtype.hasobject:
        raise InvalidInput(f"the body has the dtype {dtype}, expected numbers")
    expected, actual = math.prod(_shape(shape, dtype)) * dtype.itemsize, len(body) - end
    if expected != actual:
        raise InvalidInput(
            f"the body has {actual} bytes after its header, expected {expected} for {dtype} {list(shape)}"
        )
    return np.frombuffer(memoryview(body)[end:], dtype).reshape(shape, order="F" if fortran else "C")


_NPY_HEADER = 4096
"""Limit of a header in bytes; typical headers have about 100."""
_NPY_SIZES = {b"\x01\x00": 2, b"\x02\x00": 4}
"""Size in bytes of the header's length field, by version."""
_NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@lru_cache(128)  # requests repeat a few headers, and parsing a header is the slowest step
def _npy_header(head: bytes) -> tuple[tuple[int, ...], bool, DType]:
    """Return the shape, whether the order is Fortran's, and the dtype."""
    stream = io.BytesIO(head)
    return _NPY_HEADERS[np.lib.format.read_magic(stream)](stream)


def _write_npy(outputs: Outputs) -> Body:
    if len(outputs) != 1:
        raise NotAcceptable(
            f"the model has the outputs {', '.join(outputs)}, and .npy holds only one array: ask for {JSON.type} or "
            f"{MSGPACK.type} in Accept"
        )
    array = next(iter(outputs.values()))
    return joined([_npy_head(array.shape, array.dtype), array])


@lru_cache(128)
def _npy_head(shape: tuple[int, ...], dtype: DType) -> bytes:
    """Return the header of an ``.npy`` file of a C-contiguous array."""
    stream = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue()


JSON = Format(
    "application/json", _read_json, _write_json, is_text=True, scan=_scan_json, is_quick=lambda body: len(body) < 4096
)
MSGPACK = Format("application/msgpack", _read_msgpack, _write_msgpack, scan=_scan_msgpack, is_quick=_is_quick)
NPY = Format("application/x-npy", _read_npy, _write_npy)
FORMATS = {
    **{form.type: form for form in (JSON, MSGPACK, NPY)},
    "application/x-msgpack": MSGPACK, "application/vnd.msgpack": MSGPACK, "application/npy": NPY,
}  # fmt: skip
"""Formats by media type."""
