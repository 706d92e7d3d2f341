"""Memory layouts of images: C order, or channels (axis 1) innermost; and copies of images in any other layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from flowmx.ops.kernels.cuda.dnn import Tensor
from flowmx.ops.registry.operators import Array, Operator, Run, Shape

Format = Literal["C", "channels last"]


def strides_of(shape: Shape, form: Format) -> Shape:
    """The strides of a dense array, counted in elements."""
    order = range(len(shape)) if form == "C" else (0, *range(2, len(shape)), 1)
    made, step = [0] * len(shape), 1
    for axis in reversed(list(order)):
        made[axis] = step
        step *= shape[axis]
    return tuple(made)


def lies(array: Array, form: Format) -> bool:
    """Tell whether an array is dense in this layout."""
    size = array.itemsize
    wanted = strides_of(array.shape, form)
    given = zip(array.shape, array.strides, wanted, strict=True)
    return all(length == 1 or stride == step * size for length, stride, step in given)


def format_of(arrays: Sequence[Array]) -> Format:
    """The layout to compute in: channels-last if any of the arrays is dense in that layout alone, else C order."""
    return "channels last" if any(lies(a, "channels last") and not lies(a, "C") for a in arrays) else "C"


def empty(xp: Any, shape: Shape, dtype: Any, form: Format) -> Array:
    """A new array of this layout."""
    if form == "C":
        return xp.empty(shape, dtype)
    rank = len(shape)
    return xp.empty((shape[0], *shape[2:], shape[1]), dtype).transpose(0, rank - 1, *range(1, rank - 1))


def laid(xp: Any, array: Array, form: Format) -> Array:
    """The array, or a copy of this layout."""
    if lies(array, form):
        return array
    made = empty(xp, array.shape, array.dtype, form)
    xp.copyto(made, array)
    return made


def planar(array: Array) -> Array:
    """An array of sequences (batch, channels, length) as one of images that are 1 high; others as they are."""
    return array[:, :, None, :] if array.ndim == 3 else array


def tensor(array: Array, form: Format) -> Tensor:
    """The description of an array of this layout for cuDNN."""
    return Tensor(array.shape, strides_of(array.shape, form), array.dtype)


def plainly(op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The operator's plain forward, on copies in C order where an array lies otherwise."""
    xp, count = run.xp, len(inputs) - len(op.auxiliary)
    results = [each if each.flags.c_contiguous else xp.empty(each.shape, each.dtype) for each in outputs]
    op.forward(run, [*map(xp.ascontiguousarray, inputs[:count]), *inputs[count:]], results)
    for result, each in zip(results, outputs, strict=True):
        if result is not each:
            xp.copyto(each, result)
