"""Create arrays: from data, filled with a number, as a range of numbers, or uninitialized."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

import numpy as np

from flowmx import devices
from flowmx.devices import Context
from flowmx.errors import ShapeError
from flowmx.late_binding import late
from flowmx.ndarray import core, recorded_writes, recording
from flowmx.ndarray.arithmetic import as_mask
from flowmx.ndarray.copies import copy_into
from flowmx.ndarray.core import BaseArray, allocate, invoke
from flowmx.ops.registry.dtypes import FLOAT32, DType, DTypeLike, as_dtype, element, elements
from flowmx.ops.registry.operators import Shape, lookup
from flowmx.ops.sparse.shapes import SparseShape

if TYPE_CHECKING:
    from flowmx.ndarray.array import NDArray

__all__ = ["arange", "array", "empty", "eye", "full", "linspace", "ones", "zeros"]

_SMALL = 1 << 16
"""Arrays below this many bytes are filled immediately, by the calling thread."""
_FILL_NAMES = {0: "_zeros", 1: "_ones"}
_NUMBERS = (int, float, np.generic)


def array(source_array: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """Create an array from a NumPy array, nested lists, a number, or another array.

    The default dtype is that of the source for flowmx arrays, else float32, as in MXNet.
    """
    if _is_sparse(source_array):
        return cast("NDArray", late("ndarray.sparse.creation").array(source_array, ctx, dtype))
    if isinstance(source_array, BaseArray):
        kind = source_array.element_type if dtype is None else as_dtype(dtype)
        core.warn_of_copy(source_array.storage.device, devices.get(devices.cpu()), "array()", depth=2)
        source_array = source_array.asnumpy()
    elif dtype is None:
        kind = as_dtype(None)
    else:
        kind = as_dtype(dtype)
    try:
        if dtype is None or kind is FLOAT32:
            data = np.array(np.asarray(source_array) if dtype is None else source_array, dtype=kind, order="C")
        else:
            data = elements(source_array, kind)
    except (ValueError, TypeError, OverflowError) as error:
        raise _conversion_error(source_array, kind, error) from None
    device = on_context(ctx)
    if not device.is_asynchronous:
        result = cast("NDArray", allocate(device, data.shape, kind, data))
    else:
        result = cast("NDArray", allocate(device, data.shape, kind))
        copy_into(allocate(devices.get(devices.cpu()), data.shape, kind, data), result)
    return as_mask(result) if dtype is None and has_bools(source_array) else result


def has_bools(source: Any) -> bool:
    """Return whether an array, or nested lists, are made of bools."""
    while isinstance(source, (list, tuple)) and source:
        source = source[0]
    return isinstance(source, bool) or getattr(getattr(source, "dtype", None), "kind", "") == "b"


def _is_sparse(source: object) -> bool:
    """Return whether something is a sparse array of flowmx or SciPy."""
    if isinstance(source, BaseArray):
        return isinstance(source.dims, SparseShape)
    scipy = sys.modules.get("scipy.sparse")
    return scipy is not None and bool(scipy.issparse(source))


def _conversion_error(source: object, kind: DType, error: Exception) -> Exception:
    """Build the error for a source that cannot be converted."""
    text = " ".join(repr(source).split())
    text = text if len(text) <= 60 else f"{text[:57]}..."
    reason = "its rows have different lengths" if "inhomogeneous" in str(error) else str(error)
    return type(error)(f"array: cannot convert {type(source).__name__} {text} to {kind.name}: {reason}")


def zeros(
    shape: int | Sequence[int],
    ctx: Context | None = None,
    dtype: object = None,
    stype: str | None = None,
    *,
    out: NDArray | None = None,
) -> NDArray:
    """Create an array of zeros (float32 by default).

    Args:
        shape: the length of each axis.
        ctx: the device (default: the current one).
        dtype: the element type.
        stype: the storage type: ``"default"``, ``"csr"`` or ``"row_sparse"``.
        out: an array to fill instead of creating one.

    Raises:
        ShapeError: the shape is invalid.
        ValueError: unknown storage type.
    """
    if stype not in (None, "default"):
        array = cast("NDArray", late("ndarray.sparse.creation").zeros(stype, shape, ctx, dtype))
        return array if out is None else array.copyto(out)
    return full(shape, 0, ctx, dtype, out)


def ones(
    shape: int | Sequence[int], ctx: Context | None = None, dtype: object = None, *, out: NDArray | None = None
) -> NDArray:
    """Create an array of ones (float32 by default), with the arguments of :func:`zeros`."""
    return full(shape, 1, ctx, dtype, out)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: bool | None = None,
    ctx: Context | None = None,
    dtype: object = "float32",
) -> NDArray:
    """Create numbers from ``start`` to ``stop`` (excluded) in steps of ``step``; repeat each number ``repeat`` times.

    A single argument is ``stop``; ``start`` is then 0. ``infer_range`` is ignored, as in MXNet.
    """
    return _create("_arange", ctx, start=start, stop=stop, step=step, repeat=repeat, dtype=dtype)


def linspace(
    start: float,
    stop: float,
    num: int,
    endpoint: bool = True,
    ctx: Context | None = None,
    dtype: object = "float32",
) -> NDArray:
    """Create ``num`` evenly spaced numbers from ``start`` to ``stop`` (excluded if ``endpoint`` is False)."""
    return _create("_linspace", ctx, start=start, stop=stop, num=num, endpoint=endpoint, dtype=dtype)


def eye(
    N: int, M: int = 0, k: int = 0, ctx: Context | None = None, dtype: DTypeLike = None, *, out: NDArray | None = None
) -> NDArray:
    """Create a matrix of N rows and M columns (default: N) with ones on the k-th diagonal, zeros elsewhere."""
    return _create("_eye", ctx, out, N=N, M=M, k=k, dtype=as_dtype(dtype))


def _create(name: str, ctx: Context | None, out: NDArray | None = None, **parameters: object) -> NDArray:
    return cast("NDArray", invoke(lookup(name).create(**parameters), [], out, on_context(ctx), 3))


def as_shape(shape: Any) -> Shape:
    """Convert a number, a sequence or a NumPy array to a shape.

    Raises:
        ShapeError: a length is negative or not an int.
    """
    if isinstance(shape, np.ndarray):
        shape = shape.tolist()
    try:
        is_number = not isinstance(shape, (tuple, list)) and isinstance(shape, SupportsIndex)
        lengths = (int(shape),) if is_number else tuple([int(n) for n in shape])
    except (TypeError, ValueError):
        raise ShapeError(f"shape is {shape!r}, expected ints") from None
    if min(lengths, default=0) < 0:
        raise ShapeError(f"shape is {lengths}, expected lengths from 0")
    return lengths


def zeros_of(stype: str, shape: Shape, ctx: Context | None, dtype: object) -> NDArray:
    """Create zeros of a storage type."""
    if stype == "default":
        return full(shape, 0, ctx, dtype)
    return cast("NDArray", late("ndarray.sparse.creation").zeros(stype, shape, ctx, dtype))


def on_context(ctx: Context | None) -> devices.Device:
    """Return the device of a context (None: the current one)."""
    return devices.get(devices.current_context() if ctx is None else Context(ctx))


def empty(shape: object, ctx: Context | None = None, dtype: Any = None, stype: str | None = None) -> NDArray:
    """Create an array with undefined content; sparse arrays contain zeros."""
    if stype not in (None, "default"):
        return cast("NDArray", late("ndarray.sparse.creation").empty(stype, shape, ctx, dtype))
    device, dtype = on_context(ctx), as_dtype(dtype)
    shape = as_shape(shape)
    return cast("NDArray", allocate(device, shape, dtype, device.allocate(shape, dtype)))


def _fill(target: BaseArray, value: object) -> None:
    target.raw_for_writing()[...] = value


def _fill_all(targets: Iterable[BaseArray]) -> None:
    for target in targets:
        _fill(target, 0)


def unfilled(shape: Any, ctx: Context | None, dtype: DTypeLike) -> NDArray:
    """Create an array for :func:`fill_with_zeros`."""
    return cast("NDArray", allocate(on_context(ctx), as_shape(shape), as_dtype(dtype)))


def fill_with_zeros(arrays: Iterable[NDArray]) -> None:
    """Fill new arrays with zeros, all small arrays of a device in one operation."""
    small: dict[devices.Device, list[NDArray]] = {}
    for target in arrays:
        size, device = target.size * target.element_type.itemsize, target.storage.device
        if size < _SMALL:
            small.setdefault(device, []).append(target)
        else:
            core.push_on(device, _fill, (target, 0), (), (target.storage,), _FILL_NAMES[0], False, size, 3)
    for device, group in small.items():
        size = sum(target.size * target.element_type.itemsize for target in group)
        storages = tuple([target.storage for target in group])
        core.push_on(device, _fill_all, (group,), (), storages, _FILL_NAMES[0], size < _SMALL, size, 3)


def full(shape: Any, val: object, ctx: Context | None = None, dtype: Any = None, out: NDArray | None = None) -> NDArray:
    """Create an array filled with one number."""
    device, kind, shape = on_context(ctx), as_dtype(dtype), as_shape(shape)
    result = cast("NDArray", allocate(device, shape, kind)) if out is None else out
    if out is not None and recording.state.get().recording:
        recorded_writes.record_constant(out, "full")
    size = result.size * kind.itemsize
    name = _FILL_NAMES.get(val, "full") if val.__class__ is int else "full"
    if kind.kind in "iu" and isinstance(val, _NUMBERS):
        val = element(val, kind)
    core.push_on(device, _fill, (result, val), (), (result.storage,), name, size < _SMALL, size, 3)
    return result


def untouched(shape: Shape, dtype: DTypeLike) -> NDArray:
    """Create zeros on the CPU whose memory is allocated at the first write."""
    kind = as_dtype(dtype)
    return cast("NDArray", allocate(devices.get(devices.cpu()), shape, kind, np.zeros(shape, kind)))
