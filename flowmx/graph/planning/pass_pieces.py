"""Cuts of a pass into pieces, so that gradients are used, and parameters awaited, before the whole pass has run.

If a backward pass were one operation, it would release all gradients at its end: none could be reduced over devices or
sent to other machines while others are computed. So it is cut after a certain number of gradient bytes. A forward pass
is cut before a certain number of parameter bytes, which may still be arriving.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TypeVar

from flowmx.graph.node import Node

__all__ = ["MAX_PIECES", "MIN_BYTES", "cuts", "first_read", "pieces"]

T = TypeVar("T")

MIN_BYTES = 1 << 20
"""The smallest piece in bytes that is worth a separate engine operation."""

MAX_PIECES = 8
"""The largest number of pieces of a pass."""


def cuts(sizes: Sequence[int]) -> list[int]:
    """Return the positions before which a pass is cut, in order, without 0.

    Args:
        sizes: for each step, the bytes of gradients that it completes, or of parameters that it reads first.
    """
    limit = max(MIN_BYTES, sum(sizes) // MAX_PIECES)
    result, filled = [], 0
    for place, nbytes in enumerate(sizes):
        filled += nbytes
        if filled >= limit and place + 1 < len(sizes):
            result.append(place + 1)
            filled = 0
    return result if sum(sizes) >= MIN_BYTES else []


def first_read(nodes: Iterable[Node], variables: Iterable[Node]) -> list[list[Node]]:
    """Return for each node, in order, the variables that it is the first to read."""
    unread = set(variables)
    result = []
    for node in nodes:
        result.append([source for source in dict.fromkeys(entry.node for entry in node.inputs) if source in unread])
        unread.difference_update(result[-1])
    return result


def pieces(steps: Sequence[T], index: Iterable[int]) -> list[Sequence[T]]:
    """Return the steps between cuts."""
    edges = [0, *index, len(steps)]
    return [steps[start:stop] for start, stop in itertools.pairwise(edges)]
