"""Forwards of NumPy's functions that are bound to one call and the forms of its arrays.

A small array's operation costs what Python decides in it. Where a part lies, how often it is repeated, which arguments
are numbers: all that is decided when the forward is bound, so that one or two calls into NumPy are left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.numpy import table
from flowmx.numpy.forms import Form as CallForm
from flowmx.numpy.forms import Slot
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Bound, Form, Run, Shape

__all__ = ["SHARING", "bind"]

SHARING = table.names("""
    array_split atleast_1d atleast_2d atleast_3d diagonal dsplit expand_dims flip fliplr flipud hsplit imag
    linalg.diagonal linalg.matrix_transpose matrix_transpose moveaxis ravel real rollaxis rot90 split squeeze swapaxes
    transpose unstack vsplit
""")
"""Functions whose results share memory with their argument in NumPy, and may be written into."""
_INTO = table.names("argmax argmin cumprod cumsum")
"""Methods that take an axis, and write into ``out``."""
_FEW = 4096
"""Elements up to which two calls of ufuncs cost less than one function that decides which."""


class _Call(NamedTuple):
    """A call: the function, its arguments after the arrays, those by keyword, and the forms of arrays and results."""

    function: Callable[..., Any]
    rest: list[Any]
    kwargs: dict[str, Any]
    given: Sequence[Form]
    made: Sequence[Form]


def bind(
    name: str, function: Callable[..., Any], call: CallForm, given: Sequence[Form], made: Sequence[Form]
) -> Bound | None:
    """The forward of a call on NumPy's arrays; None where it has nothing to gain, or nothing is known of it."""
    args = call.args
    leading = len([None for index, each in enumerate(args) if isinstance(each, Slot) and each.number == index])
    rest = args[leading:]
    if leading != len(given) or not given or any(isinstance(each, (Slot, list)) for each in rest):
        return None
    if any(0 in shape or dtype.kind == "V" for shape, dtype in (*given, *made)):
        return None
    bound: Bound | None = _MAKERS.get(name, _called)(_Call(function, rest, call.kwargs, given, made))
    return bound


