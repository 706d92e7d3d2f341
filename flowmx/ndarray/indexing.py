"""Indexing: reading by basic keys (views) and advanced keys (copies), assignment, and MXNet's reshape codes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flowmx import devices
from flowmx.engine.origin import warn_user
from flowmx.engine.runtime import engine
from flowmx.errors import ShapeError
from flowmx.ndarray import core, recorded_writes
from flowmx.ndarray.arithmetic import is_mask
from flowmx.ndarray.core import B, BaseArray, invoke
from flowmx.ndarray.recording import state
from flowmx.ndarray.views import (
    are_contiguous,
    contiguous_strides,
    is_contiguous,
    make_view,
    reshape_view,
    variable_of,
    view_of,
)
from flowmx.ops.arrays.reshape_codes import resolve_reshape
from flowmx.ops.arrays.shape_arithmetic import key_from_template
from flowmx.ops.registry.dtypes import element
from flowmx.ops.registry.operators import Array, Shape, lookup
from flowmx.ops.sparse.shapes import SparseShape

_WHOLE = slice(None)
_BASIC = (int, np.integer, slice, type(None), type(Ellipsis))
_MASK_OF_NUMBERS = (
    "the index is a mask of the numbers 0 and 1, which are row numbers here, as in MXNet: x[mask] is made of rows 0 "
    "and 1. To select by a mask, use x[mask.astype('bool')], mx.nd.contrib.boolean_mask(x, mask) for rows, or mx.np "
    "arrays; mask.astype('int32') confirms row numbers"
)
_warned_lines: set[tuple[str, int]] = set()
"""The user's lines with a warning about a mask of numbers."""


def get(array: BaseArray, key: Any) -> BaseArray:
    """Compute ``array[key]``: a view if a basic key selects contiguous elements, else a copy."""
    if (key.__class__ is slice or key.__class__ is int) and array.dims:  # as usual
        full: tuple[object, ...] = (key, *(_WHOLE,) * (len(array.dims) - 1))
    else:
        parts = _parts(key)
        if not all(isinstance(part, _BASIC) for part in parts):
            return _gather(array, parts)
        full = _expand(array, parts)
    offset, shape, strides = _view(array, full)
    itemsize = array.element_type.itemsize
    if full and not shape:  # a single element becomes an array of shape (1,), as in MXNet
        shape, strides = (1,), (itemsize,)
    if are_contiguous(shape, strides, itemsize):
        return make_view(array, offset, shape, strides)
    return _part(array, offset, shape, strides)


def _parts(key: Any) -> tuple[Any, ...]:
    """Return the parts of a key; single bools are numbers, as in MXNet."""
    parts = key if isinstance(key, tuple) else (key,)
    if bool not in map(type, parts):
        return parts
    return tuple([int(part) if isinstance(part, bool) else part for part in parts])


