"""Greedy non-maximum suppression, which several operators of detection share.

Boxes come by falling score; a box is left if none that is left before it overlaps it by too much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from flowmx.ops.registry.operators import Array, Run

_ROWS = 256


@dataclass(frozen=True)
class Rule:
    """The rule by which a box is dropped.

    Attributes:
        threshold: the intersection over union above which a box is dropped.
        reached: an overlap equal to the threshold drops it too.
        margin: added to each side: 1 where both ends of a box are pixels of it.
        most: the number of boxes after which none is left any more; below 0 there is no limit.
    """

    threshold: float
    reached: bool = False
    margin: int = 0
    most: int = -1


@dataclass(frozen=True)
class Boxes:
    """The boxes of some examples, by falling score.

    Attributes:
        low: upper left corners (batch, boxes, 2).
        high: lower right corners (batch, boxes, 2).
        areas: (batch, boxes).
        kinds: classes (batch, boxes), of which only equal ones are compared; None compares all.
        counts: how many boxes of each example there are (batch,), int64; what follows them is not looked at.
    """

    low: Array
    high: Array
    areas: Array
    kinds: Array | None
    counts: Array


Suppressor = Callable[[Boxes, Rule], "Array | None"]
F = TypeVar("F", bound=Suppressor)
_fast: dict[str, Suppressor] = {}


def suppressor(device_type: str) -> Callable[[F], F]:
    """Register a faster ``function(boxes, rule)`` for a device type; it returns None where it is of no use."""

    def register(function: F) -> F:
        _fast[device_type] = function
        return function

    return register


def left_of(run: Run, boxes: Boxes, rule: Rule) -> Array:
    """Which boxes are left (batch, boxes), bool."""
    fast = _fast.get(run.device.kernels)
    found = None if fast is None else fast(boxes, rule)
    return plain(run.xp, boxes, rule) if found is None else found


def plain(xp: Any, boxes: Boxes, rule: Rule) -> Array:
    """Which boxes are left (batch, boxes), bool, by the array namespace."""
    made = xp.zeros(boxes.areas.shape, bool)
    for example, count in enumerate(boxes.counts.tolist()):
        left = made[example, :count]
        left[...] = True
        for start in range(0, count, _ROWS):
            _settle(xp, boxes, rule, example, left, start)
        if rule.most >= 0:
            left &= xp.cumsum(left) <= rule.most
    return made


def _settle(xp: Any, boxes: Boxes, rule: Rule, example: int, left: Array, start: int) -> None:
    """Find out which of the next boxes are left, and drop what these overlap behind them."""
    part = slice(start, min(start + _ROWS, len(left)))
    over = _overlapping(xp, boxes, rule, example, part, len(left))
    size = part.stop - start
    before, among = left[part].copy(), xp.triu(over[:, :size], 1)
    # Each turn settles at least one more box, usually all.
    while True:
        now = before & ~among[left[part]].any(axis=0)
        if bool((now == left[part]).all()):
            break
        left[part] = now
    left[part.stop :] &= ~over[left[part], size:].any(axis=0)


def _overlapping(xp: Any, boxes: Boxes, rule: Rule, example: int, part: slice, count: int) -> Array:
    """Which boxes of a part would drop which of those from its start on, bool."""
    low, high, areas = (each[example, part.start : count] for each in (boxes.low, boxes.high, boxes.areas))
    size = part.stop - part.start
    sides = xp.minimum(high[:size, None], high) - xp.maximum(low[:size, None], low) + rule.margin
    common = xp.maximum(sides, 0).prod(axis=-1)
    union = areas[:size, None] + areas - common
    overlap = xp.where(common > 0, common / xp.where(common > 0, union, 1), 0)
    found = overlap >= rule.threshold if rule.reached else overlap > rule.threshold
    if boxes.kinds is not None:
        kinds = boxes.kinds[example, part.start : count]
        found &= kinds[:size, None] == kinds
    return found
