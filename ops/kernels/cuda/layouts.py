"""Memory layouts of images: C order or channels (axis 1) innermost, and copies of images into these layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flowmx.ops.kernels.cuda.dnn import Tensor
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape
from flowmx.ops.registry.tensors import ArrayNamespace

Format = Literal["C", "channels last"]


def strides_of(shape: Shape, form: Format) -> Shape:
    """Return the strides of a dense array, in elements."""
    order = range(len(shape)) if form == "C" else (0, *range(2, len(shape)), 1)
    strides, step = [0] * len(shape), 1
    for axis in reversed(list(order)):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def has_layout(array: Array, form: Format) -> bool:
    """Return whether an array is dense in this layout."""
    size = array.itemsize
    expected_strides = strides_of(array.shape, form)
    axes = zip(array.shape, array.strides, expected_strides, strict=True)
    return all(length == 1 or stride == step * size for length, stride, step in axes)


def format_of(arrays: Sequence[Array]) -> Format:
    """Return the layout to compute in: channels-last if an array is dense only in that layout, otherwise C order."""
    return "channels last" if any(has_layout(a, "channels last") and not has_layout(a, "C") for a in arrays) else "C"


def empty(xp: ArrayNamespace, shape: Shape, dtype: DType, form: Format) -> Array:
    """Return a new array with this layout."""
    if form == "C":
        return xp.empty(shape, dtype)
    rank = len(shape)
    return xp.empty((shape[0], *shape[2:], shape[1]), dtype).transpose(0, rank - 1, *range(1, rank - 1))


def in_layout(xp: ArrayNamespace, array: Array, form: Format) -> Array:
    """Return the array, or a copy with this layout."""
    if has_layout(array, form):
        return array
    copy = empty(xp, array.shape, array.dtype, form)
    xp.copyto(copy, array)
    return copy


def as_images(array: Array) -> Array:
    """Return sequences (batch, channels, length) as images of height 1; other arrays unchanged."""
    return array[:, :, None, :] if array.ndim == 3 else array


def tensor(array: Array, form: Format) -> Tensor:
    """Return the description of an array of this layout for cuDNN."""
    return Tensor(array.shape, strides_of(array.shape, form), array.dtype)


def run_fallback(op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Run the operator's forward, on copies in C order of arrays with other layouts."""
    xp, count = run.xp, len(inputs) - len(op.auxiliary)
    results = [each if each.flags.c_contiguous else xp.empty(each.shape, each.dtype) for each in outputs]
    op.forward(run, [*map(xp.ascontiguousarray, inputs[:count]), *inputs[count:]], results)
    for result, each in zip(results, outputs, strict=True):
        if result is not each:
            xp.copyto(each, result)
