"""Indexing: views that share storage, advanced indexing, assignment, and MXNet's reshape codes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flowmx import devices
from flowmx.engine.runtime import engine
from flowmx.errors import ShapeError
from flowmx.ndarray import core, writing
from flowmx.ndarray.core import BaseArray, invoke
from flowmx.ndarray.recording import state
from flowmx.ndarray.views import (
    contiguous_strides,
    is_contiguous,
    lie_together,
    make_view,
    placed,
    reshaped,
    variable_of,
)
from flowmx.ops.arrays.reshaping import rebuild, resolve_reshape
from flowmx.ops.registry.operators import Shape, lookup
from flowmx.ops.sparse.shapes import SparseShape

_BASIC = (int, np.integer, slice, type(None), type(Ellipsis))


def get(array: BaseArray, key: Any) -> BaseArray:
    """``array[key]``: a view where a basic key selects elements that lie one after the other, else a copy."""
    if isinstance(key, (BaseArray, list, np.ndarray)):
        key = (key,)
    parts = key if isinstance(key, tuple) else (key,)
    if not all(isinstance(part, _BASIC) and not isinstance(part, bool) for part in parts):
        return _gather(array, parts)
    full = _expand(array, parts)
    offset, shape, strides = _view(array, full)
    itemsize = array._dtype.itemsize
    if full and not shape:  # one element comes as an array of one, as in MXNet
        shape, strides = (1,), (itemsize,)
    if lie_together(shape, strides, itemsize):
        return make_view(array, offset, shape, strides)
    return _part(array, offset, shape, strides)


def _part(array: BaseArray, offset: int, shape: Shape, strides: Shape) -> BaseArray:
    """A copy of a strided part of an array's memory."""
    itemsize = array._dtype.itemsize
    if array._view is not None:
        if not is_contiguous(array):  # the steps are those of the whole memory, not of what is there of it
            copied: BaseArray = invoke(lookup("_copy").create(), [make_view(array, offset, shape, strides)], depth=4)
            return copied
        offset -= array._view[0]
    steps = tuple([each // itemsize for each in strides])
    op = lookup("_part").create(whole=array._shape, shape=shape, offset=offset // itemsize, strides=steps)
    made: BaseArray = invoke(op, [array], depth=4)
    return made


def put(array: BaseArray, key: Any, value: Any) -> None:
    """``array[key] = value``: enqueued; what the key leaves out keeps its content.

    Raises:
        ShapeError: the value does not broadcast to what the key selects.
        AutogradError: the array is a variable, while recording, and the value no NumPy array for all of it.
    """
    if isinstance(value, BaseArray) and isinstance(value._shape, SparseShape):
        value = value.tostype("default")  # type: ignore[attr-defined]
    if isinstance(key, (BaseArray, list, np.ndarray)):
        key = (key,)
    parts = key if isinstance(key, tuple) else (key,)
    device = array._storage.device
    of_host = isinstance(value, np.ndarray)
    indexes: tuple[BaseArray, ...]
    if all(isinstance(part, _BASIC) and not isinstance(part, bool) for part in parts):
        offset, shape, strides = _view(array, _expand(array, parts))
        target = placed(array, offset, shape, strides)
        whole = target._view is None
        selected: Callable[[], Any] = target._written
        template, indexes = "", ()
    else:
        template, indexes = _template(array, parts)
        shape = _gathered_shape(array._shape, template, [each._shape for each in indexes])
        target, whole, selected = array, False, lambda: _Selected(array, template, indexes)
    if isinstance(value, BaseArray) and value._storage.device is not device:
        core.warn_of_crossing(value._storage.device, device, "this assignment")
        value = value.as_in_context(device.context)  # type: ignore[attr-defined]
    given: Shape = value._shape if isinstance(value, BaseArray) else np.shape(value)
    if not _fits(given, shape):
        raise ShapeError(f"assignment: the value has shape {given}, the key selects {shape} of {array._shape}")
    sources = [each._storage for each in indexes]
    if isinstance(value, BaseArray):
        sources.append(value._storage)
    elif not isinstance(value, (int, float, bool, np.generic)):
        value = np.array(value)  # the caller may change it before the engine comes to it
        if device.xp is not np:
            value = _brought(value, array)
            sources.append(value._storage)
    if not whole:
        sources.append(array._storage)
    if state.get().recording:
        if target is array:
            writing.record_choice(array, value, template, indexes, shape)
        elif not (of_host and shape == array._shape and variable_of(array) is not None):
            # A variable may be given another content from the host, as in MXNet: it stays the same variable.
            writing.record_assignment(array, value, target)
    drop = max(0, len(given) - len(shape))

    def assign() -> None:
        content = value._read() if isinstance(value, BaseArray) else value
        if drop:
            content = content.reshape(content.shape[drop:])
        selected()[...] = content

    light = math.prod(shape) <= 4096
    core.push_on(device, assign, (), tuple(sources), (array._storage,), "assign", light, 0, 4)


def _brought(value: np.ndarray[Any, Any], array: BaseArray) -> BaseArray:
    """A value of the host's on an array's device, whose operations take no other ones."""
    with np.errstate(all="ignore"):
        converted = value.astype(array._dtype)
    host = core.allocate(devices.get(devices.cpu()), value.shape, array._dtype, converted)
    return host.as_in_context(array.context)  # type: ignore[attr-defined,no-any-return]


class _Selected:
    """Assignment target for the elements that an advanced key selects."""

    def __init__(self, array: BaseArray, template: str, indexes: tuple[BaseArray, ...]) -> None:
        self._array, self._key = array, (template, indexes)

    def __setitem__(self, _: Any, content: Any) -> None:
        template, indexes = self._key
        self._array._written()[rebuild(template, [each._read() for each in indexes])] = content


def _fits(given: Shape, wanted: Shape) -> bool:
    while len(given) > len(wanted) and given[0] == 1:
        given = given[1:]
    if len(given) > len(wanted):
        return False
    return all(g in (1, w) for g, w in zip(given[::-1], wanted[::-1], strict=False))


# -- basic keys --------------------------------------------------------------------------------------------


def _expand(array: BaseArray, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """A basic key with the ellipsis spelled out: one item for each axis, and None for each new one."""
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    ndim = len(array._shape)
    if taken > ndim:
        raise IndexError(f"too many indices: {taken} for an array of shape {array._shape}")
    fill = (slice(None),) * (ndim - taken)
    if Ellipsis in parts:
        where = parts.index(Ellipsis)
        return (*parts[:where], *fill, *parts[where + 1 :])
    return (*parts, *fill)


def _index(position: Any, length: int, axis: int, shape: Shape) -> int:
    index = int(position)
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of bounds for axis {axis} of an array of shape {shape}")
    return index + length if index < 0 else index


def _strides(array: BaseArray) -> tuple[int, ...]:
    if array._view is not None:
        return array._view[1]
    return contiguous_strides(array._shape, array._dtype.itemsize)


def _view(array: BaseArray, full: tuple[Any, ...]) -> tuple[int, Shape, tuple[int, ...]]:
    offset = array._view[0] if array._view is not None else 0
    shape, strides = [], []
    axis = 0
    old = _strides(array)
    for part in full:
        if part is None:
            shape.append(1)
            strides.append(array._dtype.itemsize)
            continue
        length, stride = array._shape[axis], old[axis]
        if isinstance(part, slice):
            start, stop, step = part.indices(length)
            count = max(0, -(-(stop - start) // step))
            offset += start * stride if count else 0
            shape.append(count)
            strides.append(step * stride)
        else:
            offset += _index(part, length, axis, array._shape) * stride
        axis += 1
    if 0 in shape:  # no element, and maybe no memory where it would begin
        offset = array._view[0] if array._view is not None else 0
    return offset, tuple(shape), tuple(strides)


# -- index arrays ------------------------------------------------------------------------------------------


def _template(array: BaseArray, parts: tuple[Any, ...]) -> tuple[str, tuple[BaseArray, ...]]:
    """An advanced key as text with ``@`` for each index array, and the index arrays.

    Boolean masks are turned into positions here, which waits for them: the result's shape depends on them.
    """
    pieces: list[str] = []
    arrays: list[BaseArray] = []
    device = array._storage.device
    for part in parts:
        if isinstance(part, BaseArray):
            if part._dtype.kind == "b":
                engine.wait_variable(part._storage)
                part = part.asnumpy()  # type: ignore[attr-defined]
            else:
                part = part.as_in_context(device.context)  # type: ignore[attr-defined]
        if isinstance(part, (list, tuple, np.ndarray, bool)):
            part = np.asarray(part)
            if part.dtype.kind == "b":
                for positions in np.nonzero(part):
                    pieces.append("@")
                    arrays.append(core.allocate(device, positions.shape, positions.dtype, positions))
                continue
            if part.size == 0:
                part = part.astype(np.int64)
            part = core.allocate(device, part.shape, part.dtype, np.array(part))
        if isinstance(part, BaseArray):
            pieces.append("@")
            arrays.append(part)
        elif isinstance(part, slice):
            pieces.append(":".join("" if n is None else str(int(n)) for n in (part.start, part.stop, part.step)))
        elif part is None:
            pieces.append("None")
        elif part is Ellipsis:
            pieces.append("...")
        elif isinstance(part, (int, np.integer)):
            pieces.append(str(int(part)))
        else:
            raise IndexError(f"an index is {part!r}, expected a number, slice, None, ..., or an array")
    return ",".join(pieces), tuple(arrays)


def _gathered_shape(shape: Shape, template: str, index_shapes: list[Shape]) -> Shape:
    zeros = [np.broadcast_to(np.zeros((), np.int64), each) for each in index_shapes]
    try:
        selected: Shape = np.broadcast_to(np.zeros((), np.bool_), shape)[rebuild(template, zeros)].shape
    except IndexError as error:
        raise IndexError(f"index [{template}] does not fit an array of shape {shape}: {error}") from None
    return selected


def _gather(array: BaseArray, parts: tuple[Any, ...]) -> BaseArray:
    template, indexes = _template(array, parts)
    shape = _gathered_shape(array._shape, template, [each._shape for each in indexes])
    op = lookup("_advanced_index").create(num_args=1 + len(indexes), key=template, shape=shape)
    made: BaseArray = invoke(op, [array, *indexes], depth=4)
    return made


# -- reshape -----------------------------------------------------------------------------------------------


def reshape(array: BaseArray, codes: tuple[int, ...], reverse: bool = False) -> BaseArray:
    """The array with another shape; shares memory where its layout allows."""
    shape = resolve_reshape(array._shape, codes, reverse) if codes or array._shape else ()
    return reshaped(array, shape)
