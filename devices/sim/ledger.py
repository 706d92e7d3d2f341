"""A ledger of a simulated device's memory: the blocks in use at the peak, their holders and their roles.

The pool tells it of each block that comes into use and that is free again. A block is *leased* again and again, so what
counts are leases, by number. What a lease is (a weight, a gradient, ...) is often known only later, when somebody who
knows the arrays says so; the leases at the peak are found by going through the ledger again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from flowmx.devices.blocks import Block, words
from flowmx.devices.streams import here
from flowmx.engine.origin import Origin

OTHER, COPIES, STORES = "activations and workspace", "inputs and copies", "kvstore"


class Lease(NamedTuple):
    """One use of a block.

    Attributes:
        size: bytes.
        holder: the operation that it was allocated for: its name and origin.
        is_copy: whether it was allocated for bytes from elsewhere.
    """

    size: int
    holder: tuple[str, Origin | None] | None
    is_copy: bool

    def role(self) -> str:
        """The role of this memory where none was assigned."""
        if self.holder is not None and self.holder[0].startswith(STORES):
            return STORES
        return COPIES if self.is_copy else OTHER


class Ledger:
    """The leases of one pool's blocks.

    Args:
        compute: the actor that computes; other ones copy.

    Attributes:
        peak: the most bytes in use at one time.
    """

    def __init__(self, compute: object) -> None:
        self._compute = compute
        self._leases: list[Lease] = []
        self._current: dict[Block, int] = {}
        self._entries: list[tuple[int, bool]] = []
        self._roles: dict[int, str] = {}
        self._used = self.peak = self._peak_at = 0

    def note(self, block: Block, is_taken: bool) -> None:
        """Record that a block comes into use, or is free again."""
        if is_taken:
            number = self._current[block] = len(self._leases)
            is_copy = here.launch is not None and here.launch.op.actor is not self._compute
            self._leases.append(Lease(block.size, block.holder, is_copy))
            self._used += block.size
        else:
            number = self._current.pop(block)
            self._used -= block.size
        self._entries.append((number, is_taken))
        if self._used > self.peak:
            self.peak, self._peak_at = self._used, len(self._entries)

    def name(self, blocks: Iterable[Block], role: str) -> None:
        """Name the role of blocks in use; the first name of a lease stays."""
        for block in blocks:
            number = self._current.get(block)
            if number is not None:
                self._roles.setdefault(number, role)

    def by_role(self) -> dict[str, int]:
        """The bytes in use at the peak by role, the largest first."""
        counted: Counter[str] = Counter()
        for number in self._at_peak():
            lease = self._leases[number]
            counted[self._roles.get(number) or lease.role()] += lease.size
        return dict(counted.most_common())

    def holders(self, count: int) -> list[tuple[str, int]]:
        """The largest holders of memory at the peak: pairs (what it was allocated for, bytes)."""
        counted: Counter[str] = Counter()
        for number in self._at_peak():
            counted[words(self._leases[number].holder)] += self._leases[number].size
        return counted.most_common(count)

    def _at_peak(self) -> list[int]:
        live: dict[int, None] = {}
        for number, is_taken in self._entries[: self._peak_at]:
            if is_taken:
                live[number] = None
            else:
                del live[number]
        return list(live)
