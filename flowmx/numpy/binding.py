"""Forward functions of NumPy calls, bound to the arguments of one call and the shapes and dtypes of its arrays.

For small arrays most of the time of an operation is spent in Python. Offsets, repetitions and argument types are
therefore resolved once, when the forward is bound; running it takes one or two calls into NumPy.
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
"""Functions whose results are writable views of their argument in NumPy."""
_INTO = table.names("argmax argmin cumprod cumsum")
"""Methods that take an axis and ``out``."""
_FEW = 4096
"""Number of elements up to which two ufunc calls are faster than ``numpy.clip``."""


class _Call(NamedTuple):
    """A call: the function, its arguments after the arrays, its keywords, and the forms of inputs and outputs."""

    function: Callable[..., Any]
    rest: list[Any]
    kwargs: dict[str, Any]
    inputs: Sequence[Form]
    outputs: Sequence[Form]


def bind(
    name: str, function: Callable[..., object], call: CallForm, inputs: Sequence[Form], outputs: Sequence[Form]
) -> Bound | None:
    """Return the bound forward of a call on NumPy arrays, or None if binding does not apply or gains nothing."""
    args = call.args
    leading = len([None for index, arg in enumerate(args) if isinstance(arg, Slot) and arg.number == index])
    rest = args[leading:]
    if leading != len(inputs) or not inputs or any(isinstance(arg, (Slot, list)) for arg in rest):
        return None
    if any(0 in shape or dtype.kind == "V" for shape, dtype in (*inputs, *outputs)):
        return None
    bound: Bound | None = _BINDERS.get(name, _bind_call)(_Call(function, rest, call.kwargs, inputs, outputs))
    return bound


def _bind_call(call: _Call) -> Bound | None:
    """Bind the function itself with its other arguments."""
    function, rest, kwargs, _, results = call
    if len(results) != 1 or "dtype" in kwargs:
        return None

    def run(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        result = function(*inputs, *rest, **kwargs)
        outputs[0][...] = result[0] if isinstance(result, (list, tuple)) else result

    return run


def _bind_views(call: _Call) -> Bound | None:
    """Bind copies of parts of an array. Their offsets and strides are computed once, on an unused array."""
    function, rest, kwargs, sources, _ = call
    shape, dtype = sources[0]
    if len(sources) != 1:
        return None
    memory = np.empty(shape, dtype)
    result = function(memory, *rest, **kwargs)
    parts = list(result) if isinstance(result, (list, tuple)) else [result]
    if any(part.dtype != dtype or not np.may_share_memory(part, memory) for part in parts):
        return _bind_call(call)
    views = [_view(memory, part, dtype) for part in parts]
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
    """Return a function that takes the same part of any array of this form: by reshape, transpose, index or offset."""
    offset, steps, form = part.ctypes.data - memory.ctypes.data, memory.strides, (part.shape, part.strides)
    lengths, strides = form
    axes = [steps.index(stride) if stride in steps else -1 for stride in strides]
    index = tuple(
        [
            _slice(offset // step % length, count, stride)
            for length, step, count, stride in zip(memory.shape, steps, lengths, strides, strict=False)
        ]
    )
    candidates: list[tuple[bool, Callable[[Any], Any]]] = [
        (part.size == memory.size, lambda x: x.reshape(lengths)),
        (sorted(axes) == list(range(memory.ndim)), lambda x: x.transpose(axes)),
        (len(index) == part.ndim, lambda x: x[index]),
    ]
    for applies, take in candidates:
        view = take(memory) if applies else None
        if view is not None and (view.shape, view.strides) == form and view.ctypes.data == part.ctypes.data:
            return take
    return lambda x: np.ndarray(lengths, dtype, np.ascontiguousarray(x), offset, strides)


def _slice(start: int, count: int, stride: int) -> slice:
    return slice(start, start + count) if stride > 0 else slice(start, start - count if start >= count else None, -1)


def _copy_repeated(dtype: DType, lengths: Shape, strides: Shape) -> Bound:
    """Return a forward that repeats elements: the axes of the result are split into source axes and repetitions."""

    def run(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, out = np.ascontiguousarray(inputs[0]), outputs[0]
        source = np.ndarray(lengths, dtype, x, 0, strides)
        if out.flags.c_contiguous:
            out.reshape(lengths)[...] = source
        else:
            out[...] = source.reshape(out.shape)

    return run


def _bind_tile(call: _Call) -> Bound | None:
    _, rest, kwargs, sources, _ = call
    shape, dtype = sources[0]
    if len(sources) != 1 or len(rest) != 1 or kwargs:
        return None
    times = (rest[0],) if isinstance(rest[0], int) else tuple(rest[0])
    ndim = max(len(times), len(shape))
    times, shape = (1,) * (ndim - len(times)) + times, (1,) * (ndim - len(shape)) + shape
    lengths = [length for pair in zip(times, shape, strict=True) for length in pair]
    strides = [stride for step in _strides(shape, dtype.itemsize) for stride in (0, step)]
    return _copy_repeated(dtype, tuple(lengths), tuple(strides))


def _bind_repeat(call: _Call) -> Bound | None:
    _, rest, kwargs, sources, _ = call
    shape, dtype = sources[0]
    options = [*rest, kwargs.get("axis")] if len(rest) == 1 else rest
    if len(sources) != 1 or len(options) != 2 or not isinstance(options[0], int) or kwargs.keys() - {"axis"}:
        return _bind_call(call)
    times, axis = options
    if axis is None:
        shape, axis = (math.prod(shape),), 0
    axis += len(shape) if axis < 0 else 0
    strides = _strides(shape, dtype.itemsize)
    lengths = (*shape[: axis + 1], times, *shape[axis + 1 :])
    return _copy_repeated(dtype, lengths, (*strides[: axis + 1], 0, *strides[axis + 1 :]))


def _strides(shape: Shape, itemsize: int) -> Shape:
    strides = [itemsize]
    for length in shape[:0:-1]:
        strides.insert(0, strides[0] * length)
    return tuple(strides[: len(shape)])


def _bind_broadcast(call: _Call) -> Bound | None:
    if len(call.inputs) != 1:
        return None

    def run(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = inputs[0]

    return run


def _bind_where(call: _Call) -> Bound | None:
    """Bind ``where``: copy one side everywhere, then the other where the mask is true."""
    _, rest, kwargs, sources, results = call
    if (
        len(sources) != 3
        or rest
        or kwargs
        or any(dtype != results[0][1] for _, dtype in sources[1:])
        or sources[0][1] != np.bool_
    ):
        return _bind_call(call)

    def run(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        mask, one, other = inputs
        outputs[0][...] = other
        np.copyto(outputs[0], one, where=mask)

    return run


def _bind_sort(call: _Call) -> Bound | None:
    _, rest, kwargs, _, _ = call
    options = rest or [kwargs.get("axis", -1)]
    if len(options) != 1 or not isinstance(options[0], int) or kwargs.keys() - {"axis"}:
        return _bind_call(call)
    axis = options[0]

    def run(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = inputs[0]
        outputs[0].sort(axis)

    return run


def _bind_method(call: _Call) -> Bound | None:
    """Bind a method of :data:`_INTO` with an axis."""
    function, rest, kwargs, sources, results = call
    options = rest or [kwargs.get("axis")]
    dtype = results[0][1]
    if len(options) != 1 or kwargs.keys() - {"axis"} or (dtype != np.intp and dtype != sources[0][1]):
        return _bind_call(call)
    axis, method = options[0], getattr(np.ndarray, function.__name__)

    def run(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        method(inputs[0], axis, out=outputs[0])

    return run


def _bind_clip(call: _Call) -> Bound | None:
    _, rest, kwargs, sources, results = call
    if (
        len(rest) != 2
        or kwargs
        or any(isinstance(bound, bool) or not isinstance(bound, (int, float)) for bound in rest)
    ):
        return _bind_call(call)
    low, high = rest
    if results[0][1] != sources[0][1] or results[0][1].kind != "f" or math.prod(results[0][0]) > _FEW:
        return _bind_call(call)

    def run(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        np.maximum(inputs[0], low, out=outputs[0])
        np.minimum(outputs[0], high, out=outputs[0])

    return run


def _bind_norm(call: _Call) -> Bound | None:
    """Bind ``linalg.norm`` of all elements."""
    if len(call.inputs) != 1 or call.rest or call.kwargs or call.inputs[0][1] != call.outputs[0][1]:
        return _bind_call(call)

    def run(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        flat = inputs[0].ravel("K")
        np.sqrt(flat.dot(flat), out=outputs[0])

    return run


_BINDERS: dict[str, Any] = {
    **dict.fromkeys(SHARING, _bind_views),
    **dict.fromkeys(_INTO, _bind_method),
    "clip": _bind_clip,
    "linalg.norm": _bind_norm,
    "broadcast_to": _bind_broadcast,
    "repeat": _bind_repeat,
    "sort": _bind_sort,
    "tile": _bind_tile,
    "where": _bind_where,
}
