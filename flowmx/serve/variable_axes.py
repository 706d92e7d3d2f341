"""The variable axes of a model's inputs: which of them must have equal lengths. This module does no I/O.

The tokens of a sentence and their mask share an axis: their lengths are equal. The two sentences of a comparison may
have different lengths. A trial of the model with zeros shows which case holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

__all__ = ["Axis", "shared_axes", "trial_lengths"]


class Axis(NamedTuple):
    """A variable axis.

    Attributes:
        input: index of the input.
        axis: index of the axis in a row of the input.
    """

    input: int
    axis: int


def trial_lengths(lengths: Sequence[int]) -> tuple[int, int]:
    """Return two different lengths for trials, if possible of those that are compiled anyway.

    Neither is 1, which would broadcast.

    Args:
        lengths: the lengths that variable axes are padded to, in increasing order.
    """
    usable = [length for length in lengths if length > 1] or [2]
    if len(usable) > 1:
        return usable[0], usable[1]
    return usable[0], usable[0] - 1 if usable[0] > 2 else usable[0] + 1


def shared_axes(
    axes: Sequence[Axis], lengths: tuple[int, int], accepts: Callable[[Sequence[int]], bool]
) -> list[list[int]]:
    """Return the groups of axes that must have equal lengths, as indices.

    Args:
        axes: the variable axes.
        lengths: two lengths.
        accepts: returns whether the model accepts these lengths, one for each axis.
    """
    groups, rest, size = list[list[int]](), list(range(len(axes))), 1
    while 2 * size <= len(rest):  # if the model accepts one length for these axes, it accepts it for all the others
        chosen = next((each for each in combinations(rest, size) if accepts(_trial(len(axes), each, lengths))), None)
        if chosen is None:
            size += 1
        else:
            groups.append(list(chosen))
            rest = [axis for axis in rest if axis not in chosen]
    return [*groups, rest]


def _trial(count: int, chosen: Sequence[int], lengths: tuple[int, int]) -> list[int]:
    """Return the second length for the chosen axes, and the first one for the others."""
    return [lengths[axis in chosen] for axis in range(count)]
