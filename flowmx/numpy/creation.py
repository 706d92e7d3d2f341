"""Functions of ``mx.np`` that make arrays.

What is given no dtype is float32, as in MXNet, or follows NumPy in the mode of ``set_np(dtype=True)``.
:func:`asarray` and the functions whose names end in ``_like`` keep dtypes, as the array API standard has it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx import devices
from flowmx.errors import raised_as_mxnet
from flowmx.ndarray import creation as classic_creation
from flowmx.ndarray.array import as_shape
from flowmx.ndarray.array import full as classic_full
from flowmx.ndarray.core import BaseArray, invoke
from flowmx.numpy import calls, conversion, table
from flowmx.numpy.calls import call
from flowmx.numpy.conversion import arrays_of, default_complex, face, from_host, given_dtype, wrap
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import lookup
from flowmx.semantics import default_float, semantics

__all__ = sorted(table.WRITTEN["creation"])


_FLOAT64 = np.dtype(np.float64)
_ARRAYS = BaseArray, list, tuple, np.ndarray
_OF_LIKE = {0: lookup("zeros_like").create(), 1: lookup("ones_like").create()}


def _context(ctx: Any, device: Any) -> devices.Context | None:
    given = ctx if device is None else device
    if given is None or isinstance(given, devices.Context):
        return given
    kind, _, number = str(given).rstrip(")").partition("(")
    return devices.Context(kind, int(number or 0))


def _refuse_order(order: str | None) -> None:
    if order not in (None, "C", "K", "A"):  # as the content lies, which is in C order
        raise NotImplementedError("arrays are kept in C order alone, so order must be 'C'")


def array(object: Any, dtype: Any = None, ctx: Any = None, *, copy: bool = True, device: Any = None) -> Any:
    """An array with a copy of the content of another one, of nested lists, or a number.

    The default dtype is that of the source where it is an array, else float32.
    """
    context = _context(ctx, device)
    kind = given_dtype(dtype)
    if isinstance(object, BaseArray) or hasattr(object, "dtype"):
        return asarray(object, kind, device=context, copy=True)
    if kind is None and not semantics.get().dtype:
        kind = default_float()
    try:
        return asarray(object, kind, device=context, copy=True)
    except ValueError as error:
        raise TypeError(str(error)) from error


def asarray(
    a: Any,
    dtype: Any = None,
    order: str | None = None,
    *,
    device: Any = None,
    copy: bool | None = None,
    ctx: Any = None,
) -> Any:
    """An array of what is given: itself where it is one already, in the dtype of its numbers.

    Raises:
        ValueError: ``copy=False``, and it must be copied.
    """
    _refuse_order(order)
    context, kind = _context(ctx, device), given_dtype(dtype)
    if isinstance(a, BaseArray):
        moved = context is not None and context != a.context
        if copy is False and (moved or (kind is not None and kind != a._dtype)):
            raise ValueError("asarray: another dtype or device needs a copy, which copy=False forbids")
        made: Any = a if isinstance(a, conversion.array_class()) else a.as_np_ndarray()  # type: ignore[attr-defined]
        if kind is not None and kind != a._dtype:
            made = made.astype(kind)
        elif copy and not moved:
            made = made.copy()
        return made.as_in_context(context) if moved else made
    if copy is False and not isinstance(a, np.ndarray):
        if hasattr(a, "__dlpack__"):
            return from_dlpack(a, copy=False)
        raise ValueError("asarray: numbers and lists need a copy, which copy=False forbids")
    if isinstance(a, np.ndarray):
        content = np.array(a, dtype=kind, order="C")
        return from_host(content, context)
    if arrays_of(a) if isinstance(a, (list, tuple)) else False:
        return _joined(a, kind, context)
    if hasattr(a, "__dlpack__") and not isinstance(a, np.generic):
        return asarray(from_dlpack(a), kind, device=context)
    if isinstance(a, (bytes, bytearray, memoryview)) or hasattr(a, "__array__"):
        return from_host(np.array(a, dtype=kind, order="C"), context)
    return from_host(a, context) if kind is None else wrap(np.array(a, dtype=kind, order="C"), context)


def _joined(parts: Any, kind: DType | None, context: devices.Context | None) -> Any:
    """An array of nested lists that hold arrays: their stack, which the tape knows of."""
    rows = [_joined(each, kind, context) if isinstance(each, (list, tuple)) else each for each in parts]
    made = [each if isinstance(each, BaseArray) else from_host(each, context) for each in rows]
    stacked = call("stack", (made,), {})
    return stacked if kind is None or kind == stacked._dtype else stacked.astype(kind)


ascontiguousarray = asarray


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """The content of an array as another element type."""
    made = x.astype(dtype, copy=copy)
    return made if device is None else made.to_device(device)


def _filled(value: Any, shape: Any, dtype: Any, context: devices.Context | None, out: Any = None) -> Any:
    kind = dtype if isinstance(dtype, np.dtype) else given_dtype(dtype)
    assert kind is not None
    if out is not None:
        out[...] = value
        return out
    if kind.kind == "c":
        return wrap(np.full(as_shape(shape), value, kind), context)
    return face(classic_full(shape, value, context, kind))


def zeros(shape: Any, dtype: Any = None, order: str = "C", ctx: Any = None, *, device: Any = None) -> Any:
    """An array of zeros."""
    if dtype is ctx is device is None and order == "C" and not semantics.get().dtype:
        made: Any = classic_full(shape, 0, None, FLOAT32)
        made.__class__ = conversion.array_class()
        return made
    return _alike(0, shape, dtype, order, ctx, device)


def ones(shape: Any, dtype: Any = None, order: str = "C", ctx: Any = None, *, device: Any = None) -> Any:
    """An array of ones."""
    return _alike(1, shape, dtype, order, ctx, device)


def _alike(value: int, shape: Any, dtype: Any, order: str, ctx: Any, device: Any) -> Any:
    """An array of one whole number everywhere, float32 by default."""
    if order != "C":
        _refuse_order(order)
    kind = given_dtype(dtype) if dtype is not None else _FLOAT64 if semantics.get().dtype else FLOAT32
    if kind is None or kind.kind == "c":
        return _filled(value, shape, kind or FLOAT32, _context(ctx, device))
    made: Any = classic_full(shape, value, _context(ctx, device) if ctx or device else None, kind)
    made.__class__ = conversion.array_class()
    return made


def empty(shape: Any, dtype: Any = None, order: str = "C", ctx: Any = None, *, device: Any = None) -> Any:
    """An array whose content is not set (it is zeros here)."""
    return zeros(shape, dtype, order, ctx, device=device)


def full(
    shape: Any, fill_value: Any, dtype: Any = None, order: str = "C", ctx: Any = None, out: Any = None, *,
    device: Any = None,
) -> Any:  # fmt: skip
    """An array that holds one value everywhere; a number that was given no dtype is float32, as in MXNet."""
    _refuse_order(order)
    context = _context(ctx, device)
    if isinstance(fill_value, _ARRAYS):
        source = asarray(fill_value, given_dtype(dtype), device=context)
        made = call("broadcast_to", (source, as_shape(shape)), {})
        return made if out is None else calls.into("full", made, out, None)
    return _filled(fill_value, shape, given_dtype(dtype) or _dtype_of_number(fill_value), context, out)


def _dtype_of_number(value: Any) -> DType:
    if isinstance(value, np.generic):
        return value.dtype
    if isinstance(value, bool) or (isinstance(value, int) and semantics.get().dtype):
        return np.asarray(value).dtype
    return default_complex() if isinstance(value, complex) else default_float()


def _like(value: Any, a: Any, dtype: Any, ctx: Any, device: Any, shape: Any = None, out: Any = None) -> Any:
    a = a if isinstance(a, BaseArray) else asarray(a)
    if dtype is ctx is device is shape is out is None and value in _OF_LIKE and a._dtype.kind in "fiu":
        return face(invoke(_OF_LIKE[value], [a], depth=4))
    context = _context(ctx, device) or a.context
    return _filled(value, a._shape if shape is None else shape, given_dtype(dtype) or a._dtype, context, out)


def zeros_like(
    a: Any,
    dtype: Any = None,
    order: str = "C",
    ctx: Any = None,
    out: Any = None,
    *,
    device: Any = None,
    shape: Any = None,
) -> Any:
    """Zeros in the shape and dtype of another array."""
    _refuse_order(order)
    return _like(0, a, dtype, ctx, device, shape, out)


def ones_like(
    a: Any,
    dtype: Any = None,
    order: str = "C",
    ctx: Any = None,
    out: Any = None,
    *,
    device: Any = None,
    shape: Any = None,
) -> Any:
    """Ones in the shape and dtype of another array."""
    _refuse_order(order)
    return _like(1, a, dtype, ctx, device, shape, out)


def empty_like(
    prototype: Any, dtype: Any = None, order: str = "C", subok: bool = False, shape: Any = None, *, device: Any = None
) -> Any:
    """An array in the shape and dtype of another one, whose content is not set."""
    _refuse_order(order)
    return _like(0, prototype, dtype, None, device, shape)


def full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: str = "C", ctx: Any = None, out: Any = None, *,
    device: Any = None, shape: Any = None,
) -> Any:  # fmt: skip
    """One value everywhere, in the shape and dtype of another array."""
    _refuse_order(order)
    if isinstance(fill_value, _ARRAYS):
        a = a if isinstance(a, BaseArray) else asarray(a)
        context = _context(ctx, device) or a.context
        return full(a.shape if shape is None else shape, fill_value, dtype or a.dtype, out=out, device=context)
    return _like(fill_value, a, dtype, ctx, device, shape, out)


def _made(function: str, args: Any, kwargs: dict[str, Any], dtype: Any, ctx: Any, device: Any, floating: bool) -> Any:
    """The result of one of NumPy's functions that make arrays from numbers, in the dtype by ``mx.np``'s rules."""
    args = [each.item() if isinstance(each, BaseArray) and each.size == 1 else each for each in args]  # type: ignore[attr-defined]
    args = [each.asnumpy() if isinstance(each, BaseArray) else each for each in args]  # type: ignore[attr-defined]
    kind = given_dtype(dtype)
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
    start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, ctx: Any = None, *, device: Any = None
) -> Any:
    """Numbers from ``start`` (or 0) to ``stop``, which is not among them; float32 if no dtype is given."""
    args = (
        (start,)
        if stop is None and step == 1
        else (0 if stop is None else start, start if stop is None else stop, step)
    )
    kind = given_dtype(dtype)
    if kind is not None and kind.kind in "iu" and all(isinstance(each, (int, np.integer)) for each in args):
        return _made("arange", args, {"dtype": kind}, kind, ctx, device, True)
    return _made("arange", args, {}, kind, ctx, device, True)


def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None,
    axis: int = 0, ctx: Any = None, *, device: Any = None,
) -> Any:  # fmt: skip
    """Numbers at equal distances, ``stop`` among them where ``endpoint`` is true."""
    kwargs: dict[str, Any] = {"num": num, "endpoint": endpoint, "axis": axis}
    kind = given_dtype(dtype)
    if kind is not None and kind.kind in "iuc":
        kwargs["dtype"] = kind
    made = _made("linspace", (start, stop), kwargs, kind, ctx, device, True)
    if not retstep:
        return made
    return made, (stop - start) / max(1, num - 1 if endpoint else num)


def logspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: float = 10.0, dtype: Any = None, axis: int = 0,
    ctx: Any = None,
) -> Any:  # fmt: skip
    """Numbers at equal ratios, from ``base ** start`` to ``base ** stop``."""
    kwargs = {"num": num, "endpoint": endpoint, "base": base, "axis": axis}
    return _made("logspace", (start, stop), kwargs, dtype, ctx, None, True)


def geomspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, ctx: Any = None) -> Any:
    """Numbers at equal ratios, from ``start`` to ``stop``."""
    return _made("geomspace", (start, stop), {"num": num, "endpoint": endpoint}, dtype, ctx, None, True)


def eye(
    N: int, M: int | None = None, /, k: int = 0, dtype: Any = None, ctx: Any = None, *, device: Any = None, **_: Any
) -> Any:
    """Ones on one of the diagonals of a matrix, zeros elsewhere."""
    return _made("eye", (N, M, k), {}, given_dtype(dtype) or default_float(), ctx, device, True)


def identity(n: int, dtype: Any = None, ctx: Any = None) -> Any:
    """A square matrix with ones on the main diagonal, zeros elsewhere."""
    return eye(n, dtype=dtype, ctx=ctx)


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None, ctx: Any = None) -> Any:
    """Ones at and below one of the diagonals of a matrix, zeros elsewhere."""
    return _made("tri", (N, M, k), {}, given_dtype(dtype) or default_float(), ctx, None, True)


def indices(dimensions: Any, dtype: Any = None, ctx: Any = None) -> Any:
    """The positions of the elements of an array, an array for each axis; int32 by default, as in MXNet."""
    return _made("indices", (dimensions,), {}, dtype or np.int32, ctx, None, False)


def hanning(M: int, dtype: Any = None, ctx: Any = None) -> Any:
    """The Hanning window of ``M`` points."""
    return _made("hanning", (M,), {}, dtype, ctx, None, True)


def hamming(M: int, dtype: Any = None, ctx: Any = None) -> Any:
    """The Hamming window of ``M`` points."""
    return _made("hamming", (M,), {}, dtype, ctx, None, True)


def blackman(M: int, dtype: Any = None, ctx: Any = None) -> Any:
    """The Blackman window of ``M`` points."""
    return _made("blackman", (M,), {}, dtype, ctx, None, True)


def bartlett(M: int, dtype: Any = None, ctx: Any = None) -> Any:
    """The Bartlett window of ``M`` points."""
    return _made("bartlett", (M,), {}, dtype, ctx, None, True)


def kaiser(M: int, beta: float, dtype: Any = None, ctx: Any = None) -> Any:
    """The Kaiser window of ``M`` points."""
    return _made("kaiser", (M, beta), {}, dtype, ctx, None, True)


def tril_indices(n: int, k: int = 0, m: int | None = None, ctx: Any = None) -> Any:
    """The positions of the elements at and below a diagonal, as a tuple of two arrays."""
    return tuple(wrap(each, _context(ctx, None)) for each in np.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None, ctx: Any = None) -> Any:
    """The positions of the elements at and above a diagonal, as a tuple of two arrays."""
    return tuple(wrap(each, _context(ctx, None)) for each in np.triu_indices(n, k, m))


def frombuffer(buffer: Any, dtype: Any = None, count: int = -1, offset: int = 0, ctx: Any = None) -> Any:
    """An array with a copy of the numbers in a buffer."""
    kind = given_dtype(dtype) or default_float()
    return wrap(np.frombuffer(buffer, kind, count, offset).copy(), ctx)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    """An array of what another library gives by DLPack; it shares the memory where that is the host's.

    Raises:
        BufferError: the memory is another device's.
    """
    made = classic_creation.from_dlpack(x)
    made = conversion.face(made if made is not x else made.copy())
    context = _context(None, device)
    if copy and not isinstance(x, BaseArray):
        made = made.copy()
    return made if context is None or context == made.context else made.as_in_context(context)


def genfromtxt(*args: Any, **kwargs: Any) -> Any:
    """Read numbers from a text file, as :func:`numpy.genfromtxt`."""
    context = kwargs.pop("ctx", None)
    return wrap(np.genfromtxt(*args, **kwargs), context)
