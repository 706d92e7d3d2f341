"""Arrays of captured steps that lie elsewhere at each run: the graph works on copies of its own.

The results of a hybridized block are new arrays at each call, and so is what is computed from them, while weights and
internal values stay where they are. A graph reads and writes the moving ones in memory of its own; before each launch
the arrays of that run are copied there, and afterwards what was written is copied back, on the same stream.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from flowmx.devices.cuda.device import CudaDevice
    from flowmx.devices.cuda.stream import CudaStream

MOST_BYTES = 1 << 28
"""Bytes of moving arrays, above which copying them may take longer than launching the steps."""


class Slot(NamedTuple):
    """A position of an array in a step's arguments.

    Attributes:
        arrays, position: the list of the step's arrays, and where in it.
        needs_content: whether what is there may be read before it is written.
        is_written: whether the step writes it.
    """

    arrays: list[Any]
    position: int
    needs_content: bool
    is_written: bool

    @property
    def array(self) -> Any:
        """The array that is in this position now."""
        return self.arrays[self.position]


def slots_of(steps: Sequence[Any]) -> list[Slot]:
    """All slots of steps, in the order in which they are accessed."""
    found: list[Slot] = []
    for _, inputs, outputs, node in steps:
        changed = _changed_inputs(node, len(inputs))
        found += [Slot(inputs, at, True, at in changed) for at in range(len(inputs)) if inputs[at] is not None]
        # What is handed out may be added to what is there.
        found += [Slot(outputs, at, node.op is None, True) for at in range(len(outputs)) if outputs[at] is not None]
    return found


def _changed_inputs(node: Any, count: int) -> set[int]:
    if node.op is None:
        return set()
    return {*node.op.updates, *(range(node.auxiliary_from(), count) if node.op.auxiliary else ())}


class Copies:
    """The memory of a graph's own for arrays that move.

    Args:
        device: the GPU.
        slots: all places of its steps.
        moving: which of them hold arrays that move.
    """

    def __init__(self, device: CudaDevice, slots: Sequence[Slot], moving: set[int]) -> None:
        by_address: dict[int, list[int]] = {}
        for number in sorted(moving):
            by_address.setdefault(slots[number].array.data.ptr, []).append(number)
        self._slots = slots
        self._places: list[tuple[int, Any, bool, bool]] = []
        """The first slot of each array, its copy, and whether that is filled before a launch and read after it."""
        self._of: dict[int, Any] = {}
        for numbers in by_address.values():
            nbytes = max(slots[number].array.nbytes for number in numbers)
            largest = next(number for number in numbers if slots[number].array.nbytes == nbytes)
            copy = device.allocate((nbytes,), np.dtype(np.uint8))
            self._of |= dict.fromkeys(numbers, copy)
            first = slots[numbers[0]]
            written = any(slots[number].is_written for number in numbers)
            self._places.append((largest, copy, first.needs_content or largest != numbers[0], written))

    def steps(self, steps: Sequence[Any]) -> list[Any]:
        """The steps, on the copies."""
        put = {(id(slot.arrays), slot.position): self._shaped(number) for number, slot in self._numbered()}
        return [
            (step[0], *([put.get((id(row), at), row[at]) for at in range(len(row))] for row in step[1:3]), step[3])
            for step in steps
        ]

    def _numbered(self) -> Iterator[tuple[int, Slot]]:
        return ((number, self._slots[number]) for number in self._of)

    def _shaped(self, number: int) -> Any:
        array = self._slots[number].array
        return self._of[number][: array.nbytes].view(array.dtype).reshape(array.shape)

    def fill(self, stream: CudaStream) -> None:
        """Copy what a launch reads."""
        for number, copy, is_filled, _ in self._places:
            if is_filled:
                array = self._slots[number].array
                copy.data.copy_from_device_async(array.data, array.nbytes, stream.raw)

    def hand_out(self, stream: CudaStream) -> None:
        """Copy what a launch has written."""
        for number, copy, _, is_written in self._places:
            if is_written:
                array = self._slots[number].array
                array.data.copy_from_device_async(copy.data, array.nbytes, stream.raw)


def may_be_copied(slots: Sequence[Slot], moving: set[int]) -> bool:
    """True where moving arrays are contiguous, small enough to copy, and overlap no array that starts elsewhere."""
    arrays = [slots[number].array for number in moving]
    if not all(array.flags.c_contiguous for array in arrays) or sum(array.nbytes for array in arrays) > MOST_BYTES:
        return False
    spans = sorted({(slot.array.data.ptr, slot.array.nbytes, number in moving) for number, slot in enumerate(slots)})
    return not any(
        start < other < start + nbytes and (moves or other_moves)
        for (start, nbytes, moves), (other, _, other_moves) in itertools.pairwise(spans)
    )
