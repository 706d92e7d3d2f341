"""Bodies of requests and answers: JSON, msgpack and NumPy's ``.npy``. Pure.

========  =====================================================  ===================================================
type      a request                                              an answer
========  =====================================================  ===================================================
JSON      nested lists, or ``{"inputs": lists or {name: ...}}``  ``{"outputs": lists}``, several as ``{name: lists}``
msgpack   the same with ``{shape, dtype, data}`` for each array  the same with ``{shape, dtype, data}``
.npy      one array                                              the output of a model that has one
========  =====================================================  ===================================================
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgpack
import numpy as np

from flowmx.comm.limits import in_force
from flowmx.comm.offload import LARGE
from flowmx.ops.registry.dtypes import dtype_named
from flowmx.scanning import Bounds, Excess, scan_json, scan_msgpack
from flowmx.serve.errors import InvalidInput
from flowmx.serve.inputs import Array

__all__ = ["FORMATS", "Format", "NotAcceptable", "accepted", "parsed"]

Outputs = Mapping[str, Array]
_KINDS = "biufV"


class NotAcceptable(ValueError):
    """The answer has no form in the format that was asked for."""


class Format(NamedTuple):
    """One kind of body.

    Attributes:
        type: its media type.
        read: from bytes to what a predictor takes; raises InvalidInput.
        write: from named outputs to bytes.
        is_text: whether reading it takes long for its size.
        scan: refuses bytes that begin a body of more than may be built; raises InvalidInput.
        is_quick: from bytes to whether reading them takes no longer than handing them to another thread.
    """

    type: str
    read: Callable[[bytes], Any]
    write: Callable[[Outputs], bytes]
    is_text: bool = False
    scan: Callable[[bytes], None] = lambda body: None
    is_quick: Callable[[bytes], bool] = lambda body: len(body) < LARGE


def accepted(accept: str, own: Format) -> Format:
    """The format of an answer, by the header that asks for it; else that of the request.

    Raises:
        NotAcceptable: it asks for none of ours.
    """
    wanted = [part.partition(";")[0].strip().lower() for part in accept.split(",") if part.strip()]
    for each in wanted:
        if each in FORMATS:
            return FORMATS[each]
    if not wanted or any(each in ("*/*", "application/*", own.type) for each in wanted):
        return own
    raise NotAcceptable(f"Accept is {accept[:80]!r}, expected one of {', '.join(FORMATS)}")


def _inputs(found: Any) -> Any:
    return found["inputs"] if isinstance(found, dict) and set(found) == {"inputs"} else found


def _named(outputs: Outputs, form: Callable[[Array], Any]) -> dict[str, Any]:
    formed = {name: form(array) for name, array in outputs.items()}
    return {"outputs": formed if len(formed) > 1 else next(iter(formed.values()), None)}


# -- JSON ----------------------------------------------------------------------------------------------


def _scan_json(body: bytes) -> None:
    try:
        scan_json(body, in_force("serve").bounds)
    except Excess as error:
        raise InvalidInput(f"the body is no JSON that is read here: {error}") from None


def _read_json(body: bytes) -> Any:
    return _inputs(parsed(body))


def parsed(body: bytes) -> Any:
    """Parse JSON, once it was seen to be no more than may be built.

    Raises:
        InvalidInput: it is none, or too much.
    """
    _scan_json(body)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the body is no JSON: {error}") from None


def _write_json(outputs: Outputs) -> bytes:
    return json.dumps(_named(outputs, lambda array: array.tolist())).encode()


# -- msgpack -------------------------------------------------------------------------------------------


def _scan_msgpack(body: bytes) -> None:
    try:
        scan_msgpack(body, in_force("serve").bounds)
    except Excess as error:
        raise InvalidInput(f"the body is no msgpack that is read here: {error}") from None


def _read_msgpack(body: bytes) -> Any:
    _scan_msgpack(body)
    try:
        found = _inputs(msgpack.unpackb(body))
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise InvalidInput(f"the body is no msgpack: {type(error).__name__}: {error}") from None
    if isinstance(found, dict) and "data" in found and "dtype" in found:
        return _array(found)
    if isinstance(found, dict):
        return {name: _array(each) for name, each in found.items()}
    return found


def _array(found: Any) -> Any:
    """The array of ``{shape, dtype, data}``; other values stay as they are."""
    if not isinstance(found, dict):
        return found
    if set(found) != {"shape", "dtype", "data"}:
        raise InvalidInput(f"an array has the keys {', '.join(map(str, found))}, expected shape, dtype, data")
    shape, data = found["shape"], found["data"]
    dtype = _dtype(found["dtype"])
    if not isinstance(shape, Sequence) or not all(type(size) is int and size >= 0 for size in shape):
        raise InvalidInput(f"the shape of an array is {str(shape)[:80]}, expected a list of sizes")
    if not isinstance(data, bytes) or len(data) != math.prod(shape) * dtype.itemsize:
        given = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
        raise InvalidInput(
            f"the data of an array are {given}, expected {math.prod(shape) * dtype.itemsize} bytes for {dtype} "
            f"{list(shape)}"
        )
    return _shaped(data, dtype, shape)


def _shaped(
    data: bytes | memoryview, dtype: np.dtype[Any], shape: Sequence[int], order: Literal["C", "F"] = "C"
) -> Array:
    """An array over bytes of the right number; not every shape of that many is one, such as (2**63, 0)."""
    try:
        return np.frombuffer(data, dtype).reshape(shape, order=order)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(f"an array of {dtype} can not have the shape {str(list(shape))[:80]}: {error}") from None


def _dtype(name: Any) -> np.dtype[Any]:
    try:
        dtype = dtype_named(name) if isinstance(name, str) else np.dtype(object)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in _KINDS or dtype.fields or dtype.subdtype:
        raise InvalidInput(f"the dtype of an array is {str(name)[:80]!r}, expected the name of one, such as 'float32'")
    return dtype.newbyteorder("<")


def _is_quick(body: bytes) -> bool:
    """True where msgpack holds little more than the bytes of arrays."""
    try:
        scan_msgpack(body, _FEW)
    except Excess:
        return False
    return len(body) < LARGE


_FEW = Bounds(depth=4, containers=32, items=128)


def _write_msgpack(outputs: Outputs) -> bytes:
    packed: bytes = msgpack.packb(_named(outputs, _described))
    return packed


def _described(array: Array) -> dict[str, Any]:
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return {"shape": list(array.shape), "dtype": array.dtype.name, "data": little.tobytes()}


# -- npy -----------------------------------------------------------------------------------------------


def _read_npy(body: bytes) -> Any:
    try:
        size = _NPY_SIZES.get(body[6:8], 0)
        end = 8 + size + int.from_bytes(body[8 : 8 + size], "little")
        if end > _NPY_HEADER:
            raise ValueError(f"a header of {end} bytes, expected at most {_NPY_HEADER}")
        shape, fortran, dtype = _npy_header(body[:end])
    except Exception as error:  # NumPy lets Python's own parser read the header, which fails in many ways
        raise InvalidInput(f"the body is no .npy: {type(error).__name__}: {error}") from None
    if dtype.kind not in _KINDS or dtype.fields or dtype.subdtype or dtype.hasobject:
        raise InvalidInput(f"the body has the dtype {dtype}, expected numbers")
    wanted, given = math.prod(shape) * dtype.itemsize, len(body) - end
    if wanted != given:
        raise InvalidInput(f"the body has {given} bytes after its header, expected {wanted} for {dtype} {list(shape)}")
    return _shaped(memoryview(body)[end:], dtype, shape, order="F" if fortran else "C")


_NPY_HEADER = 4096
"""Bytes of a header; those of arrays have a hundred."""
_NPY_SIZES = {b"\x01\x00": 2, b"\x02\x00": 4}
"""Bytes of a header's length, by version."""
_NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@lru_cache(128)  # requests to a model have the same few, and to parse one takes longer than all else with a body
def _npy_header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether it is Fortran's order, and dtype."""
    stream = io.BytesIO(head)
    return _NPY_HEADERS[np.lib.format.read_magic(stream)](stream)


def _write_npy(outputs: Outputs) -> bytes:
    if len(outputs) != 1:
        raise NotAcceptable(
            f"the model has the outputs {', '.join(outputs)}, and .npy holds one array: ask for {JSON.type} or "
            f"{MSGPACK.type} in Accept"
        )
    array = next(iter(outputs.values()))
    return _npy_head(array.shape, array.dtype) + array.tobytes()


@lru_cache(128)
def _npy_head(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Header of an ``.npy`` file of a C-contiguous array."""
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
    **{each.type: each for each in (JSON, MSGPACK, NPY)},
    "application/x-msgpack": MSGPACK, "application/vnd.msgpack": MSGPACK, "application/npy": NPY,
}  # fmt: skip
"""By media type."""
