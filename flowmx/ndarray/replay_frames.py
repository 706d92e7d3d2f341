"""Frames: memory in which a replayed backward pass makes only a few native calls.

A :class:`Frame` holds all intermediate results of a pass in one block of memory, so that their addresses are the same
in each pass. The native calls of consecutive steps are recorded in one pass, and made at once in later ones
(``ops/kernels/recording.py``). Steps that work on arrays in Python are computed separately. A pass that finds no free
frame allocates its arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count as count_from
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np

from flowmx import forks
from flowmx.ndarray.replay_places import Layout, lay_out
from flowmx.ndarray.replay_steps import Program, Step
from flowmx.ops.kernels.llvm.native_run import NativeRun
from flowmx.ops.kernels.native_steps import NATIVE, RECORD, Schedule, can_run_natively, computes_natively
from flowmx.ops.kernels.onednn.kernel import threads_here
from flowmx.ops.kernels.onednn.layouts import pointer
from flowmx.ops.kernels.recording import NativeCall, Recording, recording_to
from flowmx.ops.kernels.small_arrays import native_form, record_form
from flowmx.ops.registry.operators import Array, Run

_MAX_BYTES = 1 << 23
"""The size of the largest frame in bytes. Passes with more intermediate results gain little from a frame."""
_MAX_TOTAL = 1 << 26
"""The maximum number of bytes of all free frames; beyond it, the least recently used ones are dropped."""
_LINE = 64


class Piece(NamedTuple):
    """Consecutive steps that run together.

    Attributes:
        steps: the steps, with their positions in the program.
        run: their native run; None if they are computed one by one.
    """

    steps: Sequence[tuple[int, Step]]
    run: NativeRun | None


class FramedProgram:
    """A program in a frame.

    Args:
        frame: the frame.
        layout: the places of all slots.
        number: the position of the program.

    Attributes:
        totals: its totals, to store after :meth:`compute`.
        current: the position of the step that is computed.
        pieces: the recorded steps, in order; empty before they are recorded.
    """

    def __init__(self, frame: Frame, layout: Layout, number: int) -> None:
        plan = layout.programs[number]
        self.totals = plan.totals
        self.current = 0
        self.pieces: list[Piece] = []
        self._frame, self._slots = frame, frame.slots
        self._steps, self._new, self._views, self._cleared = plan.steps, plan.new, plan.views, plan.cleared
        self._schedule = Schedule()

    def compute(self, run: Run) -> None:
        """Compute the steps of the program, except its totals."""
        slots, allocate = self._slots, run.device.allocate
        for slot, shape, dtype in self._new:
            slots[slot] = allocate(shape, dtype)
        for slot, source, shape in self._views:
            slots[slot] = slots[source].reshape(shape)
        action = self._schedule.next_action()
        if action == RECORD:
            self._record(run)
        elif action != NATIVE:
            self._compute_each(run, self._steps)
        else:
            for steps, native in self.pieces:
                if native is None or not self._run_natively(steps, native):
                    self._compute_each(run, steps)

    def clear(self) -> None:
        """Release the arrays that belong to this pass and that no later program reads."""
        for slot in self._cleared:
            self._slots[slot] = None

    def _compute_each(self, run: Run, steps: Sequence[tuple[int, Step]]) -> None:
        slots = self._slots
        for at, step in steps:
            assert step.forward is not None
            self.current = at
            step.forward(run, step.take(slots), [slots[slot] for slot, _, _ in step.outputs])

    def _run_natively(self, steps: Sequence[tuple[int, Step]], native: NativeRun) -> bool:
        try:
            return native()
        except Exception:  # oneDNN failed
            self.current = steps[native.current_step][0]
            raise

    def _record(self, run: Run) -> None:
        """Compute the steps and record their native calls."""
        threads = threads_here()
        pieces: list[Piece] = []
        row: list[tuple[int, Step]] = []
        calls_of_row: list[Sequence[NativeCall]] = []

        def end_row() -> None:
            if row:
                pieces.append(Piece([*row], NativeRun([*calls_of_row], threads, sum(map(self._flops, row)))))
                row.clear()
                calls_of_row.clear()

        separate: list[tuple[int, Step]] = []
        for at, step in self._steps:
            self.current = at
            calls = self._record_step(run, step)
            if calls:
                if separate:
                    pieces.append(Piece(separate, None))
                    separate = []
                row.append((at, step))
                calls_of_row.append(calls)
            else:
                end_row()
                separate.append((at, step))
        end_row()
        if separate:
            pieces.append(Piece(separate, None))
        self.pieces = pieces
        self._schedule.complete()

    def _record_step(self, run: Run, step: Step) -> Sequence[NativeCall]:
        """Compute a step; return its native calls if these are all that it does, else nothing."""
        slots = self._slots
        inputs, outputs = step.take(slots), [slots[slot] for slot, _, _ in step.outputs]
        assert step.forward is not None
        if not all(array.flags.c_contiguous for array in (*inputs, *outputs)):
            step.forward(run, inputs, outputs)
            self._schedule.record_later()
            return ()
        recording = self._recording(step)
        with recording_to(recording):
            step.forward(run, inputs, outputs)
        if step.op is None:
            return ()
        if recording.calls:
            is_native = recording.is_complete and computes_natively(run.device.kernels, step.op)
            return recording.calls if is_native else ()
        # It made no native call, so the array library computed it.
        form = native_form(step.op, *[[(each.shape, each.dtype) for each in arrays] for arrays in (inputs, outputs)])
        if form is None:
            return ()
        return record_form(form, inputs, outputs, [each.copy() for each in outputs], self._recording(step))

    def _recording(self, step: Step) -> Recording:
        """Return an empty recording of the step."""
        recording = Recording((), pointer, self._frame.owns)
        recording.use_items(self._slots, dict.fromkeys((*step.reads, *[slot for slot, _, _ in step.outputs])))
        return recording

    def _flops(self, row: tuple[int, Step]) -> int:
        """Return the number of floating-point operations of a step."""
        step, slots = row[1], self._slots
        assert step.op is not None
        return step.op.cost([slots[slot].shape for slot in step.reads], [shape for _, shape, _ in step.outputs])[0]


class Frame:
    """Memory for the slots of a replay, which one pass uses at a time.

    Args:
        programs: the operations of the replay.
        count: the number of slots.
        layout: the places of the slots.

    Attributes:
        slots: the slots. Those that belong to the frame always hold the same arrays.
        runs: the programs.
    """

    def __init__(self, programs: Sequence[Program], count: int, layout: Layout) -> None:
        self.programs = programs
        self.nbytes = layout.nbytes
        self.slots: list[Any] = [None] * count
        self._block = np.empty(layout.nbytes + _LINE, np.uint8)
        first = -pointer(self._block) % _LINE
        for slot, (offset, shape, dtype) in layout.places.items():
            self.slots[slot] = np.ndarray(shape, dtype, self._block, first + offset)
        for slot, (source, shape) in layout.views.items():
            self.slots[slot] = self.slots[source].reshape(shape)
        for slot, value in layout.constants.items():
            self.slots[slot][...] = value
        self.runs = [FramedProgram(self, layout, number) for number in range(len(programs))]

    def owns(self, array: Array) -> bool:
        """Return whether an array is in the frame's block."""
        return array.base is self._block


