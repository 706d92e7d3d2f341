"""Array functions that are not single operators: joining and splitting, moving of axes, histograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from flowmx.errors import ShapeError
from flowmx.ndarray import functions
from flowmx.ndarray.array import NDArray
from flowmx.ops.arrays.shape_arithmetic import split_at

__all__ = ["concatenate", "histogram", "moveaxis", "onehot_encode", "split_v2"]


def concatenate(arrays: Sequence[NDArray], axis: int = 0, always_copy: bool = True) -> NDArray:
    """Join arrays along an axis; with one array, return the array itself unless ``always_copy`` is set.

    Raises:
        ValueError: there are no arrays.
        ShapeError: the lengths of another axis differ.
    """
    if not arrays:
        raise ValueError("concatenate: no arrays were given, expected at least one")
    if len(arrays) == 1 and not always_copy:
        return arrays[0]
    return cast("NDArray", functions.op("Concat", *arrays, dim=axis))


def split_v2(ary: NDArray, indices_or_sections: int | Sequence[int], axis: int = 0, squeeze_axis: bool = False) -> Any:
    """Split an array along an axis.

    Args:
        ary: the array.
        indices_or_sections: the number of equal parts, or the start of each part after the first.
        axis: the axis.
        squeeze_axis: remove the axis if all parts have length 1 along it.

    Returns:
        a list of arrays, or the array if there is only one part.
    """
    return functions.op("_split_v2", ary, axis=axis, squeeze_axis=squeeze_axis, **split_at(indices_or_sections))


def moveaxis(tensor: NDArray, source: int | Sequence[int], destination: int | Sequence[int]) -> NDArray:
    """Move the axes ``source`` to the positions ``destination``; other axes stay in order.

    Raises:
        ShapeError: an axis is out of range or repeated, or the numbers of axes differ.
    """
    ndim = tensor.ndim
    origins, targets = ((each,) if isinstance(each, int) else tuple(each) for each in (source, destination))
    for name, axes in (("source", origins), ("destination", targets)):
        if any(not -ndim <= axis < ndim for axis in axes) or len({axis % ndim for axis in axes}) < len(axes):
            raise ShapeError(f"moveaxis: {name} is {axes}, expected different axes from {-ndim} to {ndim - 1}")
    if len(origins) != len(targets):
        raise ShapeError(f"moveaxis: source is {origins} and destination {targets}, expected the same number of axes")
    source_axes = [axis % ndim for axis in origins]
    order = [axis for axis in range(ndim) if axis not in source_axes]
    for target, origin in sorted((target % ndim, origin) for target, origin in zip(targets, source_axes, strict=True)):
        order.insert(target, origin)
    return tensor.transpose(*order)


def onehot_encode(indices: NDArray, out: NDArray) -> NDArray:
    """Write the one-hot rows of ``indices`` (n,) into ``out`` (n, depth) and return it (MXNet's older function)."""
    return cast("NDArray", functions.op("one_hot", indices, depth=out.shape[1], dtype=out.dtype, out=out))


def histogram(a: NDArray, bins: int | NDArray = 10, range: tuple[float, float] | None = None) -> list[NDArray]:
    """Count the elements of each bin; a bin includes its lower edge, the last one also its upper edge.

    Args:
        a: an array of any shape.
        bins: the number of bins of equal width, or an increasing array of edges of shape (n + 1,).
        range: the lowest and highest edge (default: the smallest and largest element; reading them blocks).

    Returns:
        The counts, int64 of shape (n,), and the edges, of the input's dtype and shape (n + 1,).

    Raises:
        ValueError: the array is empty, and ``range`` is not set.
    """
    if isinstance(bins, NDArray):
        return cast("list[NDArray]", functions.op("_histogram", a, bins))
    if range is None:
        if not a.size:
            raise ValueError(f"histogram: a has shape {a.shape}, expected a non-empty array; or pass range=")
        low, high = (float(functions.op(name, a).asscalar()) for name in ("min", "max"))
        range = (low, high) if low < high else (low - 0.5, high + 0.5)
    return cast("list[NDArray]", functions.op("_histogram", a, bin_cnt=bins, range=range))
