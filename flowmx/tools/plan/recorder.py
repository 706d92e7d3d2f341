"""Recorder of a program on simulated devices: the ends of its steps, and the roles of its memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from flowmx import autograd
from flowmx.devices.sim import SimDevice, System
from flowmx.devices.sim.clock import Path
from flowmx.devices.sim.ledger import Ledger
from flowmx.errors import OutOfMemory
from flowmx.graph.reports.precision import in_use
from flowmx.graph.reports.unfolded import in_words
from flowmx.graph.running.results import Results, live, observers
from flowmx.ndarray import NDArray
from flowmx.observability.safety import steps

BY_UPDATES, BY_BACKWARD = "updates of the weights", "backward passes"


class Enough(BaseException):
    """Ends a program that has made as many steps as were asked for; no program catches it by accident."""


class Mark(NamedTuple):
    """State of the machine, in simulated time.

    Attributes:
        seconds: when all that was launched is done.
        path: the seconds until then by kind of work, on the way there.
        launching: seconds that launches took the host so far.
        busy: seconds of work by stream.
        operators: seconds of kernels by operator.
    """

    seconds: float
    path: Path
    launching: float
    busy: Mapping[str, float]
    operators: Mapping[str, float]


class Recorder:
    """Notes the steps and the memory of a program.

    Args:
        machine: the machine that it runs on.
        most: the steps after which it is to end; None: when it ends by itself.

    Attributes:
        ledgers: by device.
        exceeded: by device, what its pool had to say when its memory was full first.
        layers: the names of the layers of its compiled graphs, by the precision in which they multiply.
        slices: the regions of these that run in slices of the batch, and how.
    """

    def __init__(self, machine: System, most: int | None) -> None:
        self._machine = machine
        self._most = most
        self.ledgers: dict[SimDevice, Ledger] = {}
        self.exceeded: dict[SimDevice, str] = {}
        self.layers: Mapping[str, Sequence[str]] = {}
        self.slices: dict[str, None] = {}
        self._others = live()
        begin = mark(machine)
        self._marks = {BY_UPDATES: [begin], BY_BACKWARD: [begin]}
        self._first: Any = None  # the device whose backward passes are counted
        for device in machine.devices.values():
            self._follow(device)

    def _follow(self, device: SimDevice) -> None:
        ledger = self.ledgers[device] = Ledger(device.compute)
        device.pool.moved = ledger.note
        device.pool.excess = partial(self._exceeded, device)

    def _exceeded(self, device: SimDevice, error: OutOfMemory) -> None:
        self.exceeded[device] = str(error)

    def __enter__(self) -> Recorder:
        steps.observers.append(self._stepped)
        autograd.before_backward.append(self._passed_back)
        observers.append(self._planned)
        return self

    def __exit__(self, *error: object) -> None:
        self.layers = self.layers or in_use(self._others)
        self._others.clear()
        steps.observers.remove(self._stepped)
        autograd.before_backward.remove(self._passed_back)
        observers.remove(self._planned)

    def marks(self) -> tuple[str, list[Mark]]:
        """The kind of event that counts as a step, and its marks: the beginning, then the end of each step."""
        kind = BY_UPDATES if len(self._marks[BY_UPDATES]) > 1 else BY_BACKWARD
        return kind, self._marks[kind]

    # -- notifications ---------------------------------------------------------------------------------

    def _stepped(self, owner: Any) -> None:
        """The weights were updated."""
        by_role = getattr(owner, "_arrays_by_role", None)
        for role, arrays in ({} if by_role is None else by_role()).items():
            self._name(arrays, role)
        self._end_of_step(BY_UPDATES)

    def _passed_back(self, heads: Iterable[NDArray]) -> None:
        """A backward pass begins; the first device's count as steps, where nobody else updates weights."""
        device = next(iter(heads))._storage.device
        self._first = self._first or device
        if device is self._first:
            self._end_of_step(BY_BACKWARD)

    def _end_of_step(self, kind: str) -> None:
        self._marks[kind].append(mark(self._machine))
        self.layers = in_use(self._others)
        if self.marks()[0] == kind and self._most is not None and len(self._marks[kind]) > self._most:
            raise Enough

    def _planned(self, made: Results) -> None:
        """A graph was compiled."""
        self.slices |= dict.fromkeys(in_words(made.plan))

    def _name(self, arrays: Iterable[NDArray], role: str) -> None:
        for array in arrays:
            device = array._storage.device
            if isinstance(device, SimDevice) and device in self.ledgers:
                block = device.block_of(array._storage)
                self.ledgers[device].name([] if block is None else [block], role)


def mark(machine: System) -> Mark:
    """Take a mark of a machine, once all that it was given is done."""
    machine.settle()
    clock = machine.clock
    return Mark(*clock.end(), clock.launching, dict(clock.busy), dict(machine.operators))
