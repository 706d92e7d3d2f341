"""Greedy non-maximum suppression, shared by several detection operators.

Boxes are sorted by descending score. A box survives if no surviving box before it overlaps it by too much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from flowmx.ops.registry.operators import Array, Run
from flowmx.ops.registry.tensors import ArrayNamespace

_ROWS = 256


@dataclass(frozen=True)
class Rule:
    """The rule for dropping boxes.

    Attributes:
        threshold: the intersection over union above which a box is dropped.
        reached: whether an overlap equal to the threshold also drops a box.
        margin: added to each side: 1 if both ends of a box belong to it.
        most: the maximum number of surviving boxes; below 0: no limit.
    """

    threshold: float
    reached: bool = False
    margin: int = 0
    most: int = -1


@dataclass(frozen=True)
class Boxes:
    """The boxes of several samples, by descending score.

    Attributes:
        low: upper left corners (batch, boxes, 2).
        high: lower right corners (batch, boxes, 2).
        areas: (batch, boxes).
        kinds: classes (batch, boxes); only boxes of equal classes are compared; None compares all.
        counts: the number of boxes of each sample (batch,), int64; later boxes are ignored.
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
    """Register a faster ``function(boxes, rule)`` for a device type; it returns None if it does not apply."""

    def register(function: F) -> F:
        _fast[device_type] = function
        return function

    return register


def keep_mask(run: Run, boxes: Boxes, rule: Rule) -> Array:
    """Return the mask of surviving boxes (batch, boxes), bool."""
    fast = _fast.get(run.device.kernels)
    mask = None if fast is None else fast(boxes, rule)
    return plain(run.xp, boxes, rule) if mask is None else mask


def plain(xp: ArrayNamespace, boxes: Boxes, rule: Rule) -> Array:
    """Return the mask of surviving boxes (batch, boxes), bool, computed with the array namespace."""
    masks = xp.zeros(boxes.areas.shape, bool)
    for example, count in enumerate(boxes.counts.tolist()):
        is_kept = masks[example, :count]
        is_kept[...] = True
        for start in range(0, count, _ROWS):
            _decide_block(xp, boxes, rule, example, is_kept, start)
        if rule.most >= 0:
            is_kept &= xp.cumsum(is_kept) <= rule.most
    return masks


def _decide_block(xp: ArrayNamespace, boxes: Boxes, rule: Rule, example: int, is_kept: Array, start: int) -> None:
    """Decide which of the next boxes survive, and drop the later boxes that these overlap."""
    part = slice(start, min(start + _ROWS, len(is_kept)))
    over = _find_overlaps(xp, boxes, rule, example, part, len(is_kept))
    size = part.stop - start
    before, among = is_kept[part].copy(), xp.triu(over[:, :size], 1)
    # Each iteration decides at least one more box, usually all.
    while True:
        remaining = before & ~among[is_kept[part]].any(axis=0)
        if bool((remaining == is_kept[part]).all()):
            break
        is_kept[part] = remaining
    is_kept[part.stop :] &= ~over[is_kept[part], size:].any(axis=0)


def _find_overlaps(xp: ArrayNamespace, boxes: Boxes, rule: Rule, example: int, part: slice, count: int) -> Array:
    """Return a bool matrix: whether each box of a part drops each box from the start of the part on."""
    low, high, areas = (array[example, part.start : count] for array in (boxes.low, boxes.high, boxes.areas))
    size = part.stop - part.start
    sides = xp.minimum(high[:size, None], high) - xp.maximum(low[:size, None], low) + rule.margin
    common = xp.maximum(sides, 0).prod(axis=-1)
    union = areas[:size, None] + areas - common
    overlap = xp.where(common > 0, common / xp.where(common > 0, union, 1), 0)
    drops = overlap >= rule.threshold if rule.reached else overlap > rule.threshold
    if boxes.kinds is not None:
        kinds = boxes.kinds[example, part.start : count]
        drops &= kinds[:size, None] == kinds
    return drops
