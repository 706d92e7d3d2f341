"""Pools of device memory that know streams: a freed block may still be in use by what was launched before.

A block remembers, by stream, the token of the last operation that used it. It is given to an operation on a stream
after that stream was made to wait for the tokens of others, which costs nothing where they are done or its own. The
order of choice: a free block that needs no wait, fresh memory, a free block of another stream. Where there is nothing,
what is free goes back to the device, what is in flight is waited for, and one more try is made.

How sizes are rounded is the pool's type, as in MXNet: ``Naive`` keeps blocks by their exact size (in pages), ``Round``
by powers of two and multiples of one above a cutoff, so that shapes which vary find blocks again, and ``Unpooled``
keeps none.
"""

from __future__ import annotations

import gc
import math
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from flowmx import settings
from flowmx.devices.streams import Launch, Stream, Token, here
from flowmx.engine.origin import Origin, describe
from flowmx.errors import OutOfMemory

PAGE = 4096
"""Blocks are whole pages."""

_LARGEST = 5
"""Holders that a message names."""


class Ticket(weakref.ref[Any]):
    """A weak reference to a block's holder, which returns the block when the holder is freed."""

    __slots__ = ("block",)
    block: Block


class Block:
    """A piece of a device's memory.

    Attributes:
        size: bytes.
        memory: the backend's handle on it.
        address: where it begins.
        uses: by stream, the token of the last operation that used it.
        holder: the operation that it was allocated for: its name and origin; None: none.
        launch: the launch that it was allocated for, until its token is among the uses.
        is_followed: whether all its uses are known: a variable holds it, or it did not outlive its launch.
        note: the backend's own.
        ticket: comes back when its lease has ended.
    """

    __slots__ = ("address", "holder", "is_followed", "launch", "memory", "note", "size", "ticket", "uses")

    def __init__(self, size: int, memory: Any, address: int) -> None:
        self.size = size
        self.memory = memory
        self.address = address
        self.uses: dict[Stream, Token] = {}
        self.holder: tuple[str, Origin | None] | None = None
        self.launch: Launch | None = None
        self.is_followed = False
        self.note: Any = None
        self.ticket: Ticket | None = None

    def lease(self, holder: Any, returned: deque[Ticket]) -> None:
        """Become free when an object is freed, which may happen in any thread, in the middle of anything."""
        self.ticket = Ticket(holder, returned.append)
        self.ticket.block = self

    def is_let_go(self) -> bool:
        """True once the object that held it has been freed."""
        return self.ticket is not None and self.ticket() is None

    def idle_for(self, stream: Stream | None) -> bool:
        """True where a stream (None: the host) may use it without waiting for another."""
        for user, token in self.uses.items():  # noqa: SIM110 - a loop is faster, and each small allocation comes here
            if user is not stream and not token.done():
                return False
        return True


