"""``mx.np._internal``: operators of MXNet's that programs call below ``mx.np``."""

from __future__ import annotations

from typing import Any

__all__ = ["boolean_mask_assign_scalar", "boolean_mask_assign_tensor"]


def boolean_mask_assign_scalar(data: Any, mask: Any, value: float, *, start_axis: int = 0, out: Any = None) -> Any:
    """The array with a number where a mask is true, whose axes are the array's from ``start_axis`` on."""
    return boolean_mask_assign_tensor(data, mask, value, start_axis=start_axis, out=out)


def boolean_mask_assign_tensor(data: Any, mask: Any, value: Any, *, start_axis: int = 0, out: Any = None) -> Any:
    """The array with values where a mask is true, whose axes are the array's from ``start_axis`` on.

    Args:
        data: the array, of any shape.
        mask: truth values.
        value: what broadcasts to ``data[:, ..., mask]``, with ``start_axis`` whole axes before the mask.
        start_axis: the first of the mask's axes.
        out: the array to put the result into; ``data`` itself is changed in place.

    Raises:
        ShapeError: the value does not broadcast to what the mask chooses.
        IndexError: the mask does not fit the array's axes.
    """
    made = data.copy() if out is None else out
    if made is not data and out is not None:
        made[:] = data
    made[(slice(None),) * start_axis + (mask,)] = value
    return made
