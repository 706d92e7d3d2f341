"""Segments: the steps of a pass cut into operations of the engine, with what each reads and writes.

Steps in a row on one device are one segment, and those of a device run one after the other, since each *writes* the
variable of the arena. Where a stage has several branches, each of them is a segment that only *reads* that variable:
they may run at the same time, after what was before the stage, and what comes after waits for all of them. A copy to or
from a device with memory of its own is a segment on the actor of such copies: its result lies outside the arena, so it
waits for its value alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from flowmx.devices import Device
from flowmx.engine import Actor
from flowmx.engine.scheduler import Variable
from flowmx.graph.node import Entry
from flowmx.graph.running.memory import Arena
from flowmx.graph.running.runner import Runner
from flowmx.graph.running.steps import Part, launches
from flowmx.ndarray.array import NDArray


class Segment:
    """Steps in a row on one device.

    Attributes:
        device: where they run.
        part: the steps.
        is_branch: True where others may run at the same time.
        actor: who runs it, if not the device's own.
        reads, writes: the variables to declare.
        read, written: the user's arrays among what it touches, by entry.
        kept, kept_bytes: what it writes that has memory of its own.
        is_tied: True once its steps have these arrays.
        draws: True where a step draws random numbers.
        drawn_from: the state of the generator from which it drew the last time.
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
        self.kept: list[Entry] = []
        self.kept_bytes = 0
        self.is_tied = False
        self.draws = False
        self.drawn_from: Any = None
        self._declared: tuple[tuple[Variable, ...], tuple[Variable, ...]] | None = None

    def declared(self) -> tuple[tuple[Variable, ...], tuple[Variable, ...]]:
        """The variables that the segment reads and those that it writes, as tags for a push."""
        if self._declared is None:
            self._declared = tuple(self.reads), tuple(self.writes)
        return self._declared

    def moves(self) -> list[tuple[str, int]] | None:
        """The transfer that a copy costs on a simulated device: ("there", bytes); None for other segments."""
        return None if self.actor is None else [("there", self.kept_bytes)]

    @cached_property
    def launches(self) -> int:
        """The number of launches of a device that launches steps in a row as one."""
        return launches(step.node for step in self.part.steps)

    def declare_read(self, entry: Entry, array: NDArray) -> None:
        """Declare a read of a user's array."""
        self.reads[array._storage] = None
        self.read[entry] = array

    def declare_write(self, entry: Entry, array: NDArray, reads: bool = False) -> None:
        """Declare a write of a user's array, and optionally a read of its content."""
        self.writes[array._storage] = None
        self.written[entry] = array
        if reads or array._view is not None:
            self.reads[array._storage] = None


class Cut:
    """Makes the segments of a pass, one after the other.

    Args:
        runner: whose steps they are.
        arena: the memory that they use.
        goes_on: True where they begin with what another pass has left.
    """

    def __init__(self, runner: Runner, arena: Arena, goes_on: bool) -> None:
        self.segments: list[Segment] = []
        self._runner = runner
        self._arena = arena
        self._goes_on = goes_on
        self._begun: set[Device] = set()
        self._anew = False
        self._branches: list[Variable] = []
        """Variables that the preceding parallel branches write, one for each branch."""
        self._open: list[Variable] = []

    def at(self, device: Device) -> Segment:
        """The segment for the next step on a device, after all that was before."""
        last = self.segments[-1] if self.segments else None
        if last is None or self._anew or last.device is not device or last.is_branch:
            self._anew = False
            segment = self._add(device, is_branch=False)
            workspace = self._arena.variable(device)
            segment.writes[workspace] = None
            if self._goes_on or device in self._begun:
                segment.reads[workspace] = None  # so that what went wrong before it goes on
            self._begun.add(device)
        return self.segments[-1]

    def here(self) -> None:
        """Begin another segment with the next step."""
        self._anew = True

    def branch(self, device: Device) -> Segment:
        """A new segment that may run at the same time as others of its stage."""
        segment = self._add(device, is_branch=True)
        segment.reads[self._arena.variable(device)] = None
        mark = Variable("branch")
        segment.writes[mark] = None
        self._open.append(mark)
        return segment

    def travel(self, device: Device, source: Device) -> Segment:
        """A new segment for a copy to a device, concurrent with what it computes."""
        return self._add(device, is_branch=True, actor=device.copy_actor(source))

    def _add(self, device: Device, is_branch: bool, actor: Actor | None = None) -> Segment:
        made = Segment(device, self._runner.part(device), is_branch, actor)
        made.reads.update(dict.fromkeys(self._branches))
        self.segments.append(made)
        return made

    def end_stage(self) -> None:
        """Close the stage: segments made from now on wait for all branches so far."""
        if self._open:
            self._branches, self._open = self._open, []

    def meet(self, devices: Iterable[Device]) -> None:
        """Let each device wait, in a segment without steps: branches must not meet those of another pass."""
        for device in devices:
            self.at(device)
