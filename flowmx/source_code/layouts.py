"""Arguments of layers with one number for each axis."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["per_axis", "square"]


def per_axis(values: Sequence[int], count: int, default: int) -> tuple[int, ...]:
    """Return one number for each axis."""
    return (*values, *[default] * (count - len(values)))


def square(values: Sequence[int]) -> object:
    """Return equal numbers as one number."""
    return values[0] if len(set(values)) == 1 else tuple(values)
