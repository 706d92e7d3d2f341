"""Functions of ``mx.np`` that follow MXNet or the array API standard where those differ from NumPy."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from flowmx.engine.runtime import engine
from flowmx.errors import raised_as_mxnet
from flowmx.ndarray import views
from flowmx.ndarray.core import BaseArray
from flowmx.numpy import calls, conversion, table
from flowmx.ops.registry.operators import Shape

__all__ = sorted(table.DEFINED_IN["shaping"])

_sort, _argsort, _clip = map(calls.Calls, ("sort", "argsort", "clip"))


def reshape(a: Any, /, shape: Any = None, order: str = "C", *, newshape: Any = None, copy: bool | None = None) -> Any:
    """Return an array with the same content and a different shape. It shares memory if possible; -1 infers one length.

    Raises:
        ValueError: the number of elements differs, or ``copy=False`` and memory cannot be shared.
    """
    if order not in ("C", "A", "K"):
        raise NotImplementedError("reshape: arrays are stored in C order only, so order must be 'C'")
    if not isinstance(a, BaseArray):
        a = conversion.from_host(a)
    lengths = _resolve_shape(a.dims, _as_lengths(newshape if shape is None else shape))
    if copy:
        a = a._call("_copy")
    elif copy is False and not views.is_contiguous(a):
        raise ValueError("reshape: this array is not contiguous, so it must be copied")
    return conversion.to_np(views.reshape_view(a, lengths))


@lru_cache(4096)
@raised_as_mxnet(ValueError)
def _resolve_shape(shape: Shape, lengths: int | Shape) -> Shape:
    """Resolve -1 in a new shape, with NumPy's rules and errors."""
    return np.broadcast_to(np.zeros((), bool), shape).reshape(lengths).shape


def _as_lengths(shape: Any) -> Any:
    if shape.__class__ is int:
        return shape
    return int(shape) if isinstance(shape, (int, np.integer)) else tuple(int(size) for size in shape)


def sort(
    a: object,
    axis: int | None = -1,
    kind: object = None,
    order: object = None,
    *,
    descending: bool = False,
    stable: bool = True,
) -> Any:
    """Return a sorted copy, along an axis, or of the flattened array if ``axis`` is None."""
    del kind, order, stable  # equal numbers are indistinguishable
    ascending = _sort((a, axis), {})
    return (
        calls.call("flip", (ascending, 0 if axis is None else axis), {}) if descending and ascending.ndim else ascending
    )


def argsort(
    a: object,
    axis: int | None = -1,
    kind: object = None,
    order: object = None,
    *,
    descending: bool = False,
    stable: bool = True,
) -> Any:
    """Return the int64 positions that sort an array along an axis, or the flattened array if ``axis`` is None."""
    del kind, order
    options = {"kind": "stable"} if stable else {}
    if not descending:
        return _argsort((a, axis), options)
    # Sort the reversed array, so that equal elements keep their order.
    along = 0 if axis is None else axis
    flipped = calls.call("flip", (a if axis is not None else calls.call("ravel", (a,), {}), along), {})
    positions = calls.call("flip", (calls.call("argsort", (flipped, along), options), along), {})
    return positions.shape[along] - 1 - positions


def clip(
    a: object, min: object = None, max: object = None, out: object = None, *, a_min: object = None, a_max: object = None
) -> Any:
    """Return the elements limited to the range from ``min`` to ``max``."""
    bounds = (a_min if min is None else min, a_max if max is None else max)
    return _clip((a, *bounds), {"out": out})


def meshgrid(*xi: object, indexing: str = "xy", copy: bool = True, sparse: bool = False) -> Any:
    """Return a list of the coordinate matrices of coordinate vectors."""
    return list(calls.call("meshgrid", xi, {"indexing": indexing, "sparse": sparse})) if xi else []


def broadcast_arrays(*args: object) -> Any:
    """Return a list of the arrays, broadcast to their common shape."""
    return list(calls.call("broadcast_arrays", args, {})) if args else []


def msort(a: object) -> Any:
    """Return a copy sorted along the first axis."""
    return calls.call("sort", (a,), {"axis": 0})


def shares_memory(a: object, b: object, max_work: int | None = None) -> bool:
    """Return whether two arrays have a byte of memory in common."""
    if not (isinstance(a, BaseArray) and isinstance(b, BaseArray)) or a.storage is not b.storage:
        return False
    engine.wait_variable(a.storage)
    return bool(np.shares_memory(a.raw(), b.raw()))


may_share_memory = shares_memory


def set_printoptions(precision: int | None = None, threshold: int | None = None, **others: Any) -> None:
    """Set how arrays are printed, as :func:`numpy.set_printoptions`."""
    np.set_printoptions(precision=precision, threshold=threshold, **others)
