"""A graph compiled for one mode, training or prediction: a plan bound to arrays, cut into engine operations.

Consecutive steps on one device form a :class:`Segment`, which is one operation. A graph on one device has one segment
for its forward pass and one for its backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowmx import forks
from flowmx.devices import Context, Device
from flowmx.devices.launch_traits import LaunchTraits, set_launch_traits
from flowmx.engine.scheduler import Variable
from flowmx.executor.segment import Segment, SegmentBuilder
from flowmx.graph.graph import written_variables
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan
from flowmx.graph.planning import pass_pieces
from flowmx.graph.running.arenas import Arena
from flowmx.graph.running.results import Results
from flowmx.graph.running.runner import Runner
from flowmx.graph.running.steps import Step
from flowmx.ndarray import core
from flowmx.ndarray.array import NDArray


class Mode:
    """A plan with the arrays that an executor has bound.

    Args:
        plan: the plan.
        train: whether in training mode.
        devices: the devices by context, and the default one under None.
        arena: the memory for internal values.
        arrays: the arrays of the variables.
        outputs: the arrays of the outputs.
        gradients: the arrays of the gradients, by variable.
        requests: ``write`` or ``add`` for each gradient.
    """

    def __init__(
        self, plan: Plan, train: bool, devices: Mapping[Context | None, Device], arena: Arena,
        arrays: Mapping[Node, NDArray], outputs: Sequence[NDArray], gradients: Mapping[Node, NDArray],
        requests: Mapping[Node, str],
    ) -> None:  # fmt: skip
        self.plan = plan
        self.runner = Runner(Results(plan, requests), devices, train, "a bound graph")
        self._arena = arena
        self._devices = list(dict.fromkeys(devices.values()))
        ops = [node.op for node in (*plan.once, *plan.forward, *plan.backward) if node.op is not None]
        self.random = any(op.traits.uses_random for op in ops)
        self.detached = any(op.traits.detached for op in ops)
        results = self.runner.results
        self._bound = {Entry(node, 0): array for node, array in arrays.items()}
        """The user's arrays by the entries that they are bound to."""
        self._bound |= zip(results.outputs, outputs, strict=True)
        self._bound |= {entry: gradients[node] for node, entry in results.gradients.items()}
        self._grad_nodes = list(gradients)
        self._separate = {entry: Variable(entry.node.output_name(entry.index)) for entry in plan.separate}
        self._segments: dict[tuple[bool, bool], list[Segment]] = {}
        self._lock = forks.lock()
        self._was_separate = True
        """Whether the last forward pass was pushed without a backward pass."""
        read_once = {entry.node for node in plan.once for entry in node.inputs if entry.node.is_variable}
        self._read_once = [arrays[node].storage for node in read_once]

    # -- enqueueing ------------------------------------------------------------------------------------

    def push(self, name: str, forward: bool, backward: bool, replay: bool = False) -> None:
        """Enqueue a forward pass, a backward pass, or both.

        Args:
            name: the name in messages.
            forward: whether to run the forward pass.
            backward: whether to run the backward pass.
            replay: whether the forward pass repeats its last random draws.
        """
        if replay and self._was_separate:
            self._push(name, True, False, True)
            forward = False
        elif forward:
            self._was_separate = not backward
        self._push(name, forward, backward, replay and forward)

    def _push(self, name: str, forward: bool, backward: bool, replay: bool) -> None:
        segments = self._segments.get((forward, backward))
        if segments is None:
            segments = self._segments[forward, backward] = self._cut(forward, backward)
        versions = tuple([storage.version for storage in self._read_once])
        for segment in segments:
            core.push_on(
                segment.device, self._run, (segment, versions, replay), *segment.declared(), name,
                False, 0, 4, self.detached, segment.actor,
            )  # fmt: skip

    def check_repeatable(self) -> None:
        """Check that a second run of the forward pass would compute the same values.

        Raises:
            NotImplementedError: it draws random numbers on a device whose generator cannot be reset.
        """
        if self.random and not all(device.generator.can_be_restored for device in self._devices):
            raise NotImplementedError(
                "backward: the previous backward pass used up the values of the forward pass, and its random numbers "
                "cannot be drawn again on this device: call forward(is_train=True) again, or bind with "
                "FLOWMX_EXEC_ENABLE_INPLACE=0 and FLOWMX_EXEC_MATCH_RANGE=0, which keep the values"
            )

    def _cut(self, forward: bool, backward: bool) -> list[Segment]:
        """Return the segments of a pass, with the variables that they read and write."""
        runner = self.runner
        builder = SegmentBuilder(runner, self._arena, continues=not forward)
        has_branches = any(len(stage) > 1 for stages in self.plan.stages for stage in stages)
        if has_branches:
            builder.join(self._devices)
        if forward:
            for step in runner.once:
                segment = builder.segment_on(runner.device(step.node))
                segment.part.once.append(step)
                self._declare(segment, step)
            self._cut_pass(builder, runner.forward, is_backward=False)
        if backward:
            self._cut_pass(builder, runner.backward, is_backward=True)
        if has_branches:
            builder.join(self._devices)
        return builder.segments

    def _cut_pass(self, builder: SegmentBuilder, steps: Sequence[Step], is_backward: bool) -> None:
        runner = self.runner
        for stage in _stages(steps, self.plan.stages[is_backward]):
            if len(stage) == 1:
                self._cut_steps(builder, stage[0], is_backward)
            else:
                self._cut_stage(builder, stage)
        for copy_out, step in zip(runner.results.copy_outs[is_backward], runner.copy_outs[is_backward], strict=True):
            segment = builder.segment_on(runner.device(copy_out.node))
            segment.part.steps.append(step)
            if copy_out.source is not None:
                self._declare_read(segment, copy_out.source)
            segment.declare_write(copy_out.target, self._bound[copy_out.target], copy_out.adds)

    def _cut_steps(self, builder: SegmentBuilder, steps: Sequence[Step], is_backward: bool) -> None:
        """Cut consecutive steps after many gradients are complete, or before the first reads of many parameters."""
        nodes, results = [step.node for step in steps], self.runner.results
        variables = results.direct_gradients(nodes) if is_backward else pass_pieces.first_read(nodes, self._grad_nodes)
        for piece in pass_pieces.pieces(steps, pass_pieces.cuts([results.nbytes(row) for row in variables])):
            self._cut_stage(builder, [piece])
            builder.start_new()

    def _cut_stage(self, builder: SegmentBuilder, stage: Sequence[Sequence[Step]]) -> None:
        for chain in stage:
            segment: Segment | None = None
            for step in chain:
                device = self.runner.device(step.node)
                if step.node in self.plan.transfers:
                    segment = builder.copy(device, self.runner.device(step.node.inputs[0].node))
                elif len(stage) == 1:
                    segment = builder.segment_on(device)
                elif segment is None or segment.device is not device:
                    segment = builder.branch(device)
                segment.part.steps.append(step)
                self._declare(segment, step)
        builder.end_stage()

    def _declare(self, segment: Segment, step: Step) -> None:
        node = step.node
        assert node.op is not None
        for entry in node.inputs:
            self._declare_read(segment, entry)
        for index in range(node.outputs()):
            entry = Entry(node, index)
            if entry in self._bound:
                segment.declare_write(entry, self._bound[entry])
            elif entry in self._separate:
                segment.writes[self._separate[entry]] = None
                segment.separate.append(entry)
                segment.separate_bytes += self.plan.nbytes(entry)
        for variable in written_variables([node], self.plan.graph.train):
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
        elif root in self._separate:
            segment.reads[self._separate[root]] = None

    # -- running ---------------------------------------------------------------------------------------

    def _run(self, segment: Segment, versions: tuple[int, ...], replay: bool) -> None:
        """Run the steps of a segment (the operation, on its device's actor)."""
        generator, now = segment.device.generator, None
        if segment.draws and generator.can_be_restored:
            if replay and segment.drawn_from is not None:
                now, generator.state = generator.state, segment.drawn_from
            else:
                segment.drawn_from = generator.state
        try:
            if not segment.is_tied:
                self._bind_arrays(segment)
            if segment.actor is None:
                self._arena.attach(self.runner, segment.device)
            segment.part.compute(versions, capture=segment.actor is None)
        finally:
            if now is not None:
                generator.state = now

    set_launch_traits(
        _run,
        LaunchTraits(
            captured_by=lambda segment, versions, replay: (segment, None, segment.launches),
            moves=lambda segment, versions, replay: segment.moves(),
        ),
    )

    def _bind_arrays(self, segment: Segment) -> None:
        """Bind the steps of a segment to the user's arrays, at its first run, when these are allocated."""
        with self._lock:
            self.runner.allocate_separate(segment.separate)
        # Written arrays first: they may be read here, too.
        self.runner.bind(segment.written, [array.raw_for_writing() for array in segment.written.values()])
        self.runner.bind(segment.read, [array.raw() for array in segment.read.values()])
        segment.is_tied = True


def _stages(steps: Sequence[Step], stages: Sequence[Sequence[Sequence[Node]]]) -> list[list[list[Step]]]:
    """Group steps into the stages of their nodes; without stages, into one row."""
    if not stages:
        return [[list(steps)]]
    by_node = {step.node: step for step in steps}
    return [[[by_node[node] for node in chain if node in by_node] for chain in stage] for stage in stages]
