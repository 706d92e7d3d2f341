"""What an executor runs in one mode: a plan tied to the bound arrays, cut into operations of the engine.

Steps in a row on one device are one :class:`Segment`, which is one operation; a graph on one device has one segment
for its forward pass and one for its backward pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flowmx.devices import Context, Device
from flowmx.engine.scheduler import Variable
from flowmx.executor.arena import Arena
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan
from flowmx.graph.tied import Step, Tied, run_steps
from flowmx.ndarray import core
from flowmx.ndarray.array import NDArray
from flowmx.ops.registry import Run


class Segment:
    """Steps in a row on one device.

    Attributes:
        device: where they run.
        once: steps that run only where what they read has changed.
        done_once: the versions of what they read when they last ran.
        steps: the others.
        reads, writes: the variables to declare.
        read, written: the user's arrays among what it touches, by entry.
        zeroed: arrays to fill with 0 at its first run.
        is_tied: True once its steps have these arrays.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.once: list[Step] = []
        self.done_once: tuple[int, ...] | None = None
        self.steps: list[Step] = []
        self.reads: dict[Variable, None] = {}
        self.writes: dict[Variable, None] = {}
        self.read: dict[Entry, NDArray] = {}
        self.written: dict[Entry, NDArray] = {}
        self.zeroed: Sequence[NDArray] = ()
        self.is_tied = False

    def declare_read(self, entry: Entry, array: NDArray) -> None:
        """Say that it reads an array of the user's."""
        self.reads[array._storage] = None
        self.read[entry] = array

    def declare_write(self, entry: Entry, array: NDArray, reads: bool = False) -> None:
        """Say that it writes one, and perhaps reads what is there."""
        self.writes[array._storage] = None
        self.written[entry] = array
        if reads or array._view is not None:
            self.reads[array._storage] = None


class Ending(NamedTuple):
    """A step after those of the plan: it brings a value to an array of the user's."""

    function: Callable[..., None]
    source: Entry
    target: NDArray
    node: Node


