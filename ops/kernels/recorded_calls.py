"""Recorded calls of single operators: after some calls of one form, their native calls are made without preparation.

Preparing a call of a oneDNN primitive, or of a loop over parts of arrays, takes several microseconds in Python, for
addresses, layouts and memory objects. A native run finds the addresses itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from flowmx.ops.kernels.llvm.native_run import NativeRun
from flowmx.ops.kernels.native_steps import NATIVE, RECORD, Schedule
from flowmx.ops.kernels.onednn.kernel import threads_here
from flowmx.ops.kernels.onednn.layouts import pointer
from flowmx.ops.kernels.recording import NativeCall, Recording, recording_to
from flowmx.ops.kernels.small_arrays import native_form
from flowmx.ops.registry.operators import Array, Bound, Operator, Run

PATIENCE = 2
"""The number of calls before the recording, as a multiple of that of longer runs."""


class _Call:
    """A recorded call, which one thread uses at a time.

    Attributes:
        arrays: the inputs, then the outputs, while it runs; the recording refers to this list.
        native: the native calls, or None.
        nothing: replaces the arrays while it does not run.
        schedule: the schedule of its recordings.
    """

    def __init__(self) -> None:
        self.arrays: list[Array | None] = []
        self.native: NativeRun | None = None
        self.nothing: tuple[None, ...] = ()
        self.schedule = Schedule(PATIENCE)


class RecordedCall:
    """The forward of an operator for fixed shapes and dtypes, by recorded native calls.

    Args:
        forward: the forward, which touches arrays only in native calls, if it makes any.
        op: the operator.
        flops: the number of its floating-point operations.
    """

    def __init__(self, forward: Bound, op: Operator, flops: int) -> None:
        self._forward, self._op, self._flops = forward, op, flops
        self._idle: list[_Call] = []
        self._is_native = True

    def __call__(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the operator."""
        if not self._is_native:
            self._forward(run, inputs, outputs)
            return
        try:
            call = self._idle.pop()
        except IndexError:
            call = _Call()
        action = call.schedule.next_action()
        if action == RECORD:
            self._record(call, run, [*inputs, *outputs], len(inputs))
        elif action != NATIVE or call.native is None:
            self._forward(run, inputs, outputs)
        else:
            items = call.arrays
            items[:] = (*inputs, *outputs)
            if not call.native():
                self._forward(run, inputs, outputs)
            items[:] = call.nothing
        self._idle.append(call)

    def _record(self, call: _Call, run: Run, arrays: list[Array], count: int) -> None:
        """Compute the operator and record its native calls."""
        call.native = None
        call.arrays = lists = cast("list[Array | None]", arrays)
        is_plain = all(array.flags.c_contiguous for array in arrays)
        recording = Recording((lists,), pointer, lambda array: False)
        with recording_to(recording):
            self._forward(run, arrays[:count], arrays[count:])
        if not is_plain:
            call.schedule.record_later()
        elif recording.calls and recording.is_complete:
            call.native = NativeRun([recording.calls], threads_here(), self._flops)
        else:  # the array library computes it, or a part of it
            calls = self._record_form(arrays, count)
            call.native = NativeRun([calls], threads_here(), self._flops) if calls else None
            self._is_native = bool(calls or recording.calls)
        call.nothing = (None,) * len(arrays)
        lists[:] = call.nothing
        call.schedule.complete()

    def _record_form(self, arrays: list[Array], count: int) -> Sequence[NativeCall]:
        """Return the calls of the operator's native form, if its result is bit-identical to the outputs."""
        inputs, outputs = arrays[:count], arrays[count:]
        form = native_form(self._op, *[[(each.shape, each.dtype) for each in group] for group in (inputs, outputs)])
        if form is None or any(np.may_share_memory(one, other) for one in inputs for other in outputs):
            return ()
        expected = [each.copy() for each in outputs]
        recording = Recording((cast("list[Array | None]", arrays),), pointer, lambda array: False)
        with recording_to(recording):
            form(inputs, outputs)
        if all(one.tobytes() == other.tobytes() for one, other in zip(outputs, expected, strict=True)):
            return recording.calls if recording.is_complete else ()
        for one, other in zip(outputs, expected, strict=True):
            one[...] = other
        return ()
