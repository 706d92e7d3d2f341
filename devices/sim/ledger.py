"""A record of a simulated device's memory: the blocks in use at the peak, with their holders and roles.

The pool reports each block that is allocated or freed. A block is *leased* repeatedly, so the ledger records numbered
leases. The role of a lease (a weight, a gradient, ...) is often assigned only later, by code that knows the arrays. The
leases at the peak are found by replaying the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from flowmx.devices.block_pool import Block
from flowmx.devices.out_of_memory import describe_holder
from flowmx.devices.streams import thread_streams
from flowmx.engine.origin import Origin

OTHER, COPIES, STORES = "activations and workspace", "inputs and copies", "kvstore"


class Lease(NamedTuple):
    """One use of a block.

    Attributes:
        size: bytes.
        holder: the name and origin of the operation that allocated it.
        is_copy: whether it was allocated for a copy.
    """

    size: int
    holder: tuple[str, Origin | None] | None
    is_copy: bool

    def role(self) -> str:
        """Return the role of this memory if none was assigned."""
        if self.holder is not None and self.holder[0].startswith(STORES):
            return STORES
        return COPIES if self.is_copy else OTHER


class Ledger:
    """The leases of one pool's blocks.

    Args:
        compute: the compute actor; all others copy.

    Attributes:
        peak: maximum number of bytes in use at one time.
    """

    def __init__(self, compute: object) -> None:
        self._compute = compute
        self._leases: list[Lease] = []
        self._current: dict[Block, int] = {}
        self._entries: list[tuple[int, bool]] = []
        self._roles: dict[int, str] = {}
        self._used = self.peak = self._peak_at = 0

    def record(self, block: Block, is_allocated: bool) -> None:
        """Record that a block is allocated or freed."""
        if is_allocated:
            number = self._current[block] = len(self._leases)
            is_copy = thread_streams.launch is not None and thread_streams.launch.op.actor is not self._compute
            self._leases.append(Lease(block.size, block.holder, is_copy))
            self._used += block.size
        else:
            number = self._current.pop(block)
            self._used -= block.size
        self._entries.append((number, is_allocated))
        if self._used > self.peak:
            self.peak, self._peak_at = self._used, len(self._entries)

    def name(self, blocks: Iterable[Block], role: str) -> None:
        """Assign a role to blocks in use; the first role of a lease is kept."""
        for block in blocks:
            number = self._current.get(block)
            if number is not None:
                self._roles.setdefault(number, role)

    def by_role(self) -> dict[str, int]:
        """Return the bytes in use at the peak by role, largest first."""
        counted: Counter[str] = Counter()
        for number in self._leases_at_peak():
            lease = self._leases[number]
            counted[self._roles.get(number) or lease.role()] += lease.size
        return dict(counted.most_common())

    def holders(self, count: int) -> list[tuple[str, int]]:
        """Return the largest holders of memory at the peak, as pairs (description, bytes)."""
        counted: Counter[str] = Counter()
        for number in self._leases_at_peak():
            counted[describe_holder(self._leases[number].holder)] += self._leases[number].size
        return counted.most_common(count)

    def _leases_at_peak(self) -> list[int]:
        live: dict[int, None] = {}
        for number, is_allocated in self._entries[: self._peak_at]:
            if is_allocated:
                live[number] = None
            else:
                del live[number]
        return list(live)
