"""Cuts of a pass into pieces, so that gradients leave, and parameters are awaited, before the whole pass is done.

A backward pass in one operation would hand over all gradients at its end: none could be summed over devices, or travel
to other machines, while the others are computed. So it is cut after every so many bytes of gradients; and a forward
pass before every so many bytes of parameters, which may still be on their way.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TypeVar

from flowmx.graph.node import Node

__all__ = ["LEAST", "MOST", "cuts", "first_read", "pieces"]

T = TypeVar("T")

LEAST = 1 << 20
"""Bytes that are worth an operation of the engine of their own."""

MOST = 8
"""Pieces of a pass."""


def cuts(sizes: Sequence[int]) -> list[int]:
    """The places before which a pass is cut, in order, none of them 0.

    Args:
        sizes: of each step, the bytes of what it hands over, or is the first to need.
    """
    limit = max(LEAST, sum(sizes) // MOST)
    found, filled = [], 0
    for place, nbytes in enumerate(sizes):
        filled += nbytes
        if filled >= limit and place + 1 < len(sizes):
            found.append(place + 1)
            filled = 0
    return found if sum(sizes) >= LEAST else []


def first_read(nodes: Iterable[Node], variables: Iterable[Node]) -> list[list[Node]]:
    """For each of some nodes in order, the variables that it is the first to read."""
    left = set(variables)
    found = []
    for node in nodes:
        found.append([each for each in dict.fromkeys(entry.node for entry in node.inputs) if each in left])
        left.difference_update(found[-1])
    return found


def pieces(steps: Sequence[T], at: Iterable[int]) -> list[Sequence[T]]:
    """The steps between cuts."""
    edges = [0, *at, len(steps)]
    return [steps[start:stop] for start, stop in itertools.pairwise(edges)]