class Mode:
    """A plan with the arrays that an executor has bound.

    Args:
        plan: what to run.
        train: whether in training mode.
        devices: where, by context, and the default one under None.
        arena: the memory for internal values.
        arrays: what is bound to the variables.
        outputs: where the outputs go.
        gradients: where gradients go, by variable.
        requests: ``write`` or ``add`` for each of these.
        unreached: arrays for gradients of what the outputs do not depend on.
    """

    def __init__(
        self, plan: Plan, train: bool, devices: Mapping[Context | None, Device], arena: Arena,
        arrays: Mapping[Node, NDArray], outputs: Sequence[NDArray], gradients: Mapping[Node, NDArray],
        requests: Mapping[Node, str], unreached: Sequence[NDArray] = (),
    ) -> None:  # fmt: skip
        self.plan = plan
        self.tied = Tied(plan, devices)
        self._arena = arena
        self._arrays = arrays
        self._unreached = unreached
        memo: dict[Any, Any] = {}
        self._runs = {device: Run(device, train, memo) for device in devices.values()}
        nodes = [node for node in (*plan.once, *plan.forward, *plan.backward) if node.op is not None]
        self.random = any(node.op is not None and node.op.uses_random for node in nodes)
        self.detached = any(node.op is not None and node.op.detached for node in nodes)
        self._external: dict[Entry, NDArray] = {}
        """What the plan writes straight into."""
        self._crossing = {entry: Variable(entry.node.output_name(entry.index)) for entry in plan.kept}
        ends: tuple[list[Ending], list[Ending]] = ([], [])
        for entry, output in zip(plan.outputs, outputs, strict=True):
            if entry in plan.external and entry not in plan.root and entry not in self._external:
                self._external[entry] = output
            else:
                ends[0].append(Ending(_copy, entry, output, entry.node))
        for node, entry in plan.gradients.items():
            if requests[node] == "add":
                ends[1].append(Ending(_accumulate, entry, gradients[node], node))
            elif entry in plan.external and entry not in plan.root and entry not in self._external:
                self._external[entry] = gradients[node]
            else:
                ends[1].append(Ending(_copy, entry, gradients[node], node))
        self._ends = tuple([[(end, *self._step_of(end)) for end in group] for group in ends])
        self._segments: dict[tuple[bool, bool], list[Segment]] = {}
        self._lock = threading.Lock()
        self._has_kept = False
        read_once = {entry.node for node in plan.once for entry in node.inputs if entry.node.is_variable}
        self._read_once = [arrays[node]._storage for node in read_once]

    def _step_of(self, end: Ending) -> tuple[Step, Entry]:
        """The step of an ending, and the entry that stands for its target."""
        target = Entry(Node(None, f"{end.node.name} handed out"), 0)
        return self.tied.step(end.function, [end.source], [target], end.node), target

    # -- enqueueing ------------------------------------------------------------------------------------

    def push(self, name: str, forward: bool, backward: bool) -> None:
        """Enqueue a forward pass, a backward pass, or both."""
        segments = self._segments.get((forward, backward))
        if segments is None:
            segments = self._segments[forward, backward] = self._cut(forward, backward)
        versions = tuple([storage.version for storage in self._read_once])
        for segment in segments:
            core.push_on(
                segment.device, self._run, (segment, versions), tuple(segment.reads), tuple(segment.writes), name,
                False, 0, 4, self.detached,
            )  # fmt: skip

    def _cut(self, forward: bool, backward: bool) -> list[Segment]:
        """The segments of a pass, with what they read and write."""
        cut: list[Segment] = []
        begun: set[Device] = set()

        def at(node: Node) -> Segment:
            device = self.tied.device(node)
            if not cut or cut[-1].device is not device:
                cut.append(Segment(device))
                workspace = self._arena.variable(device)
                cut[-1].writes[workspace] = None
                if not forward or device in begun:
                    cut[-1].reads[workspace] = None  # so that what went wrong before it goes on
                begun.add(device)
            return cut[-1]

        for is_on, once, steps, ends in (
            (forward, self.tied.once, self.tied.forward, self._ends[0]),
            (backward, [], self.tied.backward, self._ends[1]),
        ):
            for step in once if is_on else ():
                segment = at(step.node)
                segment.once.append(step)
                self._declare(segment, step)
            for step in steps if is_on else ():
                segment = at(step.node)
                segment.steps.append(step)
                self._declare(segment, step)
            for end, step, target in ends if is_on else ():
                segment = at(end.node)
                segment.steps.append(step)
                self._declare_read(segment, end.source)
                segment.declare_write(target, end.target, end.function is _accumulate)
        if backward and cut:
            cut[-1].zeroed = self._unreached
            cut[-1].writes.update(dict.fromkeys(array._storage for array in self._unreached))
        return cut

    def _declare(self, segment: Segment, step: Step) -> None:
        node = step.node
        assert node.op is not None
        for entry in node.inputs:
            self._declare_read(segment, entry)
        for index in range(node.outputs()):
            entry = Entry(node, index)
            if entry in self._external:
                segment.declare_write(entry, self._external[entry])
            elif entry in self._crossing:
                segment.writes[self._crossing[entry]] = None
        changed = set(node.op.updates)
        if self._runs[segment.device].train:
            changed |= set(range(node.auxiliary_from(), len(node.inputs)))
        for position in changed:
            variable = node.inputs[position].node
            if variable in self._arrays:
                segment.declare_write(node.inputs[position], self._arrays[variable])
        if node.op.uses_random:
            segment.writes[segment.device.generator] = None

    def _declare_read(self, segment: Segment, entry: Entry) -> None:
        root = self.plan.root.get(entry, entry)
        bound = self._arrays.get(root.node) if root.node.is_variable else self._external.get(root)
        if bound is not None:
            segment.declare_read(root, bound)
        elif root in self._crossing:
            segment.reads[self._crossing[root]] = None

    # -- running ---------------------------------------------------------------------------------------

    def _run(self, segment: Segment, versions: tuple[int, ...]) -> None:
        """The operation: run the steps of a segment (on its device's actor)."""
        if not segment.is_tied:
            self._tie(segment)
        context = segment.device.context
        if context in self.plan.arenas:
            self.tied.settle(context, self._arena.block(segment.device, self.plan.arenas[context]))
        run = self._runs[segment.device]
        if segment.once and versions != segment.done_once:
            run_steps(run, segment.once, "a bound graph")
            segment.done_once = versions
        run_steps(run, segment.steps, "a bound graph")

    def _tie(self, segment: Segment) -> None:
        """Tie the steps of a segment to the user's arrays, which are there when it runs first."""
        with self._lock:
            if not self._has_kept:
                self.tied.allocate_kept()
                self._has_kept = True
        for entry, array in segment.read.items():
            self.tied.put(entry, array._read())
        for entry, array in segment.written.items():
            self.tied.put(entry, array._written())
        for array in segment.zeroed:
            array._written()[...] = 0
        segment.is_tied = True


def _copy(run: Run, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    run.xp.copyto(outputs[0], inputs[0], casting="unsafe")


def _accumulate(run: Run, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    run.xp.add(outputs[0], inputs[0], out=outputs[0], casting="unsafe")
