"""MXNet's reshape codes for a shape in which several lengths vary: 0 keeps an axis, -3 merges two, -4 splits one."""

from __future__ import annotations

from flowmx.contrib.onnx.lengths import Length, Lengths, Varying


def reshape_codes(old: Lengths, new: Lengths) -> tuple[int, ...] | None:
    """The codes that turn one shape into the other, axis by axis; None where they do not."""
    codes: list[int] = []
    step: tuple[int, ...]
    while new:
        if old and old[0] == new[0]:
            step, taken, made = (0,), 1, 1
        elif len(old) > 1 and product(old[0], old[1]) == new[0]:
            step, taken, made = (-3,), 2, 1
        elif old and len(new) > 1 and product(new[0], new[1]) == old[0]:
            pair = tuple(-1 if isinstance(length, Varying) else length for length in new[:2])
            step, taken, made = (-4, *pair), 1, 2
        else:
            return None
        if step[1:] == (-1, -1):
            return None
        codes += step
        old, new = old[taken:], new[made:]
    return None if old else tuple(codes)


def product(one: Length, other: Length) -> Length:
    """The product of two lengths."""
    pairs = [length if isinstance(length, Varying) else (length, length) for length in (one, other)]
    first, second = (pairs[0][turn] * pairs[1][turn] for turn in (0, 1))
    return first if first == second else Varying(first, second)