class Frames:
    """The frames of a replay that no pass uses.

    Attributes:
        nbytes: the size of the free frame.
        last_use: the number of the last pass that returned a frame, among the passes of all replays.
    """

    def __init__(self) -> None:
        self.nbytes = self.last_use = 0
        self._free: list[Frame] = []
        self._layout: tuple[Sequence[Program], Layout | None] | None = None

    def take(self, programs: Sequence[Program], count: int, run: Run) -> Frame | None:
        """Return a frame for a pass; None if the pass must allocate its arrays.

        Args:
            programs: the operations.
            count: the number of slots.
            run: the device and mode.
        """
        if not can_run_natively(run.device):
            return None
        try:
            frame = self._free.pop()
        except IndexError:
            return self._make(programs, count)
        return frame if frame.programs is programs else self._make(programs, count)

    def _make(self, programs: Sequence[Program], count: int) -> Frame | None:
        if self._layout is None or self._layout[0] is not programs:
            self._layout = programs, lay_out(programs)
        layout = self._layout[1]
        if layout is None or layout.nbytes > _MAX_BYTES:
            return None
        _make_room(self, layout.nbytes)
        return Frame(programs, count, layout)

    def give(self, frame: Frame) -> None:
        """Return the frame of a pass that succeeded; at most one is kept."""
        self.last_use = next(_passes)
        if not self._free:
            self._free.append(frame)

    def drop(self) -> None:
        """Drop the free frame."""
        self._free.clear()
        self.nbytes = 0


_passes = count_from(1)
_all: WeakSet[Frames] = WeakSet()
_lock = forks.lock()


def _make_room(frames: Frames, nbytes: int) -> None:
    """Drop the least recently used frames of other replays if all of them take too much memory."""
    with _lock:
        _all.add(frames)
        frames.nbytes = nbytes
        total = sum([each.nbytes for each in _all])
        if total > _MAX_TOTAL:
            for each in sorted(_all, key=lambda each: each.last_use):
                if total > _MAX_TOTAL and each is not frames:
                    total -= each.nbytes
                    each.drop()
