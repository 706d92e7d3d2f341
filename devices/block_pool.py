"""Stream-aware pools of device memory: work in flight may still use a freed block.

A block stores, by stream, the token of the last operation that used it. Before a block is allocated on a stream, that
stream waits for the tokens of other streams, at no cost if they are done. The pool tries, in this order: a free block
that needs no wait, new memory, a free block of another stream. If all fail, it waits for all work in flight, returns
its free blocks to the device, and tries once more.

The pool's type defines the rounding of sizes, as in MXNet: ``Naive`` keeps blocks of exact sizes (in pages), ``Round``
keeps powers of two up to a cutoff and multiples of the cutoff above it, so that varying shapes reuse blocks, and
``Unpooled`` keeps no free blocks.
"""

from __future__ import annotations

import gc
import math
import weakref
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from flowmx import forks, settings
from flowmx.devices.out_of_memory import describe_holder, message
from flowmx.devices.streams import Launch, Stream, Token, thread_streams
from flowmx.engine.origin import Origin
from flowmx.errors import OutOfMemory

PAGE = 4096
"""The size of a page; blocks consist of whole pages."""


class Ticket(weakref.ref[Any]):
    """A weak reference to a block's holder, which returns the block when the holder is freed."""

    __slots__ = ("block",)
    block: Block


class Block:
    """A block of a device's memory.

    Attributes:
        size: bytes.
        memory: the backend's handle.
        address: its start address.
        uses: by stream, the token of the last operation that used it.
        holder: the name and origin of the operation that allocated it, if any.
        launch: the launch that allocated it, until the launch's token is recorded in ``uses``.
        uses_are_known: whether all its uses are recorded: a variable holds it, or it was released during its launch.
        note: data of the backend.
        ticket: a weak reference to the holder; it enters the pool's queue when the holder is freed.
    """

    __slots__ = ("address", "holder", "launch", "memory", "note", "size", "ticket", "uses", "uses_are_known")

    def __init__(self, size: int, memory: Any, address: int) -> None:
        self.size = size
        self.memory = memory
        self.address = address
        self.uses: dict[Stream, Token] = {}
        self.holder: tuple[str, Origin | None] | None = None
        self.launch: Launch | None = None
        self.uses_are_known = False
        self.note: Any = None
        self.ticket: Ticket | None = None

    def lease(self, holder: object, returned: deque[Ticket]) -> None:
        """Return the block when `holder` is freed, which may happen in any thread at any time."""
        self.ticket = Ticket(holder, returned.append)
        self.ticket.block = self

    def is_released(self) -> bool:
        """Return whether its holder has been freed."""
        return self.ticket is not None and self.ticket() is None

    def is_idle_for(self, stream: Stream | None) -> bool:
        """Return whether a stream (None: the host) may use the block without waiting for another stream."""
        for user, token in self.uses.items():  # noqa: SIM110 - a loop is faster, and this runs for each small allocation
            if user is not stream and not token.done():
                return False
        return True


