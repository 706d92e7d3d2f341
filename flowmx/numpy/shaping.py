"""Functions of ``mx.np`` whose arguments or results differ from NumPy's: MXNet's, or the array API standard's."""

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

__all__ = sorted(table.WRITTEN["shaping"])

_sort, _argsort, _clip = map(calls.Calls, ("sort", "argsort", "clip"))


def reshape(a: Any, /, shape: Any = None, order: str = "C", *, newshape: Any = None, copy: bool | None = None) -> Any:
    """The same content with another shape; shares memory where that is possible. -1 stands for one length.

    Raises:
        ValueError: the number of elements differs, or ``copy=False`` where memory can not be shared.
    """
    if order not in ("C", "A", "K"):
        raise NotImplementedError("reshape: arrays are kept in C order alone, so order must be 'C'")
    if not isinstance(a, BaseArray):
        a = conversion.from_host(a)
    wanted = _resolved(a._shape, _lengths(newshape if shape is None else shape))
    if copy:
        a = a._call("_copy")
    elif copy is False and not views.is_contiguous(a):
        raise ValueError("reshape: this array's memory does not lie together, so it must be copied")
    return conversion.face(views.reshaped(a, wanted))


@lru_cache(4096)
@raised_as_mxnet(ValueError)
def _resolved(shape: Shape, wanted: int | Shape) -> Shape:
    """A new shape with -1 resolved, by NumPy's own rules and with its errors."""
    return np.broadcast_to(np.zeros((), bool), shape).reshape(wanted).shape


def _lengths(shape: Any) -> Any:
    if shape.__class__ is int:
        return shape
    return int(shape) if isinstance(shape, (int, np.integer)) else tuple(int(each) for each in shape)


def sort(
    a: Any, axis: int | None = -1, kind: Any = None, order: Any = None, *, descending: bool = False, stable: bool = True
) -> Any:
    """A sorted copy, along an axis, or flat where that is None."""
    del kind, order, stable  # equal numbers can not be told apart
    made = _sort((a, axis), {})
    return calls.call("flip", (made, 0 if axis is None else axis), {}) if descending and made.ndim else made


def argsort(
    a: Any, axis: int | None = -1, kind: Any = None, order: Any = None, *, descending: bool = False, stable: bool = True
) -> Any:
    """The positions that sort an array, along an axis, or flat where that is None; int64."""
    del kind, order
    options = {"kind": "stable"} if stable else {}
    if not descending:
        return _argsort((a, axis), options)
    # Equal elements keep their order: what is sorted is the array from its end.
    along = 0 if axis is None else axis
    turned = calls.call("flip", (a if axis is not None else calls.call("ravel", (a,), {}), along), {})
    found = calls.call("flip", (calls.call("argsort", (turned, along), options), along), {})
    return found.shape[along] - 1 - found


def clip(a: Any, min: Any = None, max: Any = None, out: Any = None, *, a_min: Any = None, a_max: Any = None) -> Any:
    """The elements, those below ``min`` made that, and those above ``max`` that."""
    bounds = (a_min if min is None else min, a_max if max is None else max)
    return _clip((a, *bounds), {"out": out})


def meshgrid(*xi: Any, indexing: str = "xy", copy: bool = True, sparse: bool = False) -> Any:
    """Coordinate matrices of coordinate vectors, in a list."""
    return list(calls.call("meshgrid", xi, {"indexing": indexing, "sparse": sparse})) if xi else []


def broadcast_arrays(*args: Any) -> Any:
    """Arrays in the shape that they broadcast to, in a list."""
    return list(calls.call("broadcast_arrays", args, {})) if args else []


def msort(a: Any) -> Any:
    """A sorted copy, along the first axis."""
    return calls.call("sort", (a,), {"axis": 0})


def shares_memory(a: Any, b: Any, max_work: int | None = None) -> bool:
    """Tell whether two arrays have a byte of memory in common."""
    if not (isinstance(a, BaseArray) and isinstance(b, BaseArray)) or a._storage is not b._storage:
        return False
    engine.wait_variable(a._storage)
    return bool(np.shares_memory(a._read(), b._read()))


may_share_memory = shares_memory


def set_printoptions(precision: int | None = None, threshold: int | None = None, **others: Any) -> None:
    """Set how arrays are shown, as :func:`numpy.set_printoptions`."""
    np.set_printoptions(precision=precision, threshold=threshold, **others)