def _called(of: _Call) -> Bound | None:
    """The function itself, its other arguments filled in."""
    function, rest, kwargs, _, made = of
    if len(made) != 1 or "dtype" in kwargs:
        return None

    def run(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        found = function(*inputs, *rest, **kwargs)
        outputs[0][...] = found[0] if isinstance(found, (list, tuple)) else found

    return run


def _moved(of: _Call) -> Bound | None:
    """Copies of parts of an array: where they lie is asked once, of an array that nobody writes or reads."""
    function, rest, kwargs, given, _ = of
    shape, dtype = given[0]
    if len(given) != 1:
        return None
    memory = np.empty(shape, dtype)
    found = function(memory, *rest, **kwargs)
    parts = list(found) if isinstance(found, (list, tuple)) else [found]
    if any(each.dtype != dtype or not np.may_share_memory(each, memory) for each in parts):
        return _called(of)
    views = [_view(memory, each, dtype) for each in parts]
    if len(views) == 1:
        view = views[0]

        def run_one(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            outputs[0][...] = view(inputs[0])

        return run_one

    def run(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x = inputs[0]
        for out, view in zip(outputs, views, strict=True):
            out[...] = view(x)

    return run


def _view(memory: Any, part: Any, dtype: DType) -> Callable[[Any], Any]:
    """A function that takes of any array of a form the part that was taken of one: by shape, axes, index or place."""
    offset, steps, form = part.ctypes.data - memory.ctypes.data, memory.strides, (part.shape, part.strides)
    lengths, strides = form
    axes = [steps.index(each) if each in steps else -1 for each in strides]
    index = tuple(
        [
            _slice(offset // step % length, count, stride)
            for length, step, count, stride in zip(memory.shape, steps, lengths, strides, strict=False)
        ]
    )
    ways: list[tuple[bool, Callable[[Any], Any]]] = [
        (part.size == memory.size, lambda x: x.reshape(lengths)),
        (sorted(axes) == list(range(memory.ndim)), lambda x: x.transpose(axes)),
        (len(index) == part.ndim, lambda x: x[index]),
    ]
    for may, way in ways:
        found = way(memory) if may else None
        if found is not None and (found.shape, found.strides) == form and found.ctypes.data == part.ctypes.data:
            return way
    return lambda x: np.ndarray(lengths, dtype, np.ascontiguousarray(x), offset, strides)


def _slice(start: int, count: int, stride: int) -> slice:
    return slice(start, start + count) if stride > 0 else slice(start, start - count if start >= count else None, -1)


def _spread(dtype: DType, lengths: Shape, strides: Shape) -> Bound:
    """A copy of each element to several places: the result's axes are split in those of the array and repetitions."""

    def run(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, out = np.ascontiguousarray(inputs[0]), outputs[0]
        source = np.ndarray(lengths, dtype, x, 0, strides)
        if out.flags.c_contiguous:
            out.reshape(lengths)[...] = source
        else:
            out[...] = source.reshape(out.shape)

    return run


def _tiled(of: _Call) -> Bound | None:
    _, rest, kwargs, given, _ = of
    shape, dtype = given[0]
    if len(given) != 1 or len(rest) != 1 or kwargs:
        return None
    times = (rest[0],) if isinstance(rest[0], int) else tuple(rest[0])
    ndim = max(len(times), len(shape))
    times, shape = (1,) * (ndim - len(times)) + times, (1,) * (ndim - len(shape)) + shape
    lengths = [length for pair in zip(times, shape, strict=True) for length in pair]
    strides = [stride for each in _strides(shape, dtype.itemsize) for stride in (0, each)]
    return _spread(dtype, tuple(lengths), tuple(strides))


def _repeated(of: _Call) -> Bound | None:
    _, rest, kwargs, given, _ = of
    shape, dtype = given[0]
    options = [*rest, kwargs.get("axis")] if len(rest) == 1 else rest
    if len(given) != 1 or len(options) != 2 or not isinstance(options[0], int) or kwargs.keys() - {"axis"}:
        return _called(of)
    times, axis = options
    if axis is None:
        shape, axis = (math.prod(shape),), 0
    axis += len(shape) if axis < 0 else 0
    strides = _strides(shape, dtype.itemsize)
    lengths = (*shape[: axis + 1], times, *shape[axis + 1 :])
    return _spread(dtype, lengths, (*strides[: axis + 1], 0, *strides[axis + 1 :]))


def _strides(shape: Shape, itemsize: int) -> Shape:
    strides = [itemsize]
    for length in shape[:0:-1]:
        strides.insert(0, strides[0] * length)
    return tuple(strides[: len(shape)])


def _broadcast(of: _Call) -> Bound | None:
    if len(of.given) != 1:
        return None

    def run(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = inputs[0]

    return run


def _chosen(of: _Call) -> Bound | None:
    """``where``: one side for all, and the other where the mask is true."""
    _, rest, kwargs, given, made = of
    if (
        len(given) != 3
        or rest
        or kwargs
        or any(dtype != made[0][1] for _, dtype in given[1:])
        or given[0][1] != np.bool_
    ):
        return _called(of)

    def run(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        mask, one, other = inputs
        outputs[0][...] = other
        np.copyto(outputs[0], one, where=mask)

    return run


def _sorted(of: _Call) -> Bound | None:
    _, rest, kwargs, _, _ = of
    options = rest or [kwargs.get("axis", -1)]
    if len(options) != 1 or not isinstance(options[0], int) or kwargs.keys() - {"axis"}:
        return _called(of)
    axis = options[0]

    def run(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = inputs[0]
        outputs[0].sort(axis)

    return run


def _along(of: _Call) -> Bound | None:
    """Methods of :data:`_INTO`, with an axis."""
    function, rest, kwargs, given, made = of
    options = rest or [kwargs.get("axis")]
    dtype = made[0][1]
    if len(options) != 1 or kwargs.keys() - {"axis"} or (dtype != np.intp and dtype != given[0][1]):
        return _called(of)
    axis, method = options[0], getattr(np.ndarray, function.__name__)

    def run(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        method(inputs[0], axis, out=outputs[0])

    return run


def _clipped(of: _Call) -> Bound | None:
    _, rest, kwargs, given, made = of
    if len(rest) != 2 or kwargs or any(isinstance(each, bool) or not isinstance(each, (int, float)) for each in rest):
        return _called(of)
    low, high = rest
    if made[0][1] != given[0][1] or made[0][1].kind != "f" or math.prod(made[0][0]) > _FEW:
        return _called(of)

    def run(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.maximum(inputs[0], low, out=outputs[0])
        np.minimum(outputs[0], high, out=outputs[0])

    return run


def _length(of: _Call) -> Bound | None:
    """``linalg.norm`` of all elements."""
    if len(of.given) != 1 or of.rest or of.kwargs or of.given[0][1] != of.made[0][1]:
        return _called(of)

    def run(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        flat = inputs[0].ravel("K")
        np.sqrt(flat.dot(flat), out=outputs[0])

    return run


_MAKERS: dict[str, Any] = {
    **dict.fromkeys(SHARING, _moved),
    **dict.fromkeys(_INTO, _along),
    "clip": _clipped,
    "linalg.norm": _length,
    "broadcast_to": _broadcast,
    "repeat": _repeated,
    "sort": _sorted,
    "tile": _tiled,
    "where": _chosen,
}