def round_naive(nbytes: int) -> int:
    """Round bytes up to whole pages."""
    return max(1, -(-nbytes // PAGE)) * PAGE


def round_up(nbytes: int) -> int:
    """Round bytes up to a power of two, or to a multiple of the cutoff above it."""
    step = 1 << settings.get().gpu_mem_pool_round_linear_cutoff
    if nbytes > step:
        return -(-nbytes // step) * step
    return max(PAGE, 1 << math.ceil(math.log2(max(1, nbytes))))


_ROUNDINGS: dict[str, Callable[[int], int]] = {"Naive": round_naive, "Round": round_up, "Unpooled": round_naive}


out_of_memory_observers: list[Callable[[str], None]] = []
"""Functions called with the message of an out-of-memory error before it is raised."""


class BlockPool:
    """A pool of blocks of one device's memory.

    Args:
        device: the device's name, for messages.
        allocate: allocates bytes on the device; returns a handle and the address, or None if there is no memory.
        free: frees a handle.
        limit: maximum number of bytes to allocate.
        total: the device's memory in bytes.
        synchronize: waits for all work launched on the device.
        kind: the pool's type (``Naive``, ``Round``, ``Unpooled``).

    Attributes:
        used, idle: the total sizes of blocks in use and of free blocks, in bytes.
        peak: maximum number of bytes in use at one time.
        allocations: the number of allocations.
        waited_reuses: the number of allocations that had to wait for another stream.
        returned: the tickets of returned blocks. C code appends them, so that no interrupt can lose a ticket.
        on_allocate: called with the bytes before each allocation; may raise an error.
        on_change: called with each block when it is allocated (True) or freed (False).
        newest_tokens: returns the newest token of each stream, for blocks that outlive their launch without a variable
            (the arena of a bound graph), so that any stream may have used them. None if there are no such blocks.
        on_excess: called when the memory is exhausted; the pool then exceeds its limit. None: raise an error.
    """

    def __init__(
        self, device: str, allocate: Callable[[int], tuple[Any, int] | None], free: Callable[[Any], None], limit: int,
        total: int, synchronize: Callable[[], None], kind: str,
    ) -> None:  # fmt: skip
        self.device = device
        self._allocate = allocate
        self._free_handle = free
        self.limit = limit
        self._total = total
        self._synchronize = synchronize
        self.kind = kind
        self._round = _ROUNDINGS[kind]
        self.used = self.idle = self.peak = self.allocations = self.waited_reuses = 0
        self.returned: deque[Ticket] = deque()
        self.on_allocate: Callable[[int], None] | None = None
        self.on_change: Callable[[Block, bool], None] | None = None
        self.newest_tokens: Callable[[], list[Token]] | None = None
        self.on_excess: Callable[[OutOfMemory], None] | None = None
        self._is_exceeded = False
        self._free: dict[int, list[Block]] = {}
        self._leased: dict[int, Block] = {}
        self.lock = forks.lock()

    # -- interface ---------------------------------------------------------------------------

    def acquire(self, nbytes: int, stream: Stream | None) -> Block:
        """Allocate a block of at least `nbytes` bytes for a stream (or the host, for None).

        Raises:
            OutOfMemory: there is no memory, even after all work is done and all free blocks are returned.
        """
        size = self._round(nbytes)
        with self.lock:
            self.allocations += 1
            if self.on_allocate is not None:
                self.on_allocate(nbytes)
            self.collect()
            block = self._idle_block(size, stream) or self._new_block(size) or self._busy_block(size, stream)
            if block is None:
                self._reclaim()
                block = self._new_block(size)
            if block is None:
                error = OutOfMemory(self._out_of_memory_message(nbytes, size))
                for observe in out_of_memory_observers:
                    observe(str(error))
                block = self._allocate_beyond_limit(error, size)
            self._leased[id(block)] = block
            self.used += size
            self.peak = max(self.peak, self.used)
            launch = thread_streams.launch
            block.holder = None if launch is None else (launch.op.name, launch.op.origin)
            block.launch = launch
            block.uses_are_known = False
            if self.on_change is not None:
                self.on_change(block, True)
        if launch is not None:
            launch.blocks.append(block)
        return block

    def rounded(self, nbytes: int) -> int:
        """Return the size of a block that holds `nbytes` bytes."""
        return self._round(nbytes)

    def free_bytes(self) -> int:
        """Return the bytes that can still be allocated."""
        with self.lock:
            self.collect()
            return max(0, self.limit - self.used)

    def trim(self) -> None:
        """Return every free block to the device."""
        with self.lock:
            self.collect()
            self._drop_free()

    def collect(self) -> None:
        """Collect returned blocks, except those of another thread's unfinished launch (locked)."""
        unfinished: list[Ticket] = []
        while self.returned:
            ticket = self.returned.popleft()
            block = ticket.block
            if block.launch is not None and block.launch is not thread_streams.launch:
                unfinished.append(ticket)
                continue
            if self._leased.pop(id(block), None) is None:
                continue
            if self.newest_tokens is not None and not block.uses_are_known and block.launch is None:
                block.uses |= {token.stream: token for token in self.newest_tokens()}
            self.used -= block.size
            if self.on_change is not None:
                self.on_change(block, False)
            if self.kind == "Unpooled":
                self._release(block)
            else:
                self._free.setdefault(block.size, []).append(block)
                self.idle += block.size
        self.returned.extend(unfinished)

    def holders(self) -> list[tuple[str, int]]:
        """Return the holders of memory, largest first, as pairs (description, bytes)."""
        with self.lock:
            self.collect()
            totals: Counter[str] = Counter()
            for block in self._leased.values():
                totals[describe_holder(block.holder)] += block.size
        return totals.most_common()

    # -- block selection (all locked) ------------------------------------------------------------------

    def _idle_block(self, size: int, stream: Stream | None) -> Block | None:
        blocks = self._free.get(size, [])
        for index in range(len(blocks) - 1, -1, -1):
            if blocks[index].is_idle_for(stream):
                return self._reuse(blocks, index, stream)
        return None

    def _busy_block(self, size: int, stream: Stream | None) -> Block | None:
        blocks = self._free.get(size, [])
        if not blocks:
            return None
        self.waited_reuses += 1
        return self._reuse(blocks, 0, stream)  # the block that was freed first

    def _reuse(self, blocks: list[Block], index: int, stream: Stream | None) -> Block:
        block = blocks.pop(index)
        self.idle -= block.size
        self.wait_for_uses(block, stream)
        return block

    def wait_for_uses(self, block: Block, stream: Stream | None) -> None:
        """Make a stream (or the host, for None) wait for the uses of a block."""
        for token in block.uses.values():
            if stream is None:
                token.finish()
            else:
                stream.wait(token)
        if stream is None:  # the host has waited, so earlier uses no longer matter
            block.uses.clear()
            block.note = None

    def _new_block(self, size: int) -> Block | None:
        if self.used + self.idle + size > self.limit and not self._is_exceeded:
            return None
        allocation = self._allocate(size)
        return None if allocation is None else Block(size, *allocation)

    def _allocate_beyond_limit(self, error: OutOfMemory, size: int) -> Block:
        if self.on_excess is None:
            raise error
        self._is_exceeded = True
        self.on_excess(error)
        allocation = self._allocate(size)
        if allocation is None:
            raise error
        return Block(size, *allocation)

    def _release(self, block: Block) -> None:
        for token in block.uses.values():
            token.finish()
        self._free_handle(block.memory)

    def _drop_free(self) -> None:
        for blocks in self._free.values():
            for block in blocks:
                self.idle -= block.size
                self._release(block)
        self._free.clear()

    def _reclaim(self) -> None:
        self._synchronize()
        gc.collect()  # frees arrays in reference cycles, such as those in the frames of an exception
        self.collect()
        self._drop_free()

    def _out_of_memory_message(self, nbytes: int, size: int) -> str:
        return message(
            self.device, nbytes, size, used=self.used, limit=self.limit, total=self._total, holders=self.holders()
        )
