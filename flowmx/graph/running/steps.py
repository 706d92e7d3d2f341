"""Steps of a plan with their arrays, and how a list of them is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from flowmx.graph.node import Node
from flowmx.observability.safety import stepping, watch
from flowmx.ops.compiled.sliced import Sliced
from flowmx.ops.registry.dtypes import name_of
from flowmx.ops.registry.operators import Array, Run
from flowmx.profiler import stepping as timing


class Step(NamedTuple):
    """A computation, and the arrays it reads and writes."""

    forward: Callable[..., None]
    inputs: list[Array]
    outputs: list[Array]
    node: Node


class Part:
    """Steps of one device that run in one operation, again and again.

    Args:
        run: what they may ask for.
        where: what messages call the graph.
        once: steps that run only where what they read has changed.
        steps: the others.
    """

    def __init__(self, run: Run, where: str, once: Sequence[Step] = (), steps: Sequence[Step] = ()) -> None:
        self.once = list(once)
        self.steps = list(steps)
        self._run = run
        self._where = where
        self._versions: tuple[Any, ...] | None = None

    def compute(self, versions: tuple[Any, ...] = (), again: bool = True) -> None:
        """Run the steps.

        Args:
            versions: what tells whether anything that ``once`` reads has changed since the last run.
            again: whether the device may launch the steps as one.
        """
        if self.once and versions != self._versions:
            run_steps(self._run, self.once, self._where)
            self._versions = versions
        run_steps(self._run, self.steps, self._where, again)


def run_steps(run: Run, steps: Sequence[Step], where: str, again: bool = False) -> None:
    """Run steps one after the other, or as one where the device can.

    Args:
        run: theirs.
        steps: what to run.
        where: what messages call the whole.
        again: whether this list of steps comes again and again.

    Raises:
        Exception: what a step raises, with notes that name its node, its inputs and the line that made it.
    """
    step: Step | None = None
    look = watch.current()
    try:
        if look is not None:
            look.went_through = True
            for step in steps:
                stepping.run(look, run, step)
            return
        record = timing.current()
        if record is not None:
            for step in steps:
                timing.run(record, run, step)
            return
        graphs = run.device.graphs if again else None
        for step in steps if graphs is None else graphs.run(run, steps):
            step[0](run, step[1], step[2])
    except Exception as error:
        if step is not None and not isinstance(step.node.op, Sliced):  # its own step has done so
            _explain(error, step, where)
        raise


def launches(nodes: Iterable[Node]) -> int:
    """The number of launches that steps are where a device launches those in a row as one."""
    rows = groupby(nodes, lambda node: node.op is not None and node.op.traits.replays)
    return sum([sum(map(_launches, row)) if is_staged else 1 for is_staged, row in rows])


def _launches(node: Node) -> int:
    assert isinstance(node.op, Sliced)
    return node.op.launches()


def _explain(error: Exception, step: Step, where: str) -> None:
    node = step.node
    shapes = ", ".join(
        f"{entry.node.output_name(entry.index)}: "
        f"{'not read' if each is None else f'{tuple(each.shape)} {name_of(each.dtype)}'}"
        for entry, each in zip(node.inputs, step.inputs, strict=False)
    )
    error.add_note(f"flowmx: in node {node.name!r} ({node.op!r}) of {where}, made at {node.place()}")
    error.add_note(f"flowmx: its inputs: {shapes}")
