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
from flowmx.ops.registry.operators import Operator, Run


class PreparedUpdate(NamedTuple):
    """A computation with its inputs, its output and its operator; ``mixed`` is True if it updates a float32 copy."""

    forward: Callable[..., None]
    inputs: Sequence[BaseArray]
    out: BaseArray
    op: Any
    mixed: bool


class _Recorded(NamedTuple):
    """One recorded update: its loop, its element type, and the number of its arrays."""

    loop: Loop
    dtype: DType
    operands: int


class NativeUpdates:
    """Updates of the same weights, which run repeatedly."""

    def __init__(self) -> None:
        self._schedule = Schedule()
        self._native: NativeRun | None = None
        self._updates: list[_Recorded] = []
        self._arrays: list[Any] = []
        """The arrays of all updates, one after the other, while they run; the recording refers to this list."""
        self._nothing: list[None] = []
        self._ops: list[Operator] = []
        """The operators whose numbers are in the recorded calls."""
        self._numbers: list[memoryview] = []
        """These numbers, as bytes."""

    def run(
        self, run: Run, arrays: Sequence[Sequence[BaseArray]], ops: Sequence[Operator],
        prepare: Callable[[], Sequence[PreparedUpdate]],
    ) -> bool:  # fmt: skip
        """Update all weights and return True; return False, having done nothing, if they must be updated one by one.

        Args:
            run: the device and mode.
            arrays: the arrays of each update, the same each time; the first one is updated in place.
            ops: the operators of the updates.
            prepare: returns the updates, for the recording.
        """
        if not can_run_natively(run.device):
            return False
        action = self._schedule.next_action()
        if action == RECORD:
            self._record(run, arrays, prepare())
            return True
        native = self._native
        if action != NATIVE or native is None:
            return False
        self._arrays[:] = _memory(arrays)
        done = self._set_numbers(ops) and native()
        self._release()
        return done

    def _release(self) -> None:
        """Release the arrays: the memory of a gradient may be moved if nothing refers to it."""
        self._arrays[:] = self._nothing

    def _set_numbers(self, ops: Sequence[Operator]) -> bool:
        """Write the numbers of operators that changed; return False if an operator has another loop."""
        numbers, last = b"", None
        for at, (recorded, op) in enumerate(zip(self._updates, ops, strict=True)):
            if op is self._ops[at]:
                continue
            if last is None or op is not last[0] or recorded != last[1]:
                if _loop_of(op, recorded.dtype, recorded.operands) is not recorded.loop:
                    self._schedule = Schedule()  # record the other loop
                    return False
                numbers, last = _packed(recorded.loop, op), (op, recorded)
            self._numbers[at][:] = numbers
            self._ops[at] = op
        return True

    def _record(
        self, run: Run, array_lists: Sequence[Sequence[BaseArray]], steps: Sequence[PreparedUpdate]
    ) -> None:  # fmt: skip
        """Update the weights one by one, and record the loops."""
        self._native, self._updates, self._ops = None, [], []
        arrays = self._arrays = _memory(array_lists)
        self._nothing = [None] * len(arrays)
        calls: list[list[LoopCall]] = []
        start = 0
        for step in steps:
            positions = range(start, start := start + len(step.inputs))
            own = [arrays[position] for position in positions]
            recording = Recording((), pointer, lambda array: False)
            recording.use_items(arrays, positions)
            with recording_to(recording):
                step.forward(run, own, [own[0]])
            loop = _loop_of(step.op, own[0].dtype, len(own))
            if loop is not None and _is_call_of(recording, loop, step.op):
                self._updates.append(_Recorded(loop, own[0].dtype, len(own)))
                calls.append([call for call in recording.calls if isinstance(call, LoopCall)])
                self._ops.append(step.op)
        if len(calls) == len(steps):
            flops = sum(each.out.size * len(each.inputs) for each in steps)
            native = self._native = NativeRun(calls, threads_here(), flops)
            counts = [len(each.loop.uniforms) for each in self._updates]
            self._numbers = [native.words_of(at, Loop.FIRST_SCALAR, count) for at, count in enumerate(counts)]
        self._release()
        self._schedule.complete()


def _memory(array_lists: Sequence[Sequence[BaseArray]]) -> list[Any]:
    """Return the memory of all arrays, one after the other."""
    return [array.storage.array for arrays in array_lists for array in arrays]


def _loop_of(op: Operator, dtype: DType, count: int) -> Loop | None:
    fused = FUSED.get(op.name)
    return None if fused is None else fused.loop(op, dtype, count)


def _packed(loop: Loop, op: Operator) -> bytes:
    numbers = loop.values(op)
    return struct.pack(f"{len(numbers)}d", *numbers)


def _is_call_of(recording: Recording, loop: Loop, op: Operator) -> bool:
    """Return whether a recording is one call of a loop, with the numbers of an operator."""
    if not recording.is_complete or len(recording.calls) != 1:
        return False
    call, start = recording.calls[0], 8 * Loop.FIRST_SCALAR
    compiled, numbers = loop.program.compiled, _packed(loop, op)
    if not isinstance(call, LoopCall) or compiled is None or call.function != compiled.address:
        return False
    return bytes(call.words[start : start + len(numbers)]) == numbers
