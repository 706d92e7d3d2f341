"""Sharding of data over ``num_parts`` workers of a job; ``part_index`` is the index of this worker's shard."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

Rule = Literal["even", "longer first", "shorter last", "drop rest", "equal"]

_RULES: dict[Rule, Callable[[int, int, int], tuple[int, int]]] = {
    "even": lambda n, i, parts: (n * i // parts, n * (i + 1) // parts),
    "longer first": lambda n, i, parts: (_first_longer(n, i, parts), _first_longer(n, i + 1, parts)),
    "shorter last": lambda n, i, parts: (-(-n // parts) * i, -(-n // parts) * (i + 1)),
    "drop rest": lambda n, i, parts: (n // parts * i, n // parts * (i + 1)),
    "equal": lambda n, i, parts: (_equal(n, i, parts), _equal(n, i, parts) - (-n // parts)),
}
"""The first index of a share and the index after its last, by rule.

MXNet's iterators differ if the samples do not divide evenly: lengths that differ by at most one (``"even"``, or the
longer ones first), a shorter last share, a remainder that no worker reads, or overlapping shares of equal length.
"""


def _first_longer(count: int, index: int, parts: int) -> int:
    return count // parts * index + min(index, count % parts)


def _equal(count: int, index: int, parts: int) -> int:
    return index * (count - -(-count // parts)) // max(1, parts - 1)


def check_part(part_index: int, num_parts: int) -> None:
    """Check the number of a share.

    Raises:
        ValueError: the part does not exist.
    """
    if not 0 <= part_index < num_parts:
        raise ValueError(f"part_index is {part_index} and num_parts {num_parts}, expected 0 <= part_index < num_parts")


def share(count: int, part_index: int, num_parts: int, rule: Rule = "even") -> slice:
    """Return the samples that one worker reads, as a slice; it may extend beyond the last sample.

    Raises:
        ValueError: the part does not exist.

    Example:
        >>> [share(10, index, 3) for index in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """
    check_part(part_index, num_parts)
    return slice(*_RULES[rule](count, part_index, num_parts))


def byte_share(size: int, part_index: int, num_parts: int) -> tuple[int, int]:
    """Return the byte range of a RecordIO file that one worker reads. As in MXNet, its limits are multiples of 4.

    Raises:
        ValueError: the part does not exist.
    """
    check_part(part_index, num_parts)
    length = math.ceil(math.ceil(size / num_parts) / 4) * 4
    return min(length * part_index, size), min(length * (part_index + 1), size)
