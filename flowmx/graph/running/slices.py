"""The forward of a region that runs in slices: its plan's runner, given a part of the batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowmx.graph.running.steps import run_steps
from flowmx.ops.compiled.sliced import Sliced
from flowmx.ops.registry.operators import Array, Run

if TYPE_CHECKING:
    from flowmx.graph.running.runner import Runner


class InSlices:
    """A forward (``TiedForward``) for one step of a plan.

    Args:
        op: the operator.
        runner: of the operator's plan.
        where: what messages call the graph.
    """

    def __init__(self, op: Sliced, runner: Runner, where: str) -> None:
        self._op, self._runner, self._where = op, runner, where
        self._steps = [*runner.forward, *runner.endings[0]]
        self._whole = [at for at, rows in enumerate(op.rows) if not rows]
        self._parts = [at for at, rows in enumerate(op.rows) if rows]
        self._given = [*[op.variables[at] for at in self._parts], *runner.results.outputs]
        graph = runner.plan.graph
        self._lengths = [*[op.rows[at] for at in self._parts], *[graph.shapes[entry][0] for entry in graph.outputs]]

    stale: bool | None = None

    def use(self, memory: Array | None) -> None:
        """Work in this memory from now on."""
        for context in self._runner.plan.arenas:
            self._runner.settle(context, memory)

    def __call__(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute all slices."""
        op, runner = self._op, self._runner
        runner.bind([op.variables[at] for at in self._whole], [inputs[at] for at in self._whole])
        arrays = [*[inputs[at] for at in self._parts], *outputs]
        examples, length = op.batch
        first = len(op.rows)
        for number, starts in enumerate(op.starts):
            begin = min(number * length, examples - length)
            where = f"{self._where} (examples {begin} to {begin + length - 1} of {examples})"
            begins = [*[starts[at] for at in self._parts], *starts[first:]]
            cut = zip(arrays, begins, self._lengths, strict=True)
            runner.bind(self._given, [array[row : row + rows] for array, row, rows in cut])
            run_steps(run, self._steps, where)
        runner.bind(self._given, [None] * len(self._given))
