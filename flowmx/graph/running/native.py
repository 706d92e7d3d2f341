"""Native runs of steps: the native calls of consecutive steps are recorded once, and then made in one call.

The first runs of the steps compute them one by one: kernels are compiled meanwhile, and shapes that occur a few times
only are not worth a recording. Then a run records the native calls of each step (:mod:`flowmx.ops.kernels.recording`).
Later runs make the calls of consecutive recorded steps at once, without the interpreter. A step with other work, such
as a NumPy function, still runs separately. So do all steps while an array has another form than when its step was
recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from flowmx.ops.kernels.llvm.native_run import NativeRun
from flowmx.ops.kernels.native_steps import NATIVE, PLAIN, Schedule
from flowmx.ops.kernels.onednn.kernel import threads_here
from flowmx.ops.kernels.onednn.layouts import pointer
from flowmx.ops.kernels.recording import NativeCall, Recording, recording_to
from flowmx.ops.kernels.small_arrays import NativeForm, native_form, record_form
from flowmx.ops.registry.operators import Array, Run

if TYPE_CHECKING:
    from flowmx.graph.running.steps import Step


class Piece:
    """Consecutive steps that run together.

    Attributes:
        steps: the steps.
        run: their native run; None if they are computed one by one.
    """

    def __init__(self, steps: Sequence[Step], run: NativeRun | None) -> None:
        self.steps = steps
        self.run = run

    @property
    def current_step(self) -> Step:
        """The step that runs in the native run, or that ran there last."""
        return self.steps[0 if self.run is None else self.run.current_step]


class NativeSteps:
    """A list of steps that runs repeatedly, with as few native runs as possible.

    Args:
        is_planned: returns whether a plan fixes the layout of an array.
        flops: returns the number of floating-point operations of a step.

    Attributes:
        pieces: the recorded steps, in order; empty before they are recorded.
        failed: the step that failed in a native run, or None.
    """

    def __init__(self, is_planned: Callable[[Array], bool], flops: Callable[[Step], int]) -> None:
        self.pieces: list[Piece] = []
        self.failed: Step | None = None
        self._is_planned = is_planned
        self._flops = flops
        self._schedule = Schedule()

    @property
    def is_short(self) -> bool:
        """Whether all steps are one native run of little time."""
        native = self.pieces[0].run if len(self.pieces) == 1 else None
        return native is not None and native.is_short

    def run(self, run: Run, steps: Sequence[Step]) -> Iterable[Step]:
        """Make native runs; return or yield the steps that must be computed separately, in order.

        Args:
            run: the run.
            steps: the steps; the same list each time.
        """
        self.failed = None
        action = self._schedule.next_action()
        if action == PLAIN:
            return steps
        if action != NATIVE:
            return self._record(run, steps)
        if len(self.pieces) != 1:
            return self._run_pieces()
        (piece,) = self.pieces
        return () if piece.run is not None and self._run_natively(piece, piece.run) else steps

    def _run_pieces(self) -> Iterator[Step]:
        for piece in self.pieces:
            if piece.run is None or not self._run_natively(piece, piece.run):
                yield from piece.steps

    def _run_natively(self, piece: Piece, native: NativeRun) -> bool:
        try:
            return native()
        except Exception:  # oneDNN failed
            self.failed = piece.current_step
            raise

    def _record(self, run: Run, steps: Sequence[Step]) -> Iterator[Step]:
        """Compute the steps and record their native calls."""
        self.pieces = []
        threads = threads_here()
        pieces: list[Piece] = []
        row: list[tuple[Step, Sequence[NativeCall]]] = []

        def end_row() -> None:
            if row:
                flops = sum(self._flops(step) for step, _ in row)
                pieces.append(Piece([step for step, _ in row], NativeRun([calls for _, calls in row], threads, flops)))
                row.clear()

        for step in steps:
            calls: Sequence[NativeCall] = ()
            is_recordable = all(map(self._is_recordable, (*step.inputs, *step.outputs)))
            if step.is_native and not is_recordable:
                self._schedule.record_later()
            if step.is_native and is_recordable:
                self.failed = step
                calls = self._record_step(run, step)
                self.failed = None
            else:
                yield step
            if calls:
                row.append((step, calls))
                continue
            end_row()
            if pieces and pieces[-1].run is None:
                pieces[-1].steps = [*pieces[-1].steps, step]
            else:
                pieces.append(Piece([step], None))
        end_row()
        self.pieces = pieces
        self._schedule.complete()

    def _record_step(self, run: Run, step: Step) -> Sequence[NativeCall]:
        """Compute a step; return its native calls if these are all that it does, else nothing."""
        form = self._native_form(step)
        inputs, outputs = cast("list[Array]", step.inputs), cast("list[Array]", step.outputs)
        replaced = [] if form is None else [each for each in inputs if _shares_memory(each, outputs)]
        before = [each.copy() for each in replaced]
        recording = self._recording(step)
        with recording_to(recording):
            step.forward(run, inputs, outputs)
        if recording.calls or form is None:
            return recording.calls if recording.is_complete else ()
        # The array library computed it: the form must have the same result.
        expected = [each.copy() for each in outputs]
        for array, content in zip(replaced, before, strict=True):
            array[...] = content
        return record_form(form, inputs, outputs, expected, self._recording(step))

    def _native_form(self, step: Step) -> NativeForm | None:
        """Return a computation of native calls for a step that the array library may compute."""
        if step.node.op is None or not all(
            each is not None and each.flags.c_contiguous for each in (*step.inputs, *step.outputs)
        ):
            return None
        groups = cast("list[Array]", step.inputs), cast("list[Array]", step.outputs)
        return native_form(step.node.op, *[[(each.shape, each.dtype) for each in group] for group in groups])

    def _recording(self, step: Step) -> Recording:
        return Recording((step.inputs, step.outputs), pointer, self._is_planned)

    def _is_recordable(self, array: Array | None) -> bool:
        """Return whether the layout of an array is the same at each run, or checked."""
        return array is None or array.flags.c_contiguous or self._is_planned(array)


def _shares_memory(array: Array, others: Sequence[Array]) -> bool:
    return any(np.may_share_memory(array, each) for each in others)
