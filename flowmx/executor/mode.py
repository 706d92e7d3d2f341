"""A graph compiled for one mode, training or prediction: a plan bound to arrays, cut into operations of the engine.

Steps in a row on one device are one :class:`Segment`, which is one operation; a graph on one device has one segment
for its forward pass and one for its backward pass.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flowmx.devices import Context, Device
from flowmx.engine.scheduler import Variable
from flowmx.executor.arena import Arena
from flowmx.executor.segment import Cut, Segment
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan
from flowmx.graph.planning import handover
from flowmx.graph.tied import Step, Tied, run_steps
from flowmx.ndarray import core
from flowmx.ndarray.array import NDArray
from flowmx.ops.registry.operators import Run


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
        self._train = train
        self._gradients = gradients
        self._memo: dict[Any, Any] = {}
        self._used = list(dict.fromkeys(devices.values()))
        nodes = [node for node in (*plan.once, *plan.forward, *plan.backward) if node.op is not None]
        self.random = any(node.op is not None and node.op.uses_random for node in nodes)
        self.detached = any(node.op is not None and node.op.detached for node in nodes)
        self._external: dict[Entry, NDArray] = {}
        """Bound arrays that the plan writes directly, without a copy at the end."""
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
        self._lock = threading.RLock()
        self._went_apart = True
        """True while the last forward pass was pushed without a backward pass."""
        read_once = {entry.node for node in plan.once for entry in node.inputs if entry.node.is_variable}
        self._read_once = [arrays[node]._storage for node in read_once]

    def _step_of(self, end: Ending) -> tuple[Step, Entry]:
        """The step of an ending, and the entry that stands for its target."""
        target = Entry(Node(None, f"{end.node.name} handed out"), 0)
        return self.tied.step(end.function, [end.source], [target], end.node), target

    # -- enqueueing ------------------------------------------------------------------------------------

    def push(self, name: str, forward: bool, backward: bool, again: bool = False) -> None:
        """Enqueue a forward pass, a backward pass, or both.

        Args:
            name: what messages call it.
            forward: whether to run that.
            backward: likewise.
            again: whether the forward pass draws the random numbers that it drew the last time.
        """
        if again and self._went_apart:
            self._push(name, True, False, True)
            forward = False
        elif forward:
            self._went_apart = not backward
        self._push(name, forward, backward, again and forward)

    def _push(self, name: str, forward: bool, backward: bool, again: bool) -> None:
        segments = self._segments.get((forward, backward))
        if segments is None:
            segments = self._segments[forward, backward] = self._cut(forward, backward)
        versions = tuple([storage.version for storage in self._read_once])
        for segment in segments:
            core.push_on(
                segment.device, self._run, (segment, versions, again), *segment.declared(), name,
                False, 0, 4, self.detached, segment.actor,
            )  # fmt: skip

    def check_repeatable(self) -> None:
        """Check that a second run of the forward pass gives the same values.

        Raises:
            NotImplementedError: it draws random numbers on a device whose generator can not go back.
        """
        if self.random and not all(device.generator.goes_back for device in self._used):
            raise NotImplementedError(
                "backward: the pass before this one used up what the forward pass left, and its random numbers can "
                "not be drawn again on this device: call forward(is_train=True) again, or bind with "
                "FLOWMX_EXEC_ENABLE_INPLACE=0 and FLOWMX_EXEC_MATCH_RANGE=0, which keep it"
            )

    def _cut(self, forward: bool, backward: bool) -> list[Segment]:
        """The segments of a pass, with the variables that they read and write."""
        cut = Cut(self._arena, self._train, self._memo, goes_on=not forward)
        has_branches = any(len(stage) > 1 for stages in self.plan.stages for stage in stages)
        if has_branches:
            cut.meet(self._used)
        if forward:
            for step in self.tied.once:
                segment = cut.at(self.tied.device(step.node))
                segment.once.append(step)
                self._declare(segment, step)
        for is_on, steps, stages, ends in (
            (forward, self.tied.forward, self.plan.stages[0], self._ends[0]),
            (backward, self.tied.backward, self.plan.stages[1], self._ends[1]),
        ):
            for stage in _stages(steps, stages) if is_on else ():
                if len(stage) == 1:
                    self._cut_row(cut, stage[0], self._handed_over(stage[0], is_backward=steps is self.tied.backward))
                else:
                    self._cut_stage(cut, stage)
            for end, step, target in ends if is_on else ():
                segment = cut.at(self.tied.device(end.node))
                segment.steps.append(step)
                self._declare_read(segment, end.source)
                segment.declare_write(target, end.target, end.function is _accumulate)
        if has_branches:
            cut.meet(self._used)
        for array in self._unreached if backward else ():
            segment = cut.at(array._storage.device)
            segment.zeroed.append(array)
            segment.writes[array._storage] = None
        return cut.segments

    def _handed_over(self, steps: Sequence[Step], is_backward: bool) -> list[int]:
        """Of each step, the bytes of gradients that it makes; or of parameters that it is the first to read."""
        trained = {node: math.prod(array.shape) * array._dtype.itemsize for node, array in self._gradients.items()}
        made = {entry: trained[node] for node, entry in self.plan.gradients.items() if entry in self._external}
        if is_backward:
            return [sum(made.get(Entry(step.node, i), 0) for i in range(step.node.outputs())) for step in steps]
        return [sum(trained.pop(entry.node, 0) for entry in step.node.inputs) for step in steps]

    def _cut_row(self, cut: Cut, steps: Sequence[Step], sizes: Sequence[int]) -> None:
        for piece in handover.pieces(steps, handover.cuts(sizes)):
            self._cut_stage(cut, [piece])
            cut.here()

    def _cut_stage(self, cut: Cut, stage: Sequence[Sequence[Step]]) -> None:
        for chain in stage:
            segment: Segment | None = None
            for step in chain:
                device = self.tied.device(step.node)
                if step.node in self.plan.travelling:
                    segment = cut.travel(device, self.tied.device(step.node.inputs[0].node))
                elif len(stage) == 1:
                    segment = cut.at(device)
                elif segment is None or segment.device is not device:
                    segment = cut.branch(device)
                segment.steps.append(step)
                self._declare(segment, step)
        cut.end_stage()

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
                segment.kept.append(entry)
                segment.kept_bytes += self.plan.nbytes(entry)
        changed = set(node.op.updates)
        if self._train:
            changed |= set(range(node.auxiliary_from(), len(node.inputs)))
        for position in changed:
            variable = node.inputs[position].node
            if variable in self._arrays:
                segment.declare_write(node.inputs[position], self._arrays[variable])
        if node.op.uses_random:
            segment.writes[segment.device.generator] = None
            segment.draws = True

    def _declare_read(self, segment: Segment, entry: Entry) -> None:
        root = self.plan.root.get(entry, entry)
        bound = self._arrays.get(root.node) if root.node.is_variable else self._external.get(root)
        if bound is not None:
            segment.declare_read(root, bound)
        elif root in self._crossing:
            segment.reads[self._crossing[root]] = None

    # -- running ---------------------------------------------------------------------------------------

    def _run(self, segment: Segment, versions: tuple[int, ...], again: bool) -> None:
        """The operation: run the steps of a segment (on its device's actor)."""
        generator = segment.device.generator
        if not segment.draws or not generator.goes_back:
            self._run_steps(segment, versions)
        elif again and segment.drawn_from is not None:
            now = generator.state
            generator.state = segment.drawn_from
            try:
                self._run_steps(segment, versions)
            finally:
                generator.state = now
        else:
            segment.drawn_from = generator.state
            self._run_steps(segment, versions)

    def _run_steps(self, segment: Segment, versions: tuple[int, ...]) -> None:
        if not segment.is_tied:
            self._tie(segment)
        if segment.actor is not None:
            run_steps(segment.run, segment.steps, "a bound graph")
            return
        context = segment.device.context
        if context in self.plan.arenas:
            self.tied.settle(context, self._arena.block(segment.device, self.plan.arenas[context]))
        if segment.once and versions != segment.done_once:
            run_steps(segment.run, segment.once, "a bound graph")
            segment.done_once = versions
        run_steps(segment.run, segment.steps, "a bound graph", again=True)
        for array in segment.zeroed:
            array._written()[...] = 0

    _run.captured_by = lambda segment, versions, again: (segment, None)  # type: ignore[attr-defined]
    _run.moves = lambda segment, versions, again: segment.moves()  # type: ignore[attr-defined]

    def _tie(self, segment: Segment) -> None:
        """Bind the steps of a segment to the user's arrays, at its first run, when these are allocated."""
        with self._lock:
            self.tied.allocate_kept(segment.kept)
        for entry, array in segment.written.items():  # first: what is written here may be read here, too
            self.tied.put(entry, array._written())
        for entry, array in segment.read.items():
            self.tied.put(entry, array._read())
        segment.is_tied = True


def _copy(run: Run, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    run.xp.copyto(outputs[0], inputs[0], casting="unsafe")


def _accumulate(run: Run, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    run.xp.add(outputs[0], inputs[0], out=outputs[0], casting="unsafe")


def _stages(steps: Sequence[Step], stages: Sequence[Sequence[Sequence[Node]]]) -> list[list[list[Step]]]:
    """Steps in the stages of their nodes; all in one row where there are none."""
    if not stages:
        return [[list(steps)]]
    by_node = {step.node: step for step in steps}
    return [[[by_node[node] for node in chain if node in by_node] for chain in stage] for stage in stages]
