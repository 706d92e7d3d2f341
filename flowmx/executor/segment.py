"""Segments: the steps of a pass cut into engine operations, with the variables that they read and write.

Consecutive steps on one device form a segment. The segments of a device run in order, since each *writes* the variable
of the arena. In a stage with several branches, each branch is a segment that only *reads* that variable: they may run
concurrently, after everything before the stage, and later segments wait for all of them. A copy to or from a device
with separate memory is a segment on the actor for such copies: its result is outside the arena, so it waits only for
its value.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from flowmx.devices import Device
from flowmx.engine import Actor
from flowmx.engine.scheduler import Variable
from flowmx.graph.node import Entry
from flowmx.graph.running.arenas import Arena
from flowmx.graph.running.runner import Runner
from flowmx.graph.running.steps import Part, launches
from flowmx.ndarray.array import NDArray


class Segment:
    """Consecutive steps on one device.

    Attributes:
        device: the device.
        part: the steps.
        is_branch: whether others may run concurrently.
        actor: the actor that runs it, if not the device's compute actor.
        reads, writes: the variables to declare.
        read, written: the user's arrays that it reads and writes, by entry.
        separate, separate_bytes: the entries with separate memory that it writes.
        is_tied: whether its steps are bound to these arrays.
        draws: whether a step draws random numbers.
        drawn_from: the generator state before its last draws.
    """

    def __init__(self, device: Device, part: Part, is_branch: bool, actor: Actor | None = None) -> None:
        self.device = device
        self.part = part
        self.is_branch = is_branch
        self.actor = actor
        self.reads: dict[Variable, None] = {}
        self.writes: dict[Variable, None] = {}
        self.read: dict[Entry, NDArray] = {}
        self.written: dict[Entry, NDArray] = {}
        self.separate: list[Entry] = []
        self.separate_bytes = 0
        self.is_tied = False
        self.draws = False
        self.drawn_from: Any = None
        self._declared: tuple[tuple[Variable, ...], tuple[Variable, ...]] | None = None

    def declared(self) -> tuple[tuple[Variable, ...], tuple[Variable, ...]]:
        """Return the variables that the segment reads and those that it writes, for a push."""
        if self._declared is None:
            self._declared = tuple(self.reads), tuple(self.writes)
        return self._declared

    def moves(self) -> list[tuple[str, int]] | None:
        """Return the transfer that a copy costs on a simulated device: ("there", bytes); None for other segments."""
        return None if self.actor is None else [("there", self.separate_bytes)]

    @cached_property
    def launches(self) -> int:
        """The number of launches on a device that launches consecutive steps as one."""
        return launches(step.node for step in self.part.steps)

    def declare_read(self, entry: Entry, array: NDArray) -> None:
        """Declare a read of a user's array."""
        self.reads[array.storage] = None
        self.read[entry] = array

    def declare_write(self, entry: Entry, array: NDArray, reads: bool = False) -> None:
        """Declare a write of a user's array, and optionally a read of its content."""
        self.writes[array.storage] = None
        self.written[entry] = array
        if reads or array.strided_view is not None:
            self.reads[array.storage] = None


class SegmentBuilder:
    """Creates the segments of a pass, in order.

    Args:
        runner: the runner of the steps.
        arena: the memory that they use.
        continues: whether the pass starts with the values of another pass.
    """

    def __init__(self, runner: Runner, arena: Arena, continues: bool) -> None:
        self.segments: list[Segment] = []
        self._runner = runner
        self._arena = arena
        self._continues = continues
        self._started: set[Device] = set()
        self._starts_new = False
        self._branches: list[Variable] = []
        """Variables that the preceding parallel branches write, one for each branch."""
        self._open: list[Variable] = []

    def segment_on(self, device: Device) -> Segment:
        """Return the segment for the next step on a device, after all steps before."""
        last = self.segments[-1] if self.segments else None
        if last is None or self._starts_new or last.device is not device or last.is_branch:
            self._starts_new = False
            segment = self._add(device, is_branch=False)
            workspace = self._arena.variable(device)
            segment.writes[workspace] = None
            if self._continues or device in self._started:
                segment.reads[workspace] = None  # so that earlier failures propagate
            self._started.add(device)
        return self.segments[-1]

    def start_new(self) -> None:
        """Start another segment with the next step."""
        self._starts_new = True

    def branch(self, device: Device) -> Segment:
        """Create a segment that may run concurrently with others of its stage."""
        segment = self._add(device, is_branch=True)
        segment.reads[self._arena.variable(device)] = None
        mark = Variable("branch")
        segment.writes[mark] = None
        self._open.append(mark)
        return segment

    def copy(self, device: Device, source: Device) -> Segment:
        """Create a segment for a copy to a device, concurrent with its computation."""
        return self._add(device, is_branch=True, actor=device.copy_actor(source))

    def _add(self, device: Device, is_branch: bool, actor: Actor | None = None) -> Segment:
        segment = Segment(device, self._runner.part(device), is_branch, actor)
        segment.reads.update(dict.fromkeys(self._branches))
        self.segments.append(segment)
        return segment

    def end_stage(self) -> None:
        """End the stage: later segments wait for all branches so far."""
        if self._open:
            self._branches, self._open = self._open, []

    def join(self, devices: Iterable[Device]) -> None:
        """Add a segment without steps on each device: branches of different passes must not overlap."""
        for device in devices:
            self.segment_on(device)
