"""Plans tied to memory: the steps with their arrays, ready to run again and again.

A :class:`Tied` plan has an arena, and an array for whatever lies outside of it, put there with :meth:`Tied.put`.
Who runs it sees to it that no two runs of the same one overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from flowmx import settings
from flowmx.devices import Context, Device
from flowmx.graph.checking.poison import Poisoned
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan
from flowmx.ndarray.core import forward_of
from flowmx.observability.safety import stepping, watch
from flowmx.ops.registry.dtypes import name_of
from flowmx.ops.registry.operators import Array, Run, Shape, TiedForward, tied_forward
from flowmx.profiler import stepping as timing


class Step(NamedTuple):
    """A computation, and the arrays it reads and writes."""

    forward: Callable[..., None]
    inputs: list[Array]
    outputs: list[Array]
    node: Node


class Tied:
    """A plan with its arrays.

    Args:
        plan: what runs.
        devices: where, by context; a plan that names no context is given one device under None.

    Attributes:
        once, forward, backward: the steps; their lists of arrays change as arrays are put.
    """

    def __init__(self, plan: Plan, devices: Mapping[Context | None, Device]) -> None:
        self.plan = plan
        self._devices = devices
        self._readers: dict[Entry, list[tuple[list[Array], int]]] = {}
        self._views: dict[Entry, list[Entry]] = {}
        self._settled: dict[Context | None, Array] = {}
        self._poisoned = Poisoned(plan, self._settled.__getitem__) if settings.get().exec_check else None
        self._tied: dict[Node, TiedForward] = {}
        self.arrays: dict[Entry, Array] = {}
        """The arrays put in place of entries."""
        self.once, self.forward, self.backward = (
            [step for node in nodes if (step := self._step_of(node)) is not None]
            for nodes in (plan.once, plan.forward, plan.backward)
        )

    def _step_of(self, node: Node) -> Step | None:
        """The step of a node, its arrays still missing; None where it has nothing to do."""
        assert node.op is not None
        outputs = [Entry(node, index) for index in range(node.outputs())]
        if outputs[0] in self.plan.root:
            self._views.setdefault(self.plan.root[outputs[0]], []).append(outputs[0])
            return None
        if not (any(self.plan.nbytes(each) for each in outputs) or node.op.writes_more()):
            return None
        tied = tied_forward(self.device(node).kernels, node.op)
        if tied is not None:
            self._tied[node] = tied
        device = self.device(node)
        forward = forward_of(node.op, device) if tied is None else device.timed(node.op, tied)
        if self._poisoned is not None and not node.op.once:
            forward = self._poisoned.wrap(forward, node)
        return self.step(forward, node.inputs, outputs, node)

    def step(
        self, forward: Callable[..., None], inputs: Sequence[Entry], outputs: Sequence[Entry], node: Node
    ) -> Step:  # fmt: skip
        """A further step, which reads and writes what is put for these entries."""
        made = Step(forward, [None] * len(inputs), [None] * len(outputs), node)
        for entries, arrays in ((inputs, made.inputs), (outputs, made.outputs)):
            for position, entry in enumerate(entries):
                self._readers.setdefault(entry, []).append((arrays, position))
                arrays[position] = self.arrays.get(entry)
        return made

    def device(self, node: Node) -> Device:
        """The device that a node runs on."""
        return self._devices[self.plan.graph.context(node)]

    def put(self, entry: Entry, array: Array | None) -> None:
        """Set the array of an entry (None: none) from the next run on; its views follow."""
        self.arrays[entry] = array
        for arrays, position in self._readers.get(entry, ()):
            arrays[position] = array
        for view in self._views.get(entry, ()):
            shown = None if array is None else array.reshape(self.plan.graph.shapes[view])
            self.arrays[view] = shown
            for arrays, position in self._readers.get(view, ()):
                arrays[position] = shown

    def settle(self, context: Context | None, memory: Array) -> None:
        """Put everything that lies in the arena of a device, which are these bytes."""
        if self._settled.get(context) is memory:
            return
        plan = self.plan
        for entry, place in plan.place.items():
            if plan.graph.context(entry.node) is context:
                start = plan.arena.offsets[place]
                part = memory[start : start + plan.nbytes(entry)].view(plan.graph.dtypes[entry])
                self.put(entry, shaped(part, plan.graph.shapes[entry], entry in plan.channels_last))
        for node, place in plan.workspace.items():
            if plan.graph.context(node) is context and node in self._tied:
                start = plan.arena.offsets[place]
                self._tied[node].use(memory[start : start + plan.lives[place].size])
        self._settled[context] = memory

    def unsettle(self) -> None:
        """Drop the arenas; :meth:`settle` must precede the next run."""
        for entry in self.plan.place:
            self.put(entry, None)
        for node in self.plan.workspace:
            if node in self._tied:
                self._tied[node].use(None)
        self._settled.clear()

    def allocate(self) -> None:
        """Allocate and settle arenas of its own."""
        for context, nbytes in self.plan.arenas.items():
            self.settle(context, self._devices[context].allocate((nbytes,), np.dtype(np.uint8)))

    def allocate_kept(self, entries: Iterable[Entry] | None = None) -> None:
        """Allocate and put what has memory of its own, or those entries of it, where that is not done."""
        graph = self.plan.graph
        for entry in self.plan.kept if entries is None else entries:
            if self.arrays.get(entry) is None:
                self.put(entry, self.device(entry.node).allocate(graph.shapes[entry], graph.dtypes[entry]))


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
        if step is not None:
            _explain(error, step, where)
        raise


def _explain(error: Exception, step: Step, where: str) -> None:
    node = step.node
    shapes = ", ".join(
        f"{entry.node.output_name(entry.index)}: "
        f"{'not read' if each is None else f'{tuple(each.shape)} {name_of(each.dtype)}'}"
        for entry, each in zip(node.inputs, step.inputs, strict=False)
    )
    error.add_note(f"flowmx: in node {node.name!r} ({node.op!r}) of {where}, made at {node.place()}")
    error.add_note(f"flowmx: its inputs: {shapes}")


def shaped(memory: Array, shape: Shape, is_channels_last: bool) -> Array:
    """Flat memory as an array of this shape."""
    if not is_channels_last:
        return memory.reshape(shape)
    rank = len(shape)
    return memory.reshape(shape[0], *shape[2:], shape[1]).transpose(0, rank - 1, *range(1, rank - 1))
