"""``mx.np._internal``: internal operators of MXNet that programs call directly."""

from __future__ import annotations

from typing import Any

__all__ = ["boolean_mask_assign_scalar", "boolean_mask_assign_tensor"]


def boolean_mask_assign_scalar(
    data: object, mask: object, value: float, *, start_axis: int = 0, out: object = None
) -> Any:
    """Set elements to a number where a mask is true. The mask covers the axes of the array from ``start_axis``."""
    return boolean_mask_assign_tensor(data, mask, value, start_axis=start_axis, out=out)


def boolean_mask_assign_tensor(data: Any, mask: Any, value: Any, *, start_axis: int = 0, out: Any = None) -> Any:
    """Set elements to values where a mask is true. The mask covers the axes of the array from ``start_axis``.

    Args:
        data: the array, of any shape.
        mask: a boolean array.
        value: an array that broadcasts to ``data[:, ..., mask]``, with ``start_axis`` full axes before the mask.
        start_axis: the first axis of the mask.
        out: the array for the result; pass ``data`` to change it in place.

    Raises:
        ShapeError: the value does not broadcast to the selected elements.
        IndexError: the shape of the mask differs from the axes of the array.
    """
    result = data.copy() if out is None else out
    if result is not data and out is not None:
        result[:] = data
    result[(slice(None),) * start_axis + (mask,)] = value
    return result