def round_naive(nbytes: int) -> int:
    """Round bytes up to whole pages."""
    return max(1, -(-nbytes // PAGE)) * PAGE


def round_up(nbytes: int) -> int:
    """Round bytes up to powers of two, above the cutoff to its multiples."""
    step = 1 << settings.get().gpu_mem_pool_round_linear_cutoff
    if nbytes > step:
        return -(-nbytes // step) * step
    return max(PAGE, 1 << math.ceil(math.log2(max(1, nbytes))))


_ROUNDINGS: dict[str, Callable[[int], int]] = {"Naive": round_naive, "Round": round_up, "Unpooled": round_naive}


told: list[Callable[[str], None]] = []
"""Called with the message of an out-of-memory error, before it is raised."""


class BlockPool:
    """Blocks of one device's memory.

    Args:
        device: its name, for messages.
        take: gets so many bytes from the device: a handle and the address; None where it has no more.
        give: gives a handle back.
        limit: most bytes to take.
        total: bytes that the device has.
        synchronize: waits for all that was launched on the device.
        kind: the pool's type (``Naive``, ``Round``, ``Unpooled``).

    Attributes:
        used, idle: bytes that are in use, and that are kept free.
        peak: the most that was ever in use.
        allocations: how many blocks were asked for.
        handed_over: how many were still in use by another stream, which was waited for.
        returned: what comes back, appended by code in C, which no interrupt can get into.
        before: called with the bytes of each allocation before it is made; may raise.
        moved: called with each block that comes into use (True), and that is free again (False).
        newest: gives the newest token of each stream: what else may have used a block that no variable held, but that
            outlived its launch (the arena of a bound graph). None: nothing does.
        excess: called where there is no memory left; the pool then goes on as if there were. None: an error.
    """

    def __init__(
        self, device: str, take: Callable[[int], tuple[Any, int] | None], give: Callable[[Any], None], limit: int,
        total: int, synchronize: Callable[[], None], kind: str,
    ) -> None:  # fmt: skip
        self.device = device
        self._take = take
        self._give = give
        self.limit = limit
        self._total = total
        self._synchronize = synchronize
        self.kind = kind
        self._round = _ROUNDINGS[kind]
        self.used = self.idle = self.peak = self.allocations = self.handed_over = 0
        self.returned: deque[Ticket] = deque()
        self.before: Callable[[int], None] | None = None
        self.moved: Callable[[Block, bool], None] | None = None
        self.newest: Callable[[], list[Token]] | None = None
        self.excess: Callable[[OutOfMemory], None] | None = None
        self._is_exceeded = False
        self._free: dict[int, list[Block]] = {}
        self._leased: dict[int, Block] = {}
        self.lock = threading.RLock()

    # -- what its users call ---------------------------------------------------------------------------

    def acquire(self, nbytes: int, stream: Stream | None) -> Block:
        """A block of at least so many bytes, for use on a stream (None: by the host).

        Raises:
            OutOfMemory: there is none, even after all that is free was given back and what is in flight is done.
        """
        size = self._round(nbytes)
        with self.lock:
            self.allocations += 1
            if self.before is not None:
                self.before(nbytes)
            self.collect()
            block = self._idle_block(size, stream) or self._fresh(size) or self._busy_block(size, stream)
            if block is None:
                self._reclaim()
                block = self._fresh(size)
            if block is None:
                complaint = self._complaint(nbytes, size)
                for tell in told:
                    tell(complaint)
                block = self._exceed(OutOfMemory(complaint), size)
            self._leased[id(block)] = block
            self.used += size
            self.peak = max(self.peak, self.used)
            launch = here.launch
            block.holder = None if launch is None else (launch.op.name, launch.op.origin)
            block.launch = launch
            block.is_followed = False
            if self.moved is not None:
                self.moved(block, True)
        if launch is not None:
            launch.blocks.append(block)
        return block

    def rounded(self, nbytes: int) -> int:
        """The size of a block for so many bytes."""
        return self._round(nbytes)

    def free_bytes(self) -> int:
        """Bytes that can still be allocated."""
        with self.lock:
            self.collect()
            return max(0, self.limit - self.used)

    def trim(self) -> None:
        """Give every free block back to the device."""
        with self.lock:
            self.collect()
            self._drop_free()

    def collect(self) -> None:
        """Take in returned blocks (locked), but for those that another thread's launch has released half-way."""
        early: list[Ticket] = []
        while self.returned:
            ticket = self.returned.popleft()
            block = ticket.block
            if block.launch is not None and block.launch is not here.launch:
                early.append(ticket)
                continue
            if self._leased.pop(id(block), None) is None:
                continue
            if self.newest is not None and not block.is_followed and block.launch is None:
                block.uses |= {token.stream: token for token in self.newest()}
            self.used -= block.size
            if self.moved is not None:
                self.moved(block, False)
            if self.kind == "Unpooled":
                self._release(block)
            else:
                self._free.setdefault(block.size, []).append(block)
                self.idle += block.size
        self.returned.extend(early)

    def holders(self) -> list[tuple[str, int]]:
        """The holders of memory, the largest first: pairs (what it was allocated for, bytes)."""
        with self.lock:
            self.collect()
            counted: Counter[str] = Counter()
            for block in self._leased.values():
                counted[words(block.holder)] += block.size
        return counted.most_common()

    # -- finding a block (all locked) ------------------------------------------------------------------

    def _idle_block(self, size: int, stream: Stream | None) -> Block | None:
        found = self._free.get(size, [])
        for index in range(len(found) - 1, -1, -1):
            if found[index].idle_for(stream):
                return self._use_again(found, index, stream)
        return None

    def _busy_block(self, size: int, stream: Stream | None) -> Block | None:
        found = self._free.get(size, [])
        if not found:
            return None
        self.handed_over += 1
        return self._use_again(found, 0, stream)  # the one that was freed first

    def _use_again(self, found: list[Block], index: int, stream: Stream | None) -> Block:
        block = found.pop(index)
        self.idle -= block.size
        self.wait_for_uses(block, stream)
        return block

    def wait_for_uses(self, block: Block, stream: Stream | None) -> None:
        """Make a stream, or the host, wait for the uses of a block."""
        for token in block.uses.values():
            if stream is None:
                token.finish()
            else:
                stream.wait(token)
        if stream is None:  # what comes now comes after the host's wait
            block.uses.clear()
            block.note = None

    def _fresh(self, size: int) -> Block | None:
        if self.used + self.idle + size > self.limit and not self._is_exceeded:
            return None
        taken = self._take(size)
        return None if taken is None else Block(size, *taken)

    def _exceed(self, error: OutOfMemory, size: int) -> Block:
        if self.excess is None:
            raise error
        self._is_exceeded = True
        self.excess(error)
        taken = self._take(size)
        if taken is None:
            raise error
        return Block(size, *taken)

    def _release(self, block: Block) -> None:
        for token in block.uses.values():
            token.finish()
        self._give(block.memory)

    def _drop_free(self) -> None:
        for blocks in self._free.values():
            for block in blocks:
                self.idle -= block.size
                self._release(block)
        self._free.clear()

    def _reclaim(self) -> None:
        self._synchronize()
        gc.collect()  # what an exception's frames and other circles keep, such as the arrays of a step that failed
        self.collect()
        self._drop_free()

    def _complaint(self, nbytes: int, size: int) -> str:
        largest = "".join(f"\n  {count / 2**20:10.1f} MiB: {holder}" for holder, count in self.holders()[:_LARGEST])
        return (
            f"{self.device} is out of memory: {nbytes} bytes were asked for (a block of {size}), "
            f"{self.limit - self.used} are free of {self._total}, of which {self._total - self.limit} are "
            f"left to others (FLOWMX_GPU_MEM_POOL_RESERVE). Use a smaller batch, or recompute values "
            f"(FLOWMX_BACKWARD_DO_MIRROR=1). The largest holders:{largest or ' none'}"
        )


def words(holder: tuple[str, Origin | None] | None) -> str:
    """Describe a block's holder as text, for messages."""
    if holder is None:
        return "arrays made outside of any operation"
    name, origin = holder
    layer = f"layer {origin[2]!r}, " if origin is not None and origin[2] else ""
    place = f", enqueued at {describe(origin)}" if origin is not None else ""
    return f"{layer}operation {name!r}{place}"
