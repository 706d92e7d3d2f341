"""Validation of shapes from requests, messages and files, before their sizes are multiplied. This module does no I/O.

Multiplying n unbounded integers takes time proportional to n squared: 20,000 sizes of 2**63 - 1 take minutes. All
formats therefore validate their shapes here.
"""

from __future__ import annotations

import math

__all__ = ["MAX_DIMENSIONS", "ShapeError", "ShapeOverflow", "read_shape"]

MAX_DIMENSIONS = 32
"""Maximum number of dimensions of an array, the limit of NumPy 1."""
_LIMIT = 1 << 63


class ShapeError(ValueError):
    """An invalid shape. The message has the shape and the expected one."""


class ShapeOverflow(ShapeError):
    """A shape of 2**63 bytes or more."""


def read_shape(value: object, itemsize: int = 1) -> tuple[int, ...]:
    """Return a shape whose sizes can be multiplied safely.

    The time is linear in the length of `value`.

    Args:
        value: a list or tuple of sizes.
        itemsize: bytes per element.

    Raises:
        ShapeError: `value` is not a list of non-negative integers, or has more than `MAX_DIMENSIONS` sizes.
        ShapeOverflow: the array has 2**63 bytes or more; sizes of 0 count as 1, as in NumPy.
    """
    if not isinstance(value, list | tuple):
        raise ShapeError(f"is {_short(value)}, expected a list of sizes")
    if len(value) > MAX_DIMENSIONS:
        raise ShapeError(f"has {len(value)} dimensions, expected at most {MAX_DIMENSIONS}")
    for size in value:
        if type(size) is not int or not 0 <= size < _LIMIT:
            raise ShapeError(f"has the size {_short(size)}, expected integers from 0 to 2**63 - 1")
    if math.prod(size or 1 for size in value) * itemsize >= _LIMIT:
        raise ShapeOverflow(f"is {list(value)}, expected an array of less than 2**63 bytes")
    return tuple(value)


def _short(value: object) -> str:
    """Return a short description of a value of any size."""
    if isinstance(value, int) and value.bit_length() > 128:  # converting it to digits takes quadratic time
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str | bytes):
        return repr(value[:40])
    if value is None or isinstance(value, int | float):
        return repr(value)
    return f"a {type(value).__name__}"  # its repr may be recursive or huge
