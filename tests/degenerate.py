"""Points at which formulas of gradients divide by zero (zeros, ones, equal numbers, infinities), and one-sided slopes.

A gradient is right at such a point if it lies between the slopes on either side: where a function has a corner,
each number between them is a subgradient. Where a slope is infinite, the gradient is at least a number or infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import flowmx as mx

Function = Callable[[Sequence[Any]], list[Any]]
"""A function from arrays of float64 to arrays."""

STEP = 1e-5
_CLOSER = 16
"""The ratio of two steps; a finite slope is nearly the same for both."""


def _all(value: float) -> Callable[[Any], Any]:
    return lambda array: np.full_like(array, value)


def _some(value: float, every: int) -> Callable[[Any], Any]:
    def filled(array: Any) -> Any:
        copy = array.copy()
        copy.reshape(-1)[::every] = value
        return copy

    return filled


FILLS: dict[str, Callable[[Any], Any]] = {
    "zeros": _all(0.0),
    "ones": _all(1.0),
    "equal numbers": _all(0.5),
    "some zeros": _some(0.0, 3),
    "one zero": _some(0.0, 1 << 30),
    "one infinity": _some(np.inf, 1 << 30),
    "one negative infinity": _some(-np.inf, 1 << 30),
}


def points(arrays: Sequence[Any], wrt: Sequence[int]) -> Iterator[tuple[str, list[Any]]]:
    """Yield degenerate points near a call's inputs: with all differentiable inputs filled, and with each alone."""
    groups = [tuple(wrt), *((each,) for each in wrt if len(wrt) > 1)]
    for group in groups:
        for name, fill in FILLS.items():
            where = name if group == tuple(wrt) else f"{name} in input {group[0]}"
            yield (
                where,
                [fill(each) if position in group and each.size else each for position, each in enumerate(arrays)],
            )


def values_of(function: Function, arrays: Sequence[Any], train: bool = True) -> list[Any] | None:
    """Return the results of a function; None if it refuses the arrays, or if a result is not finite."""
    try:
        with mx.autograd.pause(train_mode=train), np.errstate(all="ignore"):
            values = [each.asnumpy() for each in function(arrays)]
    except (ValueError, ArithmeticError, np.linalg.LinAlgError):
        return None
    return values if all(np.isfinite(each).all() for each in values) else None


def gradients_of(
    function: Callable[[Sequence[Any]], list[Any]], arrays: Sequence[Any], wrt: Sequence[int], weights: Sequence[Any],
    make: Callable[[Any], Any], train: bool = True,
) -> list[Any]:  # fmt: skip
    """Return the gradients of a weighted sum of a function's results with respect to arrays that ``make`` creates."""
    arguments: list[Any] = list(arrays)
    for position in wrt:
        arguments[position] = make(arrays[position])
        arguments[position].attach_grad()
    with mx.autograd.record(train_mode=train):
        outputs = function(arguments)
    heads = [make(weight).astype(each.dtype) for weight, each in zip(weights, outputs, strict=True)]
    mx.autograd.backward(outputs, heads, train_mode=train)
    return [arguments[position].grad.asnumpy() for position in wrt]


def weights_for(values: Sequence[Any]) -> list[Any]:
    """Return factors from 0.5 to 1.5 for a weighted sum of results."""
    rng = np.random.default_rng(1)
    return [rng.uniform(0.5, 1.5, each.shape) for each in values]


def wrong_gradients(
    function: Function, before: Sequence[Any], wrt: Sequence[int], make: Callable[[Any], Any], train: bool = True
) -> Iterator[tuple[str, str, bool]]:
    """Return the gradients that differ from the slopes at degenerate points near a call's inputs.

    Yields:
        The point, the error, and whether the gradient is a finite number.
    """
    for where, arrays in points(before, wrt):
        base = values_of(function, arrays, train)
        if base is None:
            continue
        weights = weights_for(base)
        for position, gradient in zip(wrt, gradients_of(function, arrays, wrt, weights, make, train), strict=True):
            for index in _chosen(arrays[position], before[position]):

                def rise(value: float, position: int = position, index: int = index) -> float:
                    moved = [each.copy() if n == position else each for n, each in enumerate(arrays)]  # noqa: B023
                    moved[position].reshape(-1)[index] = value
                    values = values_of(function, moved, train)
                    if values is None or any(m.shape != b.shape for m, b in zip(values, base, strict=True)):  # noqa: B023
                        return np.nan
                    return sum(float((w * (m - b)).sum()) for w, m, b in zip(weights, values, base, strict=True))  # noqa: B023

                slope, value = gradient.reshape(-1)[index], arrays[position].reshape(-1)[index]
                sides, bounded = _slopes(rise, value) if np.isfinite(value) else ([], False)
                if not (_between(slope, sides) if sides and bounded else not np.isnan(slope)):
                    message = f"input {position}, element {index}: the gradient is {slope}, slopes are {sides}"
                    yield where, message, bool(np.isfinite(slope))


def _chosen(filled: Any, before: Any) -> list[int]:
    """Return the positions of two filled elements, or of all if there are fewer."""
    changed = np.flatnonzero((filled != before).reshape(-1))
    return [int(position) for position in ({changed[0], changed[-1]} if changed.size else ())]


def _slopes(rise: Callable[[float], float], value: float) -> tuple[list[float], bool]:
    """Return the slopes on both sides of a value, where the function is defined, and whether all are finite."""
    slopes, bounded = [], True
    for step in (STEP, -STEP):
        far, near = (rise(value + each) / each for each in (step, step / _CLOSER))
        if np.isfinite(near):
            bounded &= bool(abs(far - near) <= 1e-3 * (1 + abs(near)))
            slopes.append(near)
    return slopes, bounded


def _between(gradient: float, sides: Sequence[float]) -> bool:
    low, high = min(sides), max(sides)
    return bool(low - 1e-3 * (1 + abs(low)) <= gradient <= high + 1e-3 * (1 + abs(high)))
