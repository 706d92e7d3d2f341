"""The layout of a replay's slots in a frame: offsets in the frame's block, views, constants, and new arrays.

Values that are never needed at the same time share memory. A total that becomes the content of a gradient buffer gets a
new array in each pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flowmx.ndarray.replay_steps import Program, Step, Total
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Form, Shape

_LINE = 64
_CONSTANTS = {"ones_like": 1, "zeros_like": 0}
"""Operators whose result depends on no values."""


class FramedSteps(NamedTuple):
    """A program without the work that is done once for each frame.

    Attributes:
        steps: the computations, with their positions in the program.
        new: the slots that need a new array in each pass, with shapes and dtypes.
        views: the slots that are views in each pass, with the slots that they show and their shapes.
        totals: the totals, which are stored after the steps.
        cleared: the slots with arrays of the pass that no later program reads.
    """

    steps: tuple[tuple[int, Step], ...]
    new: tuple[tuple[int, Shape, DType], ...]
    views: tuple[tuple[int, int, Shape], ...]
    totals: tuple[Total, ...]
    cleared: tuple[int, ...]


class Layout(NamedTuple):
    """The places of the slots of a replay.

    Attributes:
        nbytes: the size of the block.
        places: the slots in the block, with their offsets, shapes and dtypes.
        views: the slots that show other slots of the block, with shapes.
        constants: the slots in the block that always hold one number.
        programs: the work of each pass.
    """

    nbytes: int
    places: dict[int, tuple[int, Shape, DType]]
    views: dict[int, tuple[int, Shape]]
    constants: dict[int, float]
    programs: list[FramedSteps]


def lay_out(programs: Sequence[Program]) -> Layout | None:
    """Return the places of all slots; None if a total is not stored as usual."""
    slots = _Slots(programs)
    return slots.layout() if slots.is_usual() else None


class _Slots:
    """The slots of a replay, with the step that computes each, the slot that it shows, and its last use.

    A position counts the steps of all programs. Totals are stored at the end of their program.
    """

    def __init__(self, programs: Sequence[Program]) -> None:
        self._programs = programs
        self._forms: dict[int, Form] = {}
        self._makers: dict[int, Step] = {}
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._roots: dict[int, int] = {}
        self._sources: set[int] = set()
        self._owned: list[int] = []
        self._totals: list[int] = []
        self._ends: list[int] = []
        start = 0
        for program in programs:
            end = start + len(program.steps)
            for slot, _, _ in program.sources:
                self._sources.add(slot)
                self._first[slot] = self._last[slot] = start
            for at, step in enumerate(program.steps):
                self._add(step, start + at, end)
            start = end + 1
            self._ends.append(end)

    def _add(self, step: Step | Total, position: int, end: int) -> None:
        if isinstance(step, Total):
            self._last[step.slot] = max(self._last[step.slot], end)
            self._totals.append(step.slot)
            if step.owned and step.forward is None:
                self._owned.append(step.slot)
            return
        for slot in step.reads:
            self._last[slot] = max(self._last[slot], position)
        for slot, shape, dtype in step.outputs:
            self._forms[slot] = shape, dtype
            self._makers[slot] = step
            self._first[slot] = self._last[slot] = position
            if step.forward is None:
                self._roots[slot] = self._root(step.reads[0])

    def _root(self, slot: int) -> int:
        """Return the slot whose memory a slot shows."""
        return self._roots.get(slot, slot)

    def is_usual(self) -> bool:
        """Return whether each total that is moved to a buffer is a computed result, and is read by nothing later."""
        for slot in self._owned:
            is_computed = slot in self._makers and slot not in self._roots
            if not is_computed or self._totals.count(slot) > 1 or self._last[slot] not in self._ends:
                return False
        return True

    def layout(self) -> Layout:
        """Return the places of all slots."""
        new = {*self._owned}
        constants: dict[int, float] = {
            slot: _CONSTANTS[step.name]
            for slot, step in self._makers.items()
            if step.forward is not None and step.name in _CONSTANTS and slot not in new
        }
        last = dict(self._last)
        for slot, root in self._roots.items():
            last[root] = max(last[root], self._last[slot])
        computed = [slot for slot in self._makers if slot not in self._roots and slot not in new | constants.keys()]
        memory = _Memory()
        places = {}
        for slot in (*constants, *sorted(computed, key=self._first.__getitem__)):
            shape, dtype = self._forms[slot]
            start, end = (0, self._ends[-1]) if slot in constants else (self._first[slot], last[slot])
            places[slot] = memory.take(math.prod(shape) * dtype.itemsize, start, end), shape, dtype
        views = {slot: (root, self._forms[slot][0]) for slot, root in self._roots.items() if root in places}
        return Layout(memory.nbytes, places, views, constants, [*self._framed(new, constants)])

    def _framed(self, new: set[int], constants: dict[int, float]) -> Iterator[FramedSteps]:
        """Return the work of each pass, program by program."""
        own = {*self._sources, *new}  # slots with arrays of the pass
        own |= {slot for slot, root in self._roots.items() if root in own}
        start = 0
        for program, end in zip(self._programs, self._ends, strict=True):
            steps = [(at, step) for at, step in enumerate(program.steps) if isinstance(step, Step)]
            outputs = [slot for _, step in steps for slot, _, _ in step.outputs]
            shown = [slot for slot in outputs if slot in self._roots and slot in own]
            yield FramedSteps(
                tuple(
                    [each for each in steps if each[1].forward is not None and each[1].outputs[0][0] not in constants]
                ),
                tuple([(slot, *self._forms[slot]) for slot in outputs if slot in new]),
                tuple([(slot, self._roots[slot], self._forms[slot][0]) for slot in shown]),
                tuple([step for step in program.steps if isinstance(step, Total)]),
                tuple([slot for slot in own if start <= self._last[slot] <= end]),
            )
            start = end + 1


class _Memory:
    """Offsets in a block for values that are needed for some positions: the lowest free ones, in order of time.

    Attributes:
        nbytes: the size of the block.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._taken: list[tuple[int, int, int]] = []

    def take(self, nbytes: int, start: int, end: int) -> int:
        """Return the offset of a value that is needed from a position on, to another one inclusive."""
        nbytes = -(-max(nbytes, 1) // _LINE) * _LINE
        self._taken = [each for each in self._taken if each[2] >= start]
        offset = 0
        for begin, stop, _ in sorted(self._taken):
            if offset + nbytes <= begin:
                break
            offset = max(offset, stop)
        self._taken.append((offset, offset + nbytes, end))
        self.nbytes = max(self.nbytes, offset + nbytes)
        return offset
