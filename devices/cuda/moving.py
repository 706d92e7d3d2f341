"""Moving arrays: arrays of captured steps whose addresses change at each run.

The results of a hybridized block are new arrays at each call, and so are the values computed from them; weights and
internal values keep their addresses. A graph reads and writes copies of the moving arrays. Before each launch, the
arrays are copied into these copies; after it, the copies that were written are copied back, on the same stream.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from flowmx.devices.cuda.device import CudaDevice
    from flowmx.devices.cuda.stream import CudaStream

MAX_BYTES = 1 << 28
"""Maximum total size of moving arrays in bytes; copying more may take longer than launching the steps."""


class Slot(NamedTuple):
    """A position of an array in a step's arguments.

    Attributes:
        arrays, position: the list of the step's arrays, and the index in it.
        needs_content: whether the array may be read before it is written.
        is_written: whether the step writes the array.
    """

    arrays: list[Any]
    position: int
    needs_content: bool
    is_written: bool

    @property
    def array(self) -> Any:
        """The current array in this position."""
        return self.arrays[self.position]


def slots_of(steps: Sequence[Any]) -> list[Slot]:
    """Return all slots of steps in the order of access."""
    slots: list[Slot] = []
    for _, inputs, outputs, node, *_ in steps:
        changed = _changed_inputs(node, len(inputs))
        slots += [Slot(inputs, at, True, at in changed) for at in range(len(inputs)) if inputs[at] is not None]
        # A result may be added to the array's content.
        slots += [Slot(outputs, at, node.op is None, True) for at in range(len(outputs)) if outputs[at] is not None]
    return slots


def _changed_inputs(node: Any, count: int) -> set[int]:
    if node.op is None:
        return set()
    return {*node.op.updates, *(range(node.auxiliary_from(), count) if node.op.auxiliary else ())}


class Copies:
    """The copies of a graph's moving arrays.

    Args:
        device: the GPU.
        slots: all slots of its steps.
        moving: the numbers of slots with moving arrays.
    """

    def __init__(self, device: CudaDevice, slots: Sequence[Slot], moving: set[int]) -> None:
        by_address: dict[int, list[int]] = {}
        for number in sorted(moving):
            by_address.setdefault(slots[number].array.data.ptr, []).append(number)
        self._slots = slots
        self._copies: list[tuple[int, Any, bool, bool]] = []
        """For each array: its largest slot, its copy, whether to fill the copy before a launch, and to copy it back."""
        self._copy_of: dict[int, Any] = {}
        for numbers in by_address.values():
            nbytes = max(slots[number].array.nbytes for number in numbers)
            largest = next(number for number in numbers if slots[number].array.nbytes == nbytes)
            copy = device.allocate((nbytes,), np.dtype(np.uint8))
            self._copy_of |= dict.fromkeys(numbers, copy)
            first = slots[numbers[0]]
            written = any(slots[number].is_written for number in numbers)
            self._copies.append((largest, copy, first.needs_content or largest != numbers[0], written))

    def steps(self, steps: Sequence[Any]) -> list[Any]:
        """Return the steps with the copies in place of the arrays."""
        replacements = {
            (id(slot.arrays), slot.position): self._shaped(number) for number, slot in self._enumerate_slots()
        }

        def replace(arrays: list[Any]) -> list[Any]:
            return [replacements.get((id(arrays), index), array) for index, array in enumerate(arrays)]

        return [(step[0], replace(step[1]), replace(step[2]), step[3]) for step in steps]

    def _enumerate_slots(self) -> Iterator[tuple[int, Slot]]:
        return ((number, self._slots[number]) for number in self._copy_of)

    def _shaped(self, number: int) -> Any:
        array = self._slots[number].array
        return self._copy_of[number][: array.nbytes].view(array.dtype).reshape(array.shape)

    def fill(self, stream: CudaStream) -> None:
        """Copy the arrays that a launch reads."""
        for number, copy, is_filled, _ in self._copies:
            if is_filled:
                array = self._slots[number].array
                copy.data.copy_from_device_async(array.data, array.nbytes, stream.raw)

    def copy_back(self, stream: CudaStream) -> None:
        """Copy back the arrays that a launch has written."""
        for number, copy, _, is_written in self._copies:
            if is_written:
                array = self._slots[number].array
                array.data.copy_from_device_async(copy.data, array.nbytes, stream.raw)


def may_be_copied(slots: Sequence[Slot], moving: set[int]) -> bool:
    """Return whether moving arrays are contiguous, small enough to copy, and overlap no array with another address."""
    arrays = [slots[number].array for number in moving]
    if not all(array.flags.c_contiguous for array in arrays) or sum(array.nbytes for array in arrays) > MAX_BYTES:
        return False
    spans = sorted({(slot.array.data.ptr, slot.array.nbytes, number in moving) for number, slot in enumerate(slots)})
    return not any(
        start < other < start + nbytes and (moves or other_moves)
        for (start, nbytes, moves), (other, _, other_moves) in itertools.pairwise(spans)
    )
