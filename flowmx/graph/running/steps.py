"""Steps of a plan with their arrays, and how a list of them runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from flowmx.graph.node import Node
from flowmx.observability.safety import graph_watch, nan_watch
from flowmx.ops.compiled.sliced import Sliced
from flowmx.ops.registry.dtypes import name_of
from flowmx.ops.registry.operators import Array, Run
from flowmx.profiler import graph_steps


class Launcher(Protocol):
    """Launches repeated steps together.

    Attributes:
        failed: the step that failed in the launcher, or None.
    """

    failed: Step | None

    @property
    def is_short(self) -> bool:
        """Whether the last run took little time."""

    def run(self, run: Run, steps: Sequence[Step], /) -> Iterable[Step]:
        """Launch steps; return or yield those that must be computed separately, in order."""


Refresh = Callable[[tuple[Any, ...], Callable[[Sequence["Step"]], None]], None]
"""Called with the versions of inputs, and a function that runs steps."""


class Step(NamedTuple):
    """A computation, and the arrays it reads and writes.

    Attributes:
        is_native: whether the forward touches arrays only in native calls, if it makes any.
    """

    forward: Callable[..., None]
    inputs: list[Array | None]
    outputs: list[Array | None]
    node: Node
    is_native: bool = False


class Part:
    """Steps of one device that run as one operation, repeatedly.

    Args:
        run: the operation's context.
        where: the name of the graph in messages.
        once: steps that run only if their inputs have changed.
        steps: the other steps.
        launcher: launches the other steps, if they run on a device that does not launch steps itself.
    """

    def __init__(
        self, run: Run, where: str, once: Sequence[Step] = (), steps: Sequence[Step] = (),
        launcher: Launcher | None = None,
    ) -> None:  # fmt: skip
        self.once = list(once)
        self.steps = list(steps)
        self.launcher = launcher
        self._run = run
        self._where = where
        self.refresh: Refresh | None = None
        """Runs those of the ``once`` steps whose results are not current; None: all of them run."""
        self.versions: tuple[Any, ...] | None = None
        """The versions of the inputs of ``once`` in the last run."""

    @property
    def is_short(self) -> bool:
        """Whether its last run took little time, so that the pushing thread may run it."""
        return self.launcher is not None and self.launcher.is_short

    def compute(self, versions: tuple[object, ...] = (), capture: bool = True) -> None:
        """Run the steps.

        Args:
            versions: the versions of the inputs of ``once``, to compare with those of the last run.
            capture: whether the device may launch the steps as one.
        """
        if self.once and versions != self.versions:
            if self.refresh is None:
                run_steps(self._run, self.once, self._where)
            else:
                self.refresh(versions, partial(run_steps, self._run, where=self._where))
            self.versions = versions
        run_steps(self._run, self.steps, self._where, capture, self.launcher if capture else None)


def run_steps(
    run: Run, steps: Sequence[Step], where: str, capture: bool = False, launcher: Launcher | None = None
) -> None:  # fmt: skip
    """Run steps in order, or as one launch if the device supports it.

    Args:
        run: the operation's context.
        steps: the steps.
        where: the name of the graph in messages.
        capture: whether the device may launch the steps as one, since the list runs repeatedly.
        launcher: launches the steps, if the device does not.

    Raises:
        Exception: any error of a step, with notes that name its node, its inputs and the user's line.
    """
    step: Step | None = None
    watcher = nan_watch.current()
    try:
        if watcher is not None:
            watcher.steps_checked = True
            for step in steps:
                graph_watch.run_step(watcher, run, step)
            return
        record = graph_steps.current()
        if record is not None:
            for step in steps:
                graph_steps.run_step(record, run, step)
            return
        graphs = run.device.graphs if capture else None
        graphs = launcher if graphs is None else graphs
        for step in steps if graphs is None else graphs.run(run, steps):
            step[0](run, step[1], step[2])
    except Exception as error:  # notes are added to any error
        if launcher is not None and launcher.failed is not None:
            step = launcher.failed
        if step is not None and not isinstance(step.node.op, Sliced):  # its inner step has added the notes
            _explain(error, step, where)
        raise


def launches(nodes: Iterable[Node]) -> int:
    """Return the number of launches of steps, if a device launches consecutive replayable ones as one."""
    rows = groupby(nodes, lambda node: node.op is not None and node.op.traits.replays)
    return sum([sum(map(_launches, row)) if is_staged else 1 for is_staged, row in rows])


def _launches(node: Node) -> int:
    assert isinstance(node.op, Sliced)
    return node.op.launches()


def _explain(error: Exception, step: Step, where: str) -> None:
    node = step.node
    shapes = ", ".join(
        f"{entry.node.output_name(entry.index)}: "
        f"{'not read' if array is None else f'{tuple(array.shape)} {name_of(array.dtype)}'}"
        for entry, array in zip(node.inputs, step.inputs, strict=False)
    )
    error.add_note(f"flowmx: in node {node.name!r} ({node.op!r}) of {where}, made at {node.place()}")
    error.add_note(f"flowmx: its inputs: {shapes}")
