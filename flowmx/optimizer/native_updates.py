"""Repeated updates of weights as one native call.

The loops of the updates are recorded once (``ops/kernels/recording.py``). Before each call, the arrays of the weights,
gradients and states are looked up, and numbers that changed, such as the learning rate, are written into the arguments
of the loops.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flowmx.ndarray.core import BaseArray
from flowmx.ops.kernels.llvm.elementwise import FUSED, Loop
from flowmx.ops.kernels.llvm.native_run import NativeRun
from flowmx.ops.kernels.native_steps import NATIVE, RECORD, Schedule, can_run_natively
from flowmx.ops.kernels.onednn.kernel import threads_here
from flowmx.ops.kernels.onednn.layouts import pointer
from flowmx.ops.kernels.recording import LoopCall, Recording, recording_to
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Run


class PreparedUpdate(NamedTuple):
    """A computation with its inputs, its output and its operator; ``mixed`` is True if it updates a float32 copy."""

    forward: Callable[..., None]
    inputs: Sequence[BaseArray]
    out: BaseArray
    op: Any
    mixed: bool


class _Recorded(NamedTuple):
    """One recorded update.

    Attributes:
        arrays: its arrays, weight first; the recording refers to this list.
        loop: the loop.
        dtype: the element type.
    """

    arrays: list[Array]
    loop: Loop
    dtype: DType


class NativeUpdates:
    """Updates of the same weights, which run repeatedly."""

    def __init__(self) -> None:
        self._schedule = Schedule()
        self._native: NativeRun | None = None
        self._updates: list[_Recorded] = []
        self._ops: list[Any] = []
        """The operators whose numbers are in the recorded calls."""

    def run(self, run: Run, steps: Sequence[PreparedUpdate]) -> bool:
        """Update all weights and return True; return False, having done nothing, if they must be updated one by one.

        Args:
            run: the device and mode.
            steps: the updates: of the same arrays each time, each in place.
        """
        if not can_run_natively(run.device):
            return False
        action = self._schedule.next_action()
        if action == RECORD:
            self._record(run, steps)
            return True
        native = self._native
        if action != NATIVE or native is None:
            return False
        for recorded, step in zip(self._updates, steps, strict=True):
            recorded.arrays[:] = [array.storage.array for array in step.inputs]
        done = self._set_numbers(native, steps) and native()
        self._release()
        return done

    def _release(self) -> None:
        """Release the arrays: the memory of a gradient may be moved if nothing refers to it."""
        for recorded in self._updates:
            recorded.arrays[:] = [None] * len(recorded.arrays)

    def _set_numbers(self, native: NativeRun, steps: Sequence[PreparedUpdate]) -> bool:
        """Write the numbers of operators that changed; return False if an operator has another loop."""
        numbers, last = b"", None
        for at, (recorded, step) in enumerate(zip(self._updates, steps, strict=True)):
            op = step.op
            if op is self._ops[at]:
                continue
            if _loop_of(op, recorded.dtype, len(step.inputs)) is not recorded.loop:
                self._schedule = Schedule()  # record the other loop
                return False
            if last is None or op is not last[0] or recorded.loop is not last[1]:
                numbers, last = _packed(recorded.loop, op), (op, recorded.loop)
            native.replace_words(at, Loop.FIRST_NUMBER, numbers)
            self._ops[at] = op
        return True

    def _record(self, run: Run, steps: Sequence[PreparedUpdate]) -> None:
        """Update the weights one by one, and record the loops."""
        self._native, self._updates, self._ops = None, [], []
        calls: list[list[LoopCall]] = []
        for step in steps:
            arrays = [array.storage.array for array in step.inputs]
            recording = Recording((arrays,), pointer, lambda array: False)
            with recording_to(recording):
                step.forward(run, arrays, [arrays[0]])
            loop = _loop_of(step.op, arrays[0].dtype, len(arrays))
            if loop is not None and _is_call_of(recording, loop, step.op):
                self._updates.append(_Recorded(arrays, loop, arrays[0].dtype))
                calls.append([call for call in recording.calls if isinstance(call, LoopCall)])
                self._ops.append(step.op)
        if len(calls) == len(steps):
            flops = sum(each.arrays[0].size * len(each.arrays) for each in self._updates)
            self._native = NativeRun(calls, threads_here(), flops)
        self._release()
        self._schedule.complete()


def _loop_of(op: Any, dtype: DType, count: int) -> Loop | None:
    fused = FUSED.get(op.name)
    return None if fused is None else fused.loop(op, dtype, count)


def _packed(loop: Loop, op: Any) -> bytes:
    numbers = loop.values(op)
    return struct.pack(f"{len(numbers)}d", *numbers)


def _is_call_of(recording: Recording, loop: Loop, op: Any) -> bool:
    """Return whether a recording is one call of a loop, with the numbers of an operator."""
    if not recording.is_complete or len(recording.calls) != 1:
        return False
    call, start = recording.calls[0], 8 * Loop.FIRST_NUMBER
    compiled, numbers = loop.program.compiled, _packed(loop, op)
    if not isinstance(call, LoopCall) or compiled is None or call.function != compiled.address:
        return False
    return bytes(call.words[start : start + len(numbers)]) == numbers
