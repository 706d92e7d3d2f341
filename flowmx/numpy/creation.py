"""Functions of ``mx.np`` that create arrays.

The default dtype is float32, as in MXNet, or that of NumPy under ``set_np(dtype=True)``. :func:`asarray` and the
``*_like`` functions keep the dtype of their argument, as the array API standard requires.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from flowmx import devices
from flowmx.errors import raised_as_mxnet
from flowmx.ndarray import interchange
from flowmx.ndarray.arithmetic import as_mask
from flowmx.ndarray.core import BaseArray, invoke
from flowmx.ndarray.creation import as_shape, has_bools
from flowmx.ndarray.creation import full as classic_full
from flowmx.numpy import calls, conversion, table
from flowmx.numpy.calls import call
from flowmx.numpy.conversion import arrays_of, default_complex, from_host, parse_dtype, to_np, wrap
from flowmx.ops.registry.dtypes import FLOAT32, DType, DTypeLike, element, elements
from flowmx.ops.registry.operators import lookup
from flowmx.semantics import default_float, semantics

__all__ = sorted(table.DEFINED_IN["creation"])


_FLOAT64 = np.dtype(np.float64)
_ARRAYS = BaseArray, list, tuple, np.ndarray
_LIKE_OPERATORS = {0: lookup("zeros_like").create(), 1: lookup("ones_like").create()}


def _context(ctx: object, device: object) -> devices.Context | None:
    place = ctx if device is None else device
    if place is None or isinstance(place, devices.Context):
        return place
    kind, _, number = str(place).rstrip(")").partition("(")
    return devices.Context(kind, int(number or 0))


def _refuse_order(order: str | None) -> None:
    if order not in (None, "C", "K", "A"):  # K and A mean the order of the source, always C
        raise NotImplementedError("arrays are stored in C order only, so order must be 'C'")


def array(object: object, dtype: object = None, ctx: object = None, *, copy: bool = True, device: object = None) -> Any:
    """Create an array with a copy of an array, nested lists or a number.

    The default dtype is that of the source if it is an array, else float32.
    """
    context = _context(ctx, device)
    kind = parse_dtype(dtype)
    if isinstance(object, BaseArray) or hasattr(object, "dtype"):
        return asarray(object, kind, device=context, copy=True)
    if kind is None and not semantics.get().dtype:
        kind = default_float()
    try:
        result = asarray(object, kind, device=context, copy=True)
        return as_mask(result) if dtype is None and has_bools(object) else result
    except ValueError as error:
        raise TypeError(str(error)) from error


def asarray(
    a: object,
    dtype: object = None,
    order: str | None = None,
    *,
    device: object = None,
    copy: bool | None = None,
    ctx: object = None,
) -> Any:
    """Convert a value to an array, by default without a copy if it is one, and in the dtype of its numbers.

    Raises:
        ValueError: ``copy=False``, but a copy is required.
    """
    _refuse_order(order)
    context, kind = _context(ctx, device), parse_dtype(dtype)
    if isinstance(a, BaseArray):
        moves = context is not None and context != a.context
        if copy is False and (moves or (kind is not None and kind != a.element_type)):
            raise ValueError("asarray: a different dtype or device requires a copy, but copy=False")
        result: Any = a if isinstance(a, conversion.array_class()) else a.as_np_ndarray()
        if kind is not None and kind != a.element_type:
            result = result.astype(kind)
        elif copy and not moves:
            result = result.copy()
        return result.as_in_context(context) if moves else result
    if copy is False and not isinstance(a, np.ndarray):
        if hasattr(a, "__dlpack__"):
            return from_dlpack(a, copy=False)
        raise ValueError("asarray: numbers and lists require a copy, but copy=False")
    if isinstance(a, np.ndarray):
        content = np.array(a, dtype=kind, order="C")
        return from_host(content, context)
    if arrays_of(a) if isinstance(a, (list, tuple)) else False:
        return _stack_nested(a, kind, context)
    if hasattr(a, "__dlpack__") and not isinstance(a, np.generic):
        return asarray(from_dlpack(a), kind, device=context)
    if isinstance(a, (bytes, bytearray, memoryview)) or hasattr(a, "__array__"):
        return from_host(np.array(a, dtype=kind, order="C"), context)
    return from_host(a, context) if kind is None else wrap(elements(a, kind), context)


def _stack_nested(parts: Any, kind: DType | None, context: devices.Context | None) -> Any:
    """Stack nested lists that contain arrays; the tape records it."""
    rows = [_stack_nested(part, kind, context) if isinstance(part, (list, tuple)) else part for part in parts]
    arrays = [row if isinstance(row, BaseArray) else from_host(row, context) for row in rows]
    array = call("stack", (arrays,), {})
    return array if kind is None or kind == array.element_type else array.astype(kind)


ascontiguousarray = asarray


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: object = None) -> Any:
    """Cast an array to a different dtype."""
    result = x.astype(dtype, copy=copy)
    return result if device is None else result.to_device(device)


def _fill(value: Any, shape: object, dtype: object, context: devices.Context | None, out: Any = None) -> Any:
    kind = dtype if isinstance(dtype, np.dtype) else parse_dtype(dtype)
    assert kind is not None
    if out is not None:
        out[...] = value
        return out
    if kind.kind == "c":
        return wrap(np.full(as_shape(shape), value, kind), context)
    return to_np(classic_full(shape, value, context, kind))


def zeros(shape: object, dtype: object = None, order: str = "C", ctx: object = None, *, device: object = None) -> Any:
    """Create an array of zeros."""
    if dtype is ctx is device is None and order == "C" and not semantics.get().dtype:
        result: Any = classic_full(shape, 0, None, FLOAT32)
        result.__class__ = conversion.array_class()
        return result
    return _constant(0, shape, dtype, order, ctx, device)


def ones(shape: object, dtype: object = None, order: str = "C", ctx: object = None, *, device: object = None) -> Any:
    """Create an array of ones."""
    return _constant(1, shape, dtype, order, ctx, device)


def _constant(value: int, shape: object, dtype: object, order: str, ctx: object, device: object) -> Any:
    """Create an array filled with an integer, float32 by default."""
    if order != "C":
        _refuse_order(order)
    kind = parse_dtype(dtype) if dtype is not None else _FLOAT64 if semantics.get().dtype else FLOAT32
    if kind is None or kind.kind == "c":
        return _fill(value, shape, kind or FLOAT32, _context(ctx, device))
    result: Any = classic_full(shape, value, _context(ctx, device) if ctx or device else None, kind)
    result.__class__ = conversion.array_class()
    return result


def empty(shape: object, dtype: object = None, order: str = "C", ctx: object = None, *, device: object = None) -> Any:
    """Create an uninitialized array (filled with zeros)."""
    return zeros(shape, dtype, order, ctx, device=device)


def full(
    shape: object, fill_value: object, dtype: object = None, order: str = "C", ctx: object = None, out: object = None,
    *, device: object = None,
) -> Any:  # fmt: skip
    """Create an array filled with one value, by default float32 for a number, as in MXNet."""
    _refuse_order(order)
    context = _context(ctx, device)
    if isinstance(fill_value, _ARRAYS):
        source = asarray(fill_value, parse_dtype(dtype), device=context)
        result = call("broadcast_to", (source, as_shape(shape)), {})
        return result if out is None else calls.write_into("full", result, out, None)
    return _fill(fill_value, shape, parse_dtype(dtype) or _dtype_of_number(fill_value), context, out)


def _dtype_of_number(value: object) -> DType:
    if isinstance(value, np.generic):
        return value.dtype
    if isinstance(value, bool) or (isinstance(value, int) and semantics.get().dtype):
        return np.asarray(value).dtype
    return default_complex() if isinstance(value, complex) else default_float()


def _like(
    value: object, a: object, dtype: object, ctx: object, device: object, shape: object = None, out: object = None
) -> Any:
    a = a if isinstance(a, BaseArray) else asarray(a)
    if dtype is ctx is device is shape is out is None and value in _LIKE_OPERATORS and a.element_type.kind in "fiu":
        return to_np(invoke(_LIKE_OPERATORS[value], [a], depth=4))
    context = _context(ctx, device) or a.context
    return _fill(value, a.dims if shape is None else shape, parse_dtype(dtype) or a.element_type, context, out)


def zeros_like(
    a: object,
    dtype: object = None,
    order: str = "C",
    ctx: object = None,
    out: object = None,
    *,
    device: object = None,
    shape: object = None,
) -> Any:
    """Create an array of zeros with the shape and dtype of another array."""
    _refuse_order(order)
    return _like(0, a, dtype, ctx, device, shape, out)


def ones_like(
    a: object,
    dtype: object = None,
    order: str = "C",
    ctx: object = None,
    out: object = None,
    *,
    device: object = None,
    shape: object = None,
) -> Any:
    """Create an array of ones with the shape and dtype of another array."""
    _refuse_order(order)
    return _like(1, a, dtype, ctx, device, shape, out)


def empty_like(
    prototype: object,
    dtype: object = None,
    order: str = "C",
    subok: bool = False,
    shape: object = None,
    *,
    device: object = None,
) -> Any:
    """Create an uninitialized array with the shape and dtype of another array."""
    _refuse_order(order)
    return _like(0, prototype, dtype, None, device, shape)


def full_like(
    a: Any, fill_value: Any, dtype: DTypeLike = None, order: str = "C", ctx: object = None, out: Any = None, *,
    device: object = None, shape: Any = None,
) -> Any:  # fmt: skip
    """Create an array filled with one value, with the shape and dtype of another array."""
    _refuse_order(order)
    if isinstance(fill_value, _ARRAYS):
        a = a if isinstance(a, BaseArray) else asarray(a)
        context = _context(ctx, device) or a.context
        return full(a.shape if shape is None else shape, fill_value, dtype or a.dtype, out=out, device=context)
    return _like(fill_value, a, dtype, ctx, device, shape, out)


def _create_on_host(
    function: str, args: Any, kwargs: Mapping[str, object], dtype: object, ctx: object, device: object, floating: bool
) -> Any:
    """Create an array with a NumPy function of numbers, in the default dtype of ``mx.np``."""
    args = [arg.item() if isinstance(arg, BaseArray) and arg.size == 1 else arg for arg in args]
    args = [arg.asnumpy() if isinstance(arg, BaseArray) else arg for arg in args]
    kind = parse_dtype(dtype)
    with raised_as_mxnet(ValueError, TypeError):
        content = getattr(np, function)(*args, **kwargs)
    if kind is None:
        kind = content.dtype
        if kind == np.float64 or (floating and kind.kind in "iu" and not semantics.get().dtype):
            kind = default_float()
        elif kind == np.complex128:
            kind = default_complex()
    return wrap(content.astype(kind), _context(ctx, device))


def arange(
    start: object,
    stop: object = None,
    step: object = 1,
    dtype: object = None,
    ctx: object = None,
    *,
    device: object = None,
) -> Any:
    """Return numbers from ``start`` (or 0) up to, excluding, ``stop``; float32 by default."""
    args = (
        (start,)
        if stop is None and step == 1
        else (0 if stop is None else start, start if stop is None else stop, step)
    )
    kind = parse_dtype(dtype)
    if kind is not None and kind.kind in "iu":
        if not all(isinstance(arg, (int, np.integer)) for arg in args):
            return _integer_range(*args, kind=kind, context=_context(ctx, device))
        exact = max(kind, np.dtype(np.int64), key=lambda dtype: dtype.itemsize)  # narrower dtypes wrap
        return _create_on_host("arange", args, {"dtype": exact}, kind, ctx, device, True)
    return _create_on_host("arange", args, {}, kind, ctx, device, True)


def _integer_range(start: Any, stop: Any = None, step: Any = 1, *, kind: DType, context: devices.Context | None) -> Any:
    """Return a range of integers for floating-point bounds: the same length, truncated start and step, as in MXNet."""
    start, stop, step = (float(bound) for bound in ((0, start, step) if stop is None else (start, stop, step)))
    count = max(0, math.ceil((stop - start) / step))
    return wrap((int(element(start, kind)) + int(element(step, kind)) * np.arange(count)).astype(kind), context)


def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: object = None,
    axis: int = 0, ctx: object = None, *, device: object = None,
) -> Any:  # fmt: skip
    """Return evenly spaced numbers, including ``stop`` if ``endpoint`` is true."""
    kwargs: dict[str, object] = {"num": num, "endpoint": endpoint, "axis": axis}
    kind = parse_dtype(dtype)
    if kind is not None and kind.kind == "c":
        kwargs["dtype"] = kind
    samples = _create_on_host("linspace", (start, stop), kwargs, kind, ctx, device, True)
    if not retstep:
        return samples
    return samples, (stop - start) / max(1, num - 1 if endpoint else num)


def logspace(
    start: object, stop: object, num: int = 50, endpoint: bool = True, base: float = 10.0, dtype: object = None,
    axis: int = 0, ctx: object = None,
) -> Any:  # fmt: skip
    """Return numbers with a constant ratio, from ``base ** start`` to ``base ** stop``."""
    kwargs = {"num": num, "endpoint": endpoint, "base": base, "axis": axis}
    return _create_on_host("logspace", (start, stop), kwargs, dtype, ctx, None, True)


def geomspace(
    start: object, stop: object, num: int = 50, endpoint: bool = True, dtype: object = None, ctx: object = None
) -> Any:
    """Return numbers with a constant ratio, from ``start`` to ``stop``."""
    return _create_on_host("geomspace", (start, stop), {"num": num, "endpoint": endpoint}, dtype, ctx, None, True)


def eye(
    N: int,
    M: int | None = None,
    /,
    k: int = 0,
    dtype: object = None,
    ctx: object = None,
    *,
    device: object = None,
    **_: object,
) -> Any:
    """Create a matrix with ones on a diagonal and zeros elsewhere."""
    return _create_on_host("eye", (N, M, k), {}, parse_dtype(dtype) or default_float(), ctx, device, True)


def identity(n: int, dtype: object = None, ctx: object = None) -> Any:
    """Create a square matrix with ones on the main diagonal and zeros elsewhere."""
    return eye(n, dtype=dtype, ctx=ctx)


def tri(N: int, M: int | None = None, k: int = 0, dtype: object = None, ctx: object = None) -> Any:
    """Create a matrix with ones at and below a diagonal and zeros elsewhere."""
    return _create_on_host("tri", (N, M, k), {}, parse_dtype(dtype) or default_float(), ctx, None, True)


def indices(dimensions: object, dtype: object = None, ctx: object = None) -> Any:
    """Return the indices of a grid, one array per axis; int32 by default, as in MXNet."""
    return _create_on_host("indices", (dimensions,), {}, dtype or np.int32, ctx, None, False)


def hanning(M: int, dtype: object = None, ctx: object = None) -> Any:
    """Return the Hanning window of ``M`` points."""
    return _create_on_host("hanning", (M,), {}, dtype, ctx, None, True)


def hamming(M: int, dtype: object = None, ctx: object = None) -> Any:
    """Return the Hamming window of ``M`` points."""
    return _create_on_host("hamming", (M,), {}, dtype, ctx, None, True)


def blackman(M: int, dtype: object = None, ctx: object = None) -> Any:
    """Return the Blackman window of ``M`` points."""
    return _create_on_host("blackman", (M,), {}, dtype, ctx, None, True)


def bartlett(M: int, dtype: object = None, ctx: object = None) -> Any:
    """Return the Bartlett window of ``M`` points."""
    return _create_on_host("bartlett", (M,), {}, dtype, ctx, None, True)


def kaiser(M: int, beta: float, dtype: object = None, ctx: object = None) -> Any:
    """Return the Kaiser window of ``M`` points."""
    return _create_on_host("kaiser", (M, beta), {}, dtype, ctx, None, True)


def tril_indices(n: int, k: int = 0, m: int | None = None, ctx: object = None) -> Any:
    """Return the indices of the elements at and below a diagonal, as a tuple of two arrays."""
    return tuple(wrap(index, _context(ctx, None)) for index in np.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None, ctx: object = None) -> Any:
    """Return the indices of the elements at and above a diagonal, as a tuple of two arrays."""
    return tuple(wrap(index, _context(ctx, None)) for index in np.triu_indices(n, k, m))


def frombuffer(buffer: Any, dtype: object = None, count: int = -1, offset: int = 0, ctx: Any = None) -> Any:
    """Create an array with a copy of the numbers in a buffer."""
    kind = parse_dtype(dtype) or default_float()
    return wrap(np.frombuffer(buffer, kind, count, offset).copy(), ctx)


def from_dlpack(x: object, /, *, device: object = None, copy: bool | None = None) -> Any:
    """Create an array from another library's array by DLPack. It shares memory that is on the host.

    Raises:
        BufferError: the memory is on another device.
    """
    result = interchange.from_dlpack(x)
    result = conversion.to_np(result if result is not x else result.copy())
    context = _context(None, device)
    if copy and not isinstance(x, BaseArray):
        result = result.copy()
    return result if context is None or context == result.context else result.as_in_context(context)


def genfromtxt(*args: Any, **kwargs: Any) -> Any:
    """Read numbers from a text file, as :func:`numpy.genfromtxt`."""
    context = kwargs.pop("ctx", None)
    return wrap(np.genfromtxt(*args, **kwargs), context)