def _part(array: B, offset: int, shape: Shape, strides: Shape) -> B:
    """Copy a strided part of an array's memory."""
    itemsize = array.element_type.itemsize
    if array.strided_view is not None:
        if not is_contiguous(array):  # the strides are those of the whole memory, not of the view
            copy: B = invoke(lookup("_copy").create(), [make_view(array, offset, shape, strides)], depth=4)
            return copy
        offset -= array.strided_view[0]
    steps = tuple([each // itemsize for each in strides])
    op = lookup("_part").create(whole=array.dims, shape=shape, offset=offset // itemsize, strides=steps)
    part: B = invoke(op, [array], depth=4)
    return part


def put(array: BaseArray, key: Any, value: Any) -> None:
    """Enqueue ``array[key] = value``; elements outside the key keep their content.

    Raises:
        ShapeError: the value does not broadcast to what the key selects.
        AutogradError: while recording, the array is a variable, unless a NumPy array of its shape is assigned.
    """
    if isinstance(value, BaseArray) and isinstance(value.dims, SparseShape):
        value = value.tostype("default")
    parts = _parts(key)
    device = array.storage.device
    of_host = isinstance(value, np.ndarray)
    indexes: tuple[BaseArray, ...]
    if all(isinstance(part, _BASIC) for part in parts):
        offset, shape, strides = _view(array, _expand(array, parts))
        target = view_of(array, offset, shape, strides)
        whole = target.strided_view is None
        selected: Callable[[], Any] = target.raw_for_writing
        template, indexes = "", ()
    else:
        template, indexes = _template(array, parts)
        shape = _gathered_shape(array.dims, template, [each.dims for each in indexes])
        target, whole, selected = array, False, lambda: _Selected(array, template, indexes)
    if isinstance(value, BaseArray) and value.storage.device is not device:
        core.warn_of_copy(value.storage.device, device, "this assignment")
        value = value.as_in_context(device.context)
    value_shape: Shape = value.dims if isinstance(value, BaseArray) else np.shape(value)
    if not _fits(value_shape, shape):
        raise ShapeError(f"assignment: the value has shape {value_shape}, the key selects {shape} of {array.dims}")
    sources = [each.storage for each in indexes]
    if isinstance(value, BaseArray):
        sources.append(value.storage)
    elif isinstance(value, (int, float, bool, np.generic)):
        if array.element_type.kind in "iu":
            value = element(value, array.element_type)
    else:
        value = np.array(value)  # a copy: the caller may change it before the engine runs the assignment
        if device.xp is not np:
            value = _on_device_of(array, value)
            sources.append(value.storage)
    if not whole:
        sources.append(array.storage)
    if state.get().recording:
        if target is array:
            recorded_writes.record_selection(array, value, template, indexes, shape)
        elif not (of_host and shape == array.dims and variable_of(array) is not None):
            # As in MXNet, a variable may be overwritten from the host: it stays the same variable.
            recorded_writes.record_assignment(array, value, target)
    drop = max(0, len(value_shape) - len(shape))

    def assign() -> None:
        content = value.raw() if isinstance(value, BaseArray) else value
        if drop:
            content = content.reshape(content.shape[drop:])
        selected()[...] = content

    light = math.prod(shape) <= 4096
    core.push_on(device, assign, (), tuple(sources), (array.storage,), "assign", light, 0, 4)


def _on_device_of(array: BaseArray, value: Array) -> BaseArray:
    """Copy a host value to an array's device, since operations there take no other values."""
    with np.errstate(all="ignore"):
        converted = value.astype(array.element_type)
    host = core.allocate(devices.get(devices.cpu()), value.shape, array.element_type, converted)
    moved: BaseArray = host.as_in_context(array.context)
    return moved


class _Selected:
    """Assignment target: the elements that an advanced key selects."""

    def __init__(self, array: BaseArray, template: str, indexes: tuple[BaseArray, ...]) -> None:
        self._array, self._key = array, (template, indexes)

    def __setitem__(self, _: Any, content: Any) -> None:
        template, indexes = self._key
        self._array.raw_for_writing()[key_from_template(template, [each.raw() for each in indexes])] = content


def _fits(shape: Shape, target: Shape) -> bool:
    while len(shape) > len(target) and shape[0] == 1:
        shape = shape[1:]
    if len(shape) > len(target):
        return False
    return all(length in (1, other) for length, other in zip(shape[::-1], target[::-1], strict=False))


# -- basic keys --------------------------------------------------------------------------------------------


def _expand(array: BaseArray, parts: tuple[Any, ...]) -> tuple[object, ...]:
    """Expand the ellipsis of a basic key: one item for each axis, and None for each new axis."""
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    ndim = len(array.dims)
    if taken > ndim:
        raise IndexError(f"too many indices: {taken} for an array of shape {array.dims}")
    fill = (_WHOLE,) * (ndim - taken)
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
    if array.strided_view is not None:
        return array.strided_view[1]
    return contiguous_strides(array.dims, array.element_type.itemsize)


def _view(array: BaseArray, full: tuple[Any, ...]) -> tuple[int, Shape, tuple[int, ...]]:
    offset = array.strided_view[0] if array.strided_view is not None else 0
    shape, strides = [], []
    axis = 0
    old = _strides(array)
    for part in full:
        if part is None:
            shape.append(1)
            strides.append(array.element_type.itemsize)
            continue
        length, stride = array.dims[axis], old[axis]
        if part is _WHOLE:
            shape.append(length)
            strides.append(stride)
        elif isinstance(part, slice):
            start, stop, step = part.indices(length)
            count = max(0, -(-(stop - start) // step))
            offset += start * stride if count else 0
            shape.append(count)
            strides.append(step * stride)
        else:
            offset += _index(part, length, axis, array.dims) * stride
        axis += 1
    if 0 in shape:  # no element, so the offset may be outside the memory
        offset = array.strided_view[0] if array.strided_view is not None else 0
    return offset, tuple(shape), tuple(strides)


# -- index arrays ------------------------------------------------------------------------------------------


def _template(array: BaseArray, parts: tuple[Any, ...]) -> tuple[str, tuple[BaseArray, ...]]:
    """Return an advanced key as text with ``@`` for each index array, and the index arrays.

    Boolean masks are converted to positions here, which blocks until they are computed: the result's shape depends on
    them.
    """
    pieces: list[str] = []
    arrays: list[BaseArray] = []
    device = array.storage.device
    for part in parts:
        if isinstance(part, BaseArray):
            if part.element_type.kind == "b":
                engine.wait_variable(part.storage)
                part = part.asnumpy()
            else:
                if is_mask(part):
                    warn_user(_MASK_OF_NUMBERS, _warned_lines)
                part = part.as_in_context(device.context)
        if isinstance(part, (list, tuple, range, np.ndarray)):
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
            raise IndexError(f"an index is {part!r}, expected a number, slice, None, ..., list, range or array")
    return ",".join(pieces), tuple(arrays)


def _gathered_shape(shape: Shape, template: str, index_shapes: list[Shape]) -> Shape:
    zeros = [np.broadcast_to(np.zeros((), np.int64), each) for each in index_shapes]
    try:
        selected: Shape = np.broadcast_to(np.zeros((), np.bool_), shape)[key_from_template(template, zeros)].shape
    except IndexError as error:
        raise IndexError(f"index [{template}] does not fit an array of shape {shape}: {error}") from None
    return selected


def _gather(array: B, parts: tuple[Any, ...]) -> B:
    template, indexes = _template(array, parts)
    shape = _gathered_shape(array.dims, template, [each.dims for each in indexes])
    op = lookup("_advanced_index").create(num_args=1 + len(indexes), key=template, shape=shape)
    result: B = invoke(op, [array, *indexes], depth=4)
    return result


# -- reshape -----------------------------------------------------------------------------------------------


def reshape(array: BaseArray, codes: tuple[int, ...], reverse: bool = False) -> BaseArray:
    """Reshape an array; shares memory if its layout allows it."""
    shape = resolve_reshape(array.dims, codes, reverse) if codes or array.dims else ()
    return reshape_view(array, shape)
