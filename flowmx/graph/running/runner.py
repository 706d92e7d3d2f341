"""Runners: plans with arrays, ready to run again and again.

A :class:`Runner` has an arena for each device, and an array for whatever lies outside of them, put there with
:meth:`Runner.put`. Its user sees to it that no two runs of the same one overlap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx import settings
from flowmx.devices import Context, Device
from flowmx.graph.checking.poison import Poisoned
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.workspace import laid
from flowmx.graph.running.ahead import compile_loops
from flowmx.graph.running.results import Ending, Results
from flowmx.graph.running.slices import InSlices, Summing
from flowmx.graph.running.steps import Part, Step
from flowmx.ndarray.core import forward_of
from flowmx.ops.compiled.chain import Chain
from flowmx.ops.compiled.sliced import Sliced, Summed
from flowmx.ops.registry.operators import Array, Run, Shape, TiedForward, tied_forward

if TYPE_CHECKING:
    from flowmx.graph.running.memory import Block


class Runner:
    """A plan with its arrays.

    Args:
        results: what runs, and where its results go.
        devices: where, by context; a plan that names no context is given one device under None.
        train: whether in training mode.
        where: what messages call the graph.

    Attributes:
        once, forward, backward: the steps of the plan; their lists of arrays change as arrays are put.
        tied: the forwards that are tied to a step's arrays, by node.
        endings: those that bring results to their arrays after the forward pass, and after the backward pass.
        block: the memory of its last call, where it runs for calls.
    """

    def __init__(self, results: Results, devices: Mapping[Context | None, Device], train: bool, where: str) -> None:
        plan = results.plan
        self.plan = plan
        self.results = results
        self._devices = devices
        self._train = train
        self._where = where
        self._memo: dict[Any, Any] = {}
        self.block: Block | None = None
        self._readers: defaultdict[Entry, list[tuple[list[Array], int, Shape | None, TiedForward | None]]]
        self._readers = defaultdict(list)
        self._settled: dict[Context | None, Array | None] = dict.fromkeys(plan.arenas)
        self._poisoned = Poisoned(plan, self._settled.__getitem__) if settings.get().exec_check else None
        self.tied: dict[Node, TiedForward] = {}
        self.kept: list[Array] = []
        """The arrays of parameters that were put last, for whoever puts them."""
        self.arrays: dict[Entry, Array] = {}
        """The arrays put in place of entries."""
        self.once, self.forward, self.backward = (
            [step for node in nodes if (step := self._step_of(node)) is not None]
            for nodes in (plan.once, plan.forward, plan.backward)
        )
        self.endings = tuple([[self._step_of_ending(each) for each in group] for group in results.endings])
        self._compile_ahead()

    def _compile_ahead(self) -> None:
        """Let what the steps run be compiled while the first ones already do."""
        nodes = [step.node for step in (*self.once, *self.forward, *self.backward) if type(step.node.op) is Chain]
        if nodes:
            compile_loops(nodes, lambda entry: laid(self.plan, entry), self.device(nodes[0]).kernels)

    def part(self, device: Device, once: Sequence[Step] = (), steps: Sequence[Step] = ()) -> Part:
        """Steps to run as one operation of a device."""
        return Part(Run(device, self._train, self._memo), self._where, once, steps)

    @cached_property
    def whole_forward(self) -> Part:
        """The forward pass of a plan for one device, its endings included."""
        return self.part(self._devices[self.plan.graph.default], self.once, [*self.forward, *self.endings[0]])

    @cached_property
    def backward_pieces(self) -> list[Part]:
        """The pieces of its backward pass, its endings included."""
        device = self._devices[self.plan.graph.default]
        rows = [[step for step in self.backward if step.node in piece.nodes] for piece in self.results.pieces]
        rows[-1] += self.endings[1]
        return [self.part(device, steps=row) for row in rows]

    def _step_of(self, node: Node) -> Step | None:
        """The step of a node, its arrays still missing; None where it has nothing to do."""
        assert node.op is not None
        outputs = [Entry(node, index) for index in range(node.outputs())]
        if outputs[0] in self.plan.root:
            return None
        shapes = self.plan.graph.shapes
        if all(0 in shapes[each] for each in outputs) and not node.op.writes_more():
            return None
        tied = self._tied_forward(node)
        if tied is not None:
            self.tied[node] = tied
        device = self.device(node)
        if tied is None:
            forward = forward_of(node.op, device)
        else:  # of slices each step takes its time
            forward = tied if isinstance(node.op, Sliced) else device.timed(node.op, tied)
        if self._poisoned is not None and not node.op.traits.once:
            forward = self._poisoned.wrap(forward, node)
        return self._step(forward, node.inputs, outputs, node)

    def _tied_forward(self, node: Node) -> TiedForward | None:
        """The forward of a node that is tied to its arrays, if there is one."""
        assert node.op is not None
        if isinstance(node.op, Sliced):
            inner = Runner(Results(node.op.plan), self._devices, self._train, self._where)
            return InSlices(node.op, inner, self._where)
        if isinstance(node.op, Summed):
            return Summing()
        return tied_forward(self.device(node).kernels, node.op)

    def _step_of_ending(self, ending: Ending) -> Step:
        forward = _accumulate if ending.adds else _copy if ending.source else _clear
        return self._step(forward, [ending.source] if ending.source else [], [ending.target], ending.node)

    def _step(
        self, forward: Callable[..., None], inputs: Sequence[Entry], outputs: Sequence[Entry], node: Node
    ) -> Step:  # fmt: skip
        """A step that reads and writes what is put for these entries."""
        made = Step(forward, [None] * len(inputs), [None] * len(outputs), node)
        tied = self.tied.get(node)
        if tied is not None:
            tied.stale = True
        root_of, shapes, readers = self.plan.root.get, self.plan.graph.shapes, self._readers
        for entries, arrays in ((inputs, made.inputs), (outputs, made.outputs)):
            for position, entry in enumerate(entries):
                root = root_of(entry)
                shape = None if root is None else shapes[entry]
                readers[root or entry].append((arrays, position, shape, tied))
        return made

    def device(self, node: Node) -> Device:
        """The device that a node runs on."""
        graph = self.plan.graph
        return self._devices[graph.context(node) if graph.groups else graph.default]

    def put(self, entry: Entry, array: Array | None) -> None:
        """Set the array of an entry (None: none) from the next run on; its views follow."""
        self.bind((entry,), (array,))

    def bind(self, entries: Iterable[Entry], given: Iterable[Array | None]) -> None:
        """Put an array for each of these entries, where it is another one."""
        known, readers = self.arrays, self._readers
        for entry, array in zip(entries, given, strict=True):
            if known.get(entry) is not array:
                known[entry] = array
                for arrays, position, shape, tied in readers.get(entry, ()):
                    arrays[position] = array if shape is None or array is None else array.reshape(shape)
                    if tied is not None:
                        tied.stale = True

    def settle(self, context: Context | None, memory: Array | None) -> bool:
        """Put everything that lies in the arena of a device, which are these bytes; False where it lies there already.

        Where there is no memory, this must be called again before the next run.
        """
        plan = self.plan
        if self._settled.get(context, memory) is memory:
            return False

        offsets = plan.arena.offsets
        entries = [entry for entry in plan.place if plan.graph.context(entry.node) is context]
        if memory is None:
            self.bind(entries, [None] * len(entries))
        else:
            self.bind(entries, [self._shaped(memory, offsets[plan.place[entry]], entry) for entry in entries])
        for node, place in plan.workspace.items():
            if plan.graph.context(node) is context and node in self.tied:
                start = offsets[place]
                self.tied[node].use(None if memory is None else memory[start : start + plan.lives[place].size])
        self._settled[context] = memory
        return True

    def unsettle(self, memory: Array) -> None:
        """Let go of the arena in these bytes, if there is one."""
        for context, settled in self._settled.items():
            if settled is memory:
                self.settle(context, None)

    def _shaped(self, memory: Array, start: int, entry: Entry) -> Array:
        """The bytes of an arena from ``start`` on as the array of an entry."""
        graph = self.plan.graph
        shape, dtype = graph.shapes[entry], graph.dtypes[entry]
        if entry not in self.plan.channels_last and type(memory) is np.ndarray:
            return np.ndarray(shape, dtype, memory, start)  # in one call, of which big graphs make thousands
        flat = memory[start : start + self.plan.nbytes(entry)].view(dtype)
        if entry not in self.plan.channels_last:
            return flat.reshape(shape)
        rank = len(shape)
        return flat.reshape(shape[0], *shape[2:], shape[1]).transpose(0, rank - 1, *range(1, rank - 1))

    def allocate_kept(self, entries: Iterable[Entry] | None = None) -> None:
        """Allocate and put what has memory of its own, or those entries of it, where that is not done."""
        graph = self.plan.graph
        for entry in self.plan.kept if entries is None else entries:
            if self.arrays.get(entry) is None:
                self.put(entry, self.device(entry.node).allocate(graph.shapes[entry], graph.dtypes[entry]))


def _copy(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    run.xp.copyto(outputs[0], inputs[0], casting="unsafe")


def _accumulate(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    run.xp.add(outputs[0], inputs[0], out=outputs[0], casting="unsafe")


def _clear(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    outputs[0][...] = 0
