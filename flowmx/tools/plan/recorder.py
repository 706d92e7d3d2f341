"""Records the steps and the memory of a program on simulated devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from flowmx import autograd
from flowmx.devices.sim import SimDevice, System
from flowmx.devices.sim.clock import Path
from flowmx.devices.sim.ledger import Ledger
from flowmx.errors import OutOfMemory
from flowmx.graph.reports.precision import in_use
from flowmx.graph.reports.unfolded import describe_slices
from flowmx.graph.running.results import Results, live, observers
from flowmx.ndarray import NDArray
from flowmx.observability.safety import step_counter

BY_UPDATES, BY_BACKWARD = "updates of the weights", "backward passes"
BY_PREDICTIONS = "batches of predictions"

on_prediction: list[Callable[[], None]] = []
"""The callbacks after a batch of predictions of a planned model."""


class StopProgram(BaseException):
    """Ends a program after the requested number of steps. A BaseException, so that programs do not catch it."""


class Mark(NamedTuple):
    """The state of the machine at a point in simulated time.

    Attributes:
        seconds: time at which all launched work has completed.
        path: seconds on the critical path by kind of work.
        launching: seconds that the host has spent on launches.
        busy: seconds of work by stream.
        operators: seconds of kernels by operator.
    """

    seconds: float
    path: Path
    launching: float
    busy: Mapping[str, float]
    operators: Mapping[str, float]


class Recorder:
    """Records the steps and the memory of a program.

    Args:
        machine: the simulated machine.
        max_steps: maximum number of steps; None: no limit.

    Attributes:
        ledgers: memory ledgers by device.
        exceeded: the first out-of-memory message by device.
        layers: names of the layers of the compiled graphs, by precision.
        slices: descriptions of the graph regions that run in slices of the batch.
    """

    def __init__(self, machine: System, max_steps: int | None) -> None:
        self._machine = machine
        self._max_steps = max_steps
        self.ledgers: dict[SimDevice, Ledger] = {}
        self.exceeded: dict[SimDevice, str] = {}
        self.layers: Mapping[str, Sequence[str]] = {}
        self.slices: dict[str, None] = {}
        self._others = live()
        begin = mark(machine)
        self._marks = {kind: [begin] for kind in (BY_UPDATES, BY_BACKWARD, BY_PREDICTIONS)}
        self._first: Any = None  # the device whose backward passes are counted
        for device in machine.devices.values():
            self._follow(device)

    def _follow(self, device: SimDevice) -> None:
        ledger = self.ledgers[device] = Ledger(device.compute)
        device.pool.on_change = ledger.record
        device.pool.on_excess = partial(self._exceeded, device)

    def _exceeded(self, device: SimDevice, error: OutOfMemory) -> None:
        self.exceeded[device] = str(error)

    def __enter__(self) -> Recorder:
        step_counter.observers.append(self._on_step)
        autograd.before_backward.append(self._on_backward)
        observers.append(self._on_compiled)
        on_prediction.append(self._on_prediction)
        return self

    def __exit__(self, *error: object) -> None:
        self.layers = self.layers or in_use(self._others)
        self._others.clear()
        step_counter.observers.remove(self._on_step)
        autograd.before_backward.remove(self._on_backward)
        observers.remove(self._on_compiled)
        on_prediction.remove(self._on_prediction)

    def marks(self) -> tuple[str, list[Mark]]:
        """Return the kind of event that counts as a step, and its marks: the start, then the ends of steps."""
        kind = next((kind for kind, marks in self._marks.items() if len(marks) > 1), BY_BACKWARD)
        return kind, self._marks[kind]

    # -- notifications ---------------------------------------------------------------------------------

    def _on_step(self, owner: object) -> None:
        """Record an update of the weights."""
        by_role = getattr(owner, "_arrays_by_role", None)
        for role, arrays in ({} if by_role is None else by_role()).items():
            self._name(arrays, role)
        self._end_of_step(BY_UPDATES)

    def _on_backward(self, heads: Iterable[NDArray]) -> None:
        """Record a backward pass. Without weight updates, the backward passes of the first device count as steps."""
        device = next(iter(heads)).storage.device
        self._first = self._first or device
        if device is self._first:
            self._end_of_step(BY_BACKWARD)

    def _on_prediction(self) -> None:
        """Record a batch of predictions."""
        self._end_of_step(BY_PREDICTIONS)

    def _end_of_step(self, kind: str) -> None:
        self._marks[kind].append(mark(self._machine))
        self.layers = in_use(self._others)
        if self.marks()[0] == kind and self._max_steps is not None and len(self._marks[kind]) > self._max_steps:
            raise StopProgram

    def _on_compiled(self, results: Results) -> None:
        """Record a compiled graph."""
        self.slices |= dict.fromkeys(describe_slices(results.plan))

    def _name(self, arrays: Iterable[NDArray], role: str) -> None:
        for array in arrays:
            device = array.storage.device
            if isinstance(device, SimDevice) and device in self.ledgers:
                block = device.block_of(array.storage)
                self.ledgers[device].name([] if block is None else [block], role)


def mark(machine: System) -> Mark:
    """Return a mark of a machine after its pending work has completed."""
    machine.advance_clock()
    clock = machine.clock
    return Mark(*clock.end(), clock.launching, dict(clock.busy), dict(machine.operators))
