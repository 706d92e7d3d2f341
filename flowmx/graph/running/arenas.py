"""Memory for the arenas of plans that run in turns: as much as the largest needs, not the sum.

The executors of one symbol run one at a time, in an :class:`Arena`. Calls may run concurrently, each in any free block
of :class:`Blocks`.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from flowmx import forks
from flowmx.devices import Device
from flowmx.engine.scheduler import Variable
from flowmx.graph.running.runner import Runner
from flowmx.graph.running.shared_copies import SharedCopies


class Block:
    """Memory on a device, and the runners bound to it; a runner stays bound to the block of its last run.

    Args:
        device: the device.
        nbytes: the size.
    """

    def __init__(self, device: Device, nbytes: int) -> None:
        self.memory: Any = device.allocate((nbytes,), np.dtype(np.uint8))
        self.users: WeakSet[Runner] = WeakSet()

    def drop(self) -> None:
        """Release the memory, which no running runner may use."""
        for runner in list(self.users):
            runner.unbind_arena(self.memory)
        self.memory = None


_live: WeakValueDictionary[int, Arena] = WeakValueDictionary()


def expected(device: Device, exclude: Arena | None = None) -> int:
    """Return the number of bytes that planned arenas, except one, will still allocate on a device."""
    arenas = [arena for reference in _live.valuerefs() if (arena := reference()) is not None]
    return sum(arena.unallocated_bytes(device) for arena in arenas if arena is not exclude)


class Arena:
    """A block of memory on each device, as large as the largest plan that uses it needs.

    Attributes:
        holder: the mode whose values of a (pushed) forward pass are in the arena, for its backward pass.
    """

    def __init__(self) -> None:
        self.holder: object = None
        self._blocks: dict[Device, Block] = {}
        self._variables: dict[Device, Variable] = {}
        self._planned: dict[Device, int] = {}
        _live[id(self)] = self

    def expect(self, device: Device, nbytes: int) -> None:
        """Record that a plan needs this many bytes on a device, allocated at its first run."""
        self._planned[device] = max(nbytes, self._planned.get(device, 0))

    def unallocated_bytes(self, device: Device) -> int:
        """Return the planned bytes on a device beyond the allocated ones."""
        return max(0, self._planned.get(device, 0) - self.held(device))

    def variable(self, device: Device) -> Variable:
        """Return the variable that every operation in the arena of a device writes, so that they run one at a time."""
        return self._variables.setdefault(device, Variable(f"workspace on {device}"))

    def attach(self, runner: Runner, device: Device) -> None:
        """Bind a runner to the block of a device, in the running operation."""
        context, arenas = device.context, runner.plan.arenas
        if context not in arenas:
            return
        block = self._blocks.get(device)
        if block is None or block.memory.nbytes < arenas[context]:
            if block is not None:
                block.drop()  # the old one first: both together would need more than either plan
            block = self._blocks[device] = Block(device, arenas[context])
        if runner.bind_arena(context, block.memory):
            block.users.add(runner)

    def held(self, device: Device) -> int:
        """Return the bytes that are allocated on a device."""
        block = self._blocks.get(device)
        return 0 if block is None else block.memory.nbytes

    @property
    def nbytes(self) -> int:
        """The bytes that are allocated."""
        return sum(block.memory.nbytes for block in self._blocks.values())


class Blocks:
    """The free blocks of one device.

    Args:
        device: the device.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.copies = SharedCopies()
        """Values that the plans share in addition."""
        self._free: list[Block] = []
        self._lock = forks.lock()  # a finalizer may return a block at any time

    def take(self, runner: Runner, preferred: Block | None) -> Block:
        """Return a block for a runner: the preferred one if it is free, else the smallest that fits.

        Args:
            runner: the runner, which is bound to the block.
            preferred: the block of its last run.
        """
        with self._lock:
            if preferred is not None and self._free and self._free[-1] is preferred:  # the runner is bound to it
                return self._free.pop()
        context = runner.plan.graph.default
        nbytes = runner.plan.arenas.get(context, 0)
        with self._lock:
            block = self._take_fitting_block(nbytes, preferred)
            if block is None:
                self._drop_blocks()
        if block is None:
            block = Block(self._device, nbytes)
        if block is not preferred:
            with self._lock:
                if preferred is not None:
                    preferred.users.discard(runner)
                block.users.add(runner)
        runner.bind_arena(context, block.memory)
        return block

    def _take_fitting_block(self, nbytes: int, preferred: Block | None) -> Block | None:
        """Remove and return a free block that is large enough, or return None (locked)."""
        if preferred is None or preferred not in self._free or preferred.memory.nbytes < nbytes:
            fitting = [block for block in self._free if block.memory.nbytes >= nbytes]
            preferred = min(fitting, key=lambda block: block.memory.nbytes, default=None)
        if preferred is not None:
            self._free.remove(preferred)
        return preferred

    def _drop_blocks(self) -> None:
        """Drop all free blocks, which are too small; the new one replaces them (locked).

        Their runners are unbound under the lock: none can take another block and start to run meanwhile.
        """
        dropped, self._free = self._free, []
        for block in dropped:
            block.drop()

    def give(self, block: Block) -> None:
        """Return a block to the free ones."""
        with self._lock:
            self._free.append(block)

    @property
    def idle_bytes(self) -> int:
        """The total size of the free blocks in bytes."""
        with self._lock:
            return sum(block.memory.nbytes for block in self._free)
