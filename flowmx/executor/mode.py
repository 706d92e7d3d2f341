"""A graph compiled for one mode, training or prediction: a plan bound to arrays, cut into operations of the engine.

Steps in a row on one device are one :class:`Segment`, which is one operation; a graph on one device has one segment
for its forward pass and one for its backward pass.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from flowmx.devices import Context, Device
from flowmx.engine.scheduler import Variable
from flowmx.executor.segment import Cut, Segment
from flowmx.graph.graph import written
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan
from flowmx.graph.planning import handover
from flowmx.graph.running.memory import Arena
from flowmx.graph.running.results import Results
from flowmx.graph.running.runner import Runner
from flowmx.graph.running.steps import Step
from flowmx.ndarray import core
from flowmx.ndarray.array import NDArray


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
    """

    def __init__(
        self, plan: Plan, train: bool, devices: Mapping[Context | None, Device], arena: Arena,
        arrays: Mapping[Node, NDArray], outputs: Sequence[NDArray], gradients: Mapping[Node, NDArray],
        requests: Mapping[Node, str],
    ) -> None:  # fmt: skip
        self.plan = plan
        self.runner = Runner(Results(plan, requests), devices, train, "a bound graph")
        self._arena = arena
        self._used = list(dict.fromkeys(devices.values()))
        ops = [node.op for node in (*plan.once, *plan.forward, *plan.backward) if node.op is not None]
        self.random = any(op.traits.uses_random for op in ops)
        self.detached = any(op.traits.detached for op in ops)
        results = self.runner.results
        self._bound = {Entry(node, 0): array for node, array in arrays.items()}
        """The user's arrays by the entries that they are put under."""
        self._bound |= zip(results.outputs, outputs, strict=True)
        self._bound |= {entry: gradients[node] for node, entry in results.gradients.items()}
        self._trained = list(gradients)
        self._crossing = {entry: Variable(entry.node.output_name(entry.index)) for entry in plan.kept}
        self._segments: dict[tuple[bool, bool], list[Segment]] = {}
        self._lock = threading.RLock()
        self._went_apart = True
        """True while the last forward pass was pushed without a backward pass."""
        read_once = {entry.node for node in plan.once for entry in node.inputs if entry.node.is_variable}
        self._read_once = [arrays[node]._storage for node in read_once]

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
        runner = self.runner
        cut = Cut(runner, self._arena, goes_on=not forward)
        has_branches = any(len(stage) > 1 for stages in self.plan.stages for stage in stages)
        if has_branches:
            cut.meet(self._used)
        if forward:
            for step in runner.once:
                segment = cut.at(runner.device(step.node))
                segment.part.once.append(step)
                self._declare(segment, step)
            self._cut_pass(cut, runner.forward, is_backward=False)
        if backward:
            self._cut_pass(cut, runner.backward, is_backward=True)
        if has_branches:
            cut.meet(self._used)
        return cut.segments

    def _cut_pass(self, cut: Cut, steps: Sequence[Step], is_backward: bool) -> None:
        runner = self.runner
        for stage in _stages(steps, self.plan.stages[is_backward]):
            if len(stage) == 1:
                self._cut_row(cut, stage[0], is_backward)
            else:
                self._cut_stage(cut, stage)
        for ending, step in zip(runner.results.endings[is_backward], runner.endings[is_backward], strict=True):
            segment = cut.at(runner.device(ending.node))
            segment.part.steps.append(step)
            if ending.source is not None:
                self._declare_read(segment, ending.source)
            segment.declare_write(ending.target, self._bound[ending.target], ending.adds)

    def _cut_row(self, cut: Cut, steps: Sequence[Step], is_backward: bool) -> None:
        """Cut steps in a row where they have made many gradients, or are the first to read many parameters."""
        nodes, results = [step.node for step in steps], self.runner.results
        found = results.handed_over(nodes) if is_backward else handover.first_read(nodes, self._trained)
        for piece in handover.pieces(steps, handover.cuts([results.nbytes(variables) for variables in found])):
            self._cut_stage(cut, [piece])
            cut.here()

    def _cut_stage(self, cut: Cut, stage: Sequence[Sequence[Step]]) -> None:
        for chain in stage:
            segment: Segment | None = None
            for step in chain:
                device = self.runner.device(step.node)
                if step.node in self.plan.travelling:
                    segment = cut.travel(device, self.runner.device(step.node.inputs[0].node))
                elif len(stage) == 1:
                    segment = cut.at(device)
                elif segment is None or segment.device is not device:
                    segment = cut.branch(device)
                segment.part.steps.append(step)
                self._declare(segment, step)
        cut.end_stage()

    def _declare(self, segment: Segment, step: Step) -> None:
        node = step.node
        assert node.op is not None
        for entry in node.inputs:
            self._declare_read(segment, entry)
        for index in range(node.outputs()):
            entry = Entry(node, index)
            if entry in self._bound:
                segment.declare_write(entry, self._bound[entry])
            elif entry in self._crossing:
                segment.writes[self._crossing[entry]] = None
                segment.kept.append(entry)
                segment.kept_bytes += self.plan.nbytes(entry)
        for variable in written([node], self.plan.graph.train):
            entry = Entry(variable, 0)
            if entry in self._bound:
                segment.declare_write(entry, self._bound[entry])
        if node.op.traits.uses_random:
            segment.writes[segment.device.generator] = None
            segment.draws = True

    def _declare_read(self, segment: Segment, entry: Entry) -> None:
        root = self.plan.root.get(entry, entry)
        if root in self._bound:
            segment.declare_read(root, self._bound[root])
        elif root in self._crossing:
            segment.reads[self._crossing[root]] = None

    # -- running ---------------------------------------------------------------------------------------

    def _run(self, segment: Segment, versions: tuple[int, ...], again: bool) -> None:
        """The operation: run the steps of a segment (on its device's actor)."""
        generator, now = segment.device.generator, None
        if segment.draws and generator.goes_back:
            if again and segment.drawn_from is not None:
                now, generator.state = generator.state, segment.drawn_from
            else:
                segment.drawn_from = generator.state
        try:
            if not segment.is_tied:
                self._tie(segment)
            if segment.actor is None:
                self._arena.settle(self.runner, segment.device)
            segment.part.compute(versions, again=segment.actor is None)
        finally:
            if now is not None:
                generator.state = now

    _run.captured_by = lambda segment, versions, again: (segment, None, segment.launches)  # type: ignore[attr-defined]
    _run.moves = lambda segment, versions, again: segment.moves()  # type: ignore[attr-defined]

    def _tie(self, segment: Segment) -> None:
        """Bind the steps of a segment to the user's arrays, at its first run, when these are allocated."""
        with self._lock:
            self.runner.allocate_kept(segment.kept)
        # What is written goes first: it may be read here, too.
        self.runner.bind(segment.written, [array._written() for array in segment.written.values()])
        self.runner.bind(segment.read, [array._read() for array in segment.read.values()])
        segment.is_tied = True


def _stages(steps: Sequence[Step], stages: Sequence[Sequence[Sequence[Node]]]) -> list[list[list[Step]]]:
    """Steps in the stages of their nodes; all in one row where there are none."""
    if not stages:
        return [[list(steps)]]
    by_node = {step.node: step for step in steps}
    return [[[by_node[node] for node in chain if node in by_node] for chain in stage] for stage in stages]
