"""Memory for the arenas of plans that run by turns: as much as the largest of them needs, not the sum.

Executors of one symbol run one at a time, in an :class:`Arena`. Calls may run at the same time, each on whichever of
some :class:`Blocks` is free.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from flowmx.devices import Device
from flowmx.engine.scheduler import Variable
from flowmx.graph.running.runner import Runner


class Block:
    """Memory on a device, and the runners whose values lie there; each lies where it ran last.

    Args:
        device: where.
        nbytes: how much.
    """

    def __init__(self, device: Device, nbytes: int) -> None:
        self.memory: Any = device.allocate((nbytes,), np.dtype(np.uint8))
        self.users: WeakSet[Runner] = WeakSet()

    def drop(self) -> None:
        """Let go of the memory, which no runner may be running on."""
        for runner in list(self.users):
            runner.unsettle(self.memory)
        self.memory = None


_live: WeakValueDictionary[int, Arena] = WeakValueDictionary()


def expected(device: Device, besides: Arena | None = None) -> int:
    """Bytes of a device that arenas will take which are planned and not allocated yet, but for one."""
    arenas = [each for reference in _live.valuerefs() if (each := reference()) is not None]
    return sum(each.coming(device) for each in arenas if each is not besides)


class Arena:
    """A block of memory on each device, as large as the largest plan that has used it needs.

    Attributes:
        holder: whose values of a forward pass lie there (as far as pushed), for the backward pass.
    """

    def __init__(self) -> None:
        self.holder: object = None
        self._blocks: dict[Device, Block] = {}
        self._variables: dict[Device, Variable] = {}
        self._planned: dict[Device, int] = {}
        _live[id(self)] = self

    def expect(self, device: Device, nbytes: int) -> None:
        """Note that a plan needs so many bytes on a device, which are allocated when it first runs."""
        self._planned[device] = max(nbytes, self._planned.get(device, 0))

    def coming(self, device: Device) -> int:
        """Bytes that are planned on a device beyond those that are allocated."""
        return max(0, self._planned.get(device, 0) - self.held(device))

    def variable(self, device: Device) -> Variable:
        """The variable that every operation using the workspace on a device writes, so that they run one at a time."""
        return self._variables.setdefault(device, Variable(f"workspace on {device}"))

    def settle(self, runner: Runner, device: Device) -> None:
        """Let the values of a runner lie on the block of a device, in the running operation."""
        context, arenas = device.context, runner.plan.arenas
        if context not in arenas:
            return
        block = self._blocks.get(device)
        if block is None or block.memory.nbytes < arenas[context]:
            if block is not None:
                block.drop()  # the old one goes first: two would need more than either plan
            block = self._blocks[device] = Block(device, arenas[context])
        if runner.settle(context, block.memory):
            block.users.add(runner)

    def held(self, device: Device) -> int:
        """Bytes that are allocated on a device."""
        block = self._blocks.get(device)
        return 0 if block is None else block.memory.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes that are allocated."""
        return sum(block.memory.nbytes for block in self._blocks.values())


class Blocks:
    """The free blocks of one device.

    Args:
        device: where they are.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: list[Block] = []
        self._lock = threading.RLock()  # a block may be given back from a finalizer, at any time

    def take(self, runner: Runner, liked: Block | None) -> Block:
        """A block for a runner: the liked one where it is free, else the smallest that fits.

        Args:
            runner: whose values then lie there.
            liked: the block that it ran on last.
        """
        context = runner.plan.graph.default
        nbytes = runner.plan.arenas.get(context, 0)
        with self._lock:
            block = self._fitting(nbytes, liked)
            if block is None:
                self._drop_blocks()
        if block is None:
            block = Block(self._device, nbytes)
        if block is not liked:
            with self._lock:
                if liked is not None:
                    liked.users.discard(runner)
                block.users.add(runner)
        runner.settle(context, block.memory)
        return block

    def _fitting(self, nbytes: int, liked: Block | None) -> Block | None:
        """A free block that is large enough, free no more; None where there is none (locked)."""
        if liked is None or liked not in self._free or liked.memory.nbytes < nbytes:
            fitting = [block for block in self._free if block.memory.nbytes >= nbytes]
            liked = min(fitting, key=lambda block: block.memory.nbytes, default=None)
        if liked is not None:
            self._free.remove(liked)
        return liked

    def _drop_blocks(self) -> None:
        """Drop all free blocks, which are too small: the new one serves whatever they did (locked).

        Their runners let go of them under the lock: none can take another block meanwhile, and begin to run on it.
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
        """Bytes of the free blocks."""
        with self._lock:
            return sum(block.memory.nbytes for block in self._free)
