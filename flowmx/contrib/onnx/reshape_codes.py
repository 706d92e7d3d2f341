"""MXNet's reshape codes for shapes with several varying lengths: 0 keeps an axis, -3 merges two, -4 splits one."""

from __future__ import annotations

from flowmx.contrib.onnx.dynamic_lengths import Length, Lengths, Varying


def reshape_codes(old: Lengths, new: Lengths) -> tuple[int, ...] | None:
    """Return the codes that change one shape to another, axis by axis, or None."""
    codes: list[int] = []
    step: tuple[int, ...]
    while new:
        if old and old[0] == new[0]:
            step, old_axes, new_axes = (0,), 1, 1
        elif len(old) > 1 and product(old[0], old[1]) == new[0]:
            step, old_axes, new_axes = (-3,), 2, 1
        elif old and len(new) > 1 and product(new[0], new[1]) == old[0]:
            pair = tuple(-1 if isinstance(length, Varying) else length for length in new[:2])
            step, old_axes, new_axes = (-4, *pair), 1, 2
        else:
            return None
        if step[1:] == (-1, -1):
            return None
        codes += step
        old, new = old[old_axes:], new[new_axes:]
    return None if old else tuple(codes)


def product(one: Length, other: Length) -> Length:
    """Return the product of two lengths."""
    pairs = [length if isinstance(length, Varying) else (length, length) for length in (one, other)]
    first, second = (pairs[0][index] * pairs[1][index] for index in (0, 1))
    return first if first == second else Varying(first, second)
