"""The forward of a region that runs in slices: the runner of its plan, bound to one part of the batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flowmx.graph.node import Entry
from flowmx.graph.running.steps import Step, run_steps
from flowmx.ops.compiled.sliced import Sliced, Staged
from flowmx.ops.registry.operators import Array, Operator, Run, Shape

if TYPE_CHECKING:
    from flowmx.graph.running.runner import Runner


class Summing:
    """The forward of a sum over slices: it writes the first term and adds the others."""

    adds = False
    stale: bool | None = None
    only_native = False

    def use(self, memory: Array | None) -> None:
        """Do nothing: it needs no memory."""

    def __call__(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Write or add the term of a slice."""
        if self.adds:
            run.xp.add(outputs[0], inputs[0], out=outputs[0])
        else:
            run.xp.copyto(outputs[0], inputs[0])


class Drawing:
    """The forward of a random operator, which for each slice starts at the generator state of the whole batch.

    So the numbers equal those of the whole batch, though others are drawn in between.

    Args:
        forward: the operator's forward.
        op: the operator.
        shapes: the shapes of its outputs, in a slice.
    """

    def __init__(self, forward: Callable[..., None], op: Operator, shapes: Sequence[Shape]) -> None:
        self._forward, self._op, self._shapes = forward, op, shapes
        self._states: Iterator[Any] = iter(())

    def prepare(self, run: Run, count: int) -> None:
        """Skip the draws of ``count`` slices, and record the state where each begins."""
        states = []
        for _ in range(count):
            states.append(run.device.generator.state)
            if run.device.has_numerics:
                self._op.skip_draws(run, self._shapes)
        self._states = iter(states)

    def __call__(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the next slice."""
        run.device.generator.state = next(self._states)
        self._forward(run, inputs, outputs)


class InSlices:
    """A forward (``TiedForward``) for one step of a plan.

    Args:
        op: the operator.
        runner: of the operator's plan.
        where: the name of the graph in messages.
    """

    stale: bool | None = None
    only_native = False

    def __init__(self, op: Sliced, runner: Runner, where: str) -> None:
        self._op, self._runner, self._where = op, runner, where
        self._steps = [*runner.forward, *runner.copy_outs[0], *runner.backward, *runner.copy_outs[1]]
        self._before, self._steps, self._after = _split(self._steps)
        self._sums = [forward for forward in runner.first_consumer.values() if isinstance(forward, Summing)]
        self._draws: list[Drawing] = []
        for at, step in enumerate(self._steps):
            if step.node.op is not None and step.node.op.draws(runner.plan.graph.train):
                shapes = [runner.plan.graph.shapes[Entry(step.node, at)] for at in range(step.node.outputs())]
                self._draws.append(Drawing(step.forward, step.node.op, shapes))
                self._steps[at] = step._replace(forward=self._draws[-1])
        results = runner.results
        entries = [*op.variables, *results.outputs, *results.gradients.values()]
        self._whole = [at for at, rows in enumerate(op.rows) if not rows]
        self._parts = [at for at, rows in enumerate(op.rows) if rows]
        self._entries_whole = [entries[at] for at in self._whole]
        self._entries_parts = [entries[at] for at in self._parts]

    def use(self, memory: Array | None) -> None:
        """Use this memory from now on."""
        for context in self._runner.plan.arenas:
            self._runner.bind_arena(context, memory)

    def __call__(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute all slices."""
        op, runner = self._op, self._runner
        arrays = [*inputs, *outputs]
        runner.bind(self._entries_whole, [arrays[at] for at in self._whole])
        for draw in self._draws:
            draw.prepare(run, len(op.starts))
        after = run.device.generator.state if self._draws else None
        examples, length = op.batch
        for number, starts in enumerate(op.starts):
            begin = min(number * length, examples - length)
            where = f"{self._where} (examples {begin} to {begin + length - 1} of {examples})"
            cut = [arrays[at][starts[at] : starts[at] + op.rows[at]] for at in self._parts]
            runner.bind(self._entries_parts, cut)
            for term in self._sums:
                term.adds = number > 0
            run_steps(run, self._before, where)
            run_steps(run, self._steps, where, capture=op.staged)
            run_steps(run, self._after, where)
        if self._draws:
            run.device.generator.state = after
        runner.bind(self._entries_parts, [None] * len(self._parts))


def _split(steps: list[Step]) -> tuple[list[Step], list[Step], list[Step]]:
    """Return the copies at the beginning, the steps in between, and the copies at the end."""
    is_copy = [isinstance(step.node.op, Staged) for step in steps]
    start = (*is_copy, False).index(False)
    stop = len(steps) - (*is_copy[:start:-1], False).index(False)
    return steps[:start], steps[start:stop], steps[stop:]
