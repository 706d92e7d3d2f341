"""The computations of a replayed backward pass, on numbered slots.

A program is one operation of the engine: a flat list of steps. As in bulks, an error affects only the steps that depend
on it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from flowmx.engine.failure import Failure, failure_of
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import Operation
from flowmx.ndarray import backward_bulks as bulks
from flowmx.ndarray.core import BaseArray, Storage
from flowmx.ndarray.reference_counts import REFERENCES_OF_ATTRIBUTE, REFERENCES_OF_LOCAL
from flowmx.ops.registry.operators import Operator, Run

if TYPE_CHECKING:
    from flowmx.ndarray.replay_frames import Frame, FramedProgram, Frames


class Step(NamedTuple):
    """One computation on slots.

    Attributes:
        forward: the computation; None for a reshape.
        reads: the input slots.
        outputs: the output slots, with their shapes and dtypes.
        drops: the slots that no later computation reads.
        name: the operator's name.
        take: takes the list of all slots; returns the contents of ``reads``.
        op: the operator; None for a reshape.
    """

    forward: Callable[..., Any] | None
    reads: tuple[int, ...]
    outputs: tuple[tuple[int, Any, Any], ...]
    drops: tuple[int, ...]
    name: str
    take: Callable[[list[Any]], Sequence[Any]]
    op: Operator | None = None


class Total(NamedTuple):
    """The use of a variable's total.

    Attributes:
        forward: adds the total to the buffer; None: the total replaces the buffer's content.
        slot: the total's slot.
        leaf: the variable's number.
        owned: whether nothing else refers to the total's memory, so that it may be moved to the buffer.
    """

    forward: Callable[..., Any] | None
    slot: int
    leaf: int
    owned: bool


class Program(NamedTuple):
    """One operation of a replay.

    Attributes:
        steps: the computations and stores, in execution order.
        sources: the slots that hold arrays of the tape, as (slot, node number, position in the node).
        leaves: the variables whose buffers are written.
        light, short, nbytes: as in :class:`~flowmx.engine.scheduler.Operation`.
    """

    steps: tuple[Step | Total, ...]
    sources: tuple[tuple[int, int, int], ...]
    leaves: tuple[int, ...]
    light: bool
    short: bool
    nbytes: int


def slot_getter(slots: tuple[int, ...]) -> Callable[[list[Any]], Sequence[Any]]:
    """Return a function, implemented in C, that selects these slots."""
    return itemgetter(*slots) if len(slots) > 1 else itemgetter(slice(slots[0], slots[0] + 1) if slots else slice(0))


def storage_of(saved: Any) -> Storage:
    """Return the storage of an array that a tape node saved."""
    return saved if type(saved) is Storage else saved.storage


class Pass:
    """A replayed pass while it runs.

    Args:
        programs: its operations.
        count: the number of slots.
        frames: the frames of the replay.

    Attributes:
        slots: the arrays by slot; empty before the first operation runs.
        failures: the failures by slot.
        frame: the frame that it uses, or None.
    """

    def __init__(self, programs: Sequence[Program], count: int, frames: Frames) -> None:
        self.programs = programs
        self.slots: list[Any] = []
        self.failures: dict[int, Failure] = {}
        self.frame: Frame | None = None
        self._count, self._frames = count, frames

    def begin(self, run: Run, number: int) -> None:
        """Prepare the slots, at the first operation that runs."""
        if not self.slots:
            frame = None if number else self._frames.take(self.programs, self._count, run)
            self.frame = frame
            self.slots = [None] * self._count if frame is None else frame.slots

    def end(self, number: int) -> None:
        """Return the frame after the last operation."""
        if self.frame is not None and number + 1 == len(self.programs):
            self._frames.give(self.frame)
            self.frame, self.slots = None, []


def compute(
    run: Run, number: int, state: Pass, arrays: Sequence[Any], grads: Sequence[BaseArray], op: Operation
) -> None:
    """Run one operation of a pass.

    Args:
        run: the device and mode.
        number: its position.
        state: the pass.
        arrays: the contents of the program's sources.
        grads: the gradients of the variables.
        op: the operation.
    """
    state.begin(run, number)
    program, slots, failures = state.programs[number], state.slots, state.failures
    for (slot, _, _), array in zip(program.sources, arrays, strict=True):
        slots[slot] = array.array if type(array) is Storage else array.raw()
    if engine.poisoned:
        for (slot, _, _), array in zip(program.sources, arrays, strict=True):
            failure = storage_of(array).failure
            if failure is not None:
                failures[slot] = failure
        if failures or op.writes[0].failure is not None:
            state.frame = None
            _compute_after_failure(run, program.steps, slots, failures, grads, op)
            return
    if state.frame is None:
        _compute_steps(run, program, slots, failures, grads, op)
    elif _compute_in_frame(run, state.frame.runs[number], state, program, grads, op):
        state.end(number)


def _compute_in_frame(
    run: Run, framed: FramedProgram, state: Pass, program: Program, grads: Sequence[BaseArray], op: Operation
) -> bool:
    """Run the steps of one operation in a frame; return False if one failed, which ends the use of the frame."""
    slots, failures = state.slots, state.failures
    try:
        framed.compute(run)
    except Exception as error:  # operators may raise anything
        at = framed.current
        step = program.steps[at]
        state.frame = None
        _fail(failure_of(error, bulks.named(op, getattr(step, "name", op.name))), step, failures, grads, op)
        totals = [each for each in program.steps[:at] if isinstance(each, Total)]
        _compute_after_failure(run, [*totals, *program.steps[at + 1 :]], slots, failures, grads, op)
        return False
    for at, total in enumerate(framed.totals):
        try:
            _store(run, total, slots, grads[total.leaf])
        except Exception as error:  # the memory of a buffer may be exhausted
            state.frame = None
            _fail(failure_of(error, bulks.named(op, op.name)), total, failures, grads, op)
            _compute_after_failure(run, framed.totals[at + 1 :], slots, failures, grads, op)
            return False
        grads[total.leaf].storage.failure = None
    framed.clear()
    return True


def _compute_steps(
    run: Run, program: Program, slots: list[Any], failures: dict[int, Failure], grads: Sequence[BaseArray],
    op: Operation,
) -> None:  # fmt: skip
    """Run the steps of one operation, each with new memory for its outputs."""
    new = run.device.allocate
    for at, step in enumerate(program.steps):
        try:
            if type(step) is Total:
                _store(run, step, slots, grads[step.leaf])
                grads[step.leaf].storage.failure = None
                continue
            forward, reads, outputs, drops, _, take, _ = step  # type: ignore[misc]
            if forward is None:
                slots[outputs[0][0]] = slots[reads[0]].reshape(outputs[0][1])
            elif len(outputs) == 1:
                slot, shape, dtype = outputs[0]
                slots[slot] = array = new(shape, dtype)
                forward(run, take(slots), [array])
                del array
            else:
                for slot, shape, dtype in outputs:
                    slots[slot] = new(shape, dtype)
                forward(run, take(slots), [slots[slot] for slot, _, _ in outputs])
            for slot in drops:
                slots[slot] = None
        except Exception as error:  # operators may raise anything
            _fail(failure_of(error, bulks.named(op, getattr(step, "name", op.name))), step, failures, grads, op)
            _compute_after_failure(run, program.steps[at + 1 :], slots, failures, grads, op)
            return


def _compute_after_failure(
    run: Run, steps: Sequence[Step | Total], slots: list[Any], failures: dict[int, Failure], grads: Sequence[BaseArray],
    op: Operation,
) -> None:  # fmt: skip
    """Run steps after a failure: a step that reads a failed slot fails too; all others run."""
    new = run.device.allocate
    for step in steps:
        reads = (step.slot,) if isinstance(step, Total) else step.reads
        # The order variable has a failure if a whole operation of this pass was aborted.
        failure = next((failures[slot] for slot in reads if slot in failures), op.writes[0].failure)
        if failure is None:
            try:
                if isinstance(step, Total):
                    _store(run, step, slots, grads[step.leaf])
                    grads[step.leaf].storage.failure = None
                elif step.forward is None:
                    slots[step.outputs[0][0]] = slots[reads[0]].reshape(step.outputs[0][1])
                else:
                    for slot, shape, dtype in step.outputs:
                        slots[slot] = new(shape, dtype)
                    step.forward(run, [slots[slot] for slot in reads], [slots[slot] for slot, _, _ in step.outputs])
            except Exception as error:  # operators may raise anything
                failure = failure_of(error, bulks.named(op, getattr(step, "name", op.name)))
        if failure is not None:
            _fail(failure, step, failures, grads, op)


def _fail(
    failure: Failure, step: Step | Total, failures: dict[int, Failure], grads: Sequence[BaseArray], op: Operation
) -> None:
    """Assign the failure of a step to its outputs."""
    if isinstance(step, Total):
        engine.poison(failure, (grads[step.leaf].storage,), op)
        return
    for slot, _, _ in step.outputs:
        failures[slot] = failure
    engine.poison(failure, (), op)


def _store(run: Run, total: Total, slots: list[Any], grad: BaseArray) -> None:
    """Move a total's memory to a gradient buffer, or copy the content if either memory has other users."""
    array, storage = slots[total.slot], grad.storage
    if total.forward is not None:
        buffer = grad.raw_for_writing()
        total.forward(run, [buffer, array], [buffer])
        return
    slots[total.slot] = None
    if total.owned and sys.getrefcount(array) <= REFERENCES_OF_LOCAL and (
        storage.array is None or sys.getrefcount(storage.array) <= REFERENCES_OF_ATTRIBUTE
    ):  # fmt: skip
        storage.array = array
        return
    slots[total.slot] = array
    run.device.copy(array, grad.raw_for_writing())
