"""A symbol compiled for arrays of certain shapes: the plan of a call, and its backward pass.

Each call takes an :class:`Instance`, a plan tied to a block of memory, and gives it back when it is done with it:
after the forward pass, or where the call is recorded, after the backward pass.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from flowmx.cached_op.blocks import Block, Blocks
from flowmx.devices import Device
from flowmx.graph.compiler import compile_graph, graph_of, options_of
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan
from flowmx.graph.planning import handover
from flowmx.graph.tied import Step, Tied, run_steps
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import LIGHT_BYTES, Array, Run, Shape

_LIGHT_VALUES = 64
"""Values of which the graph of a light call may consist."""


class Piece(NamedTuple):
    """A part of a backward pass: its nodes, and the variables whose gradients are there after it."""

    nodes: Collection[Node]
    gradients: Collection[Node]


class Instance:
    """A plan tied to memory for one call at a time.

    Attributes:
        tied: the plan with its arrays.
        run: what its steps may ask for.
        done_once: the versions of what is computed once, when it was.
        outputs, gradients: the entries to put the arrays for the results under.
        ends: steps that bring results there where no step of the plan writes them.
    """

    def __init__(self, plan: Plan, wanted: Sequence[Node], device: Device, train: bool) -> None:
        self.tied = Tied(plan, {device.context: device})
        self.run = Run(device, train, {})
        self.block: Block | None = None
        self._rows: list[list[Step]] | None = None
        self.done_once: tuple[Any, ...] | None = None
        taken: set[Entry] = set()
        self.ends: tuple[list[Step], list[Step]] = ([], [])
        self.outputs = [self._target(entry, entry.node, taken, self.ends[0]) for entry in plan.outputs]
        self.gradients = {
            node: self._target(plan.gradients[node], node, taken, self.ends[1])
            for node in wanted
            if node in plan.gradients
        }

    def rows(self, pieces: Sequence[Piece]) -> list[list[Step]]:
        """The steps of each piece of the backward pass."""
        if self._rows is None:
            self._rows = [[step for step in self.tied.backward if step.node in piece.nodes] for piece in pieces]
        return self._rows

    def _target(self, entry: Entry, node: Node, taken: set[Entry], ends: list[Step]) -> Entry:
        """The entry that a result's array is to be put under."""
        plan = self.tied.plan
        if entry in plan.external and entry not in plan.root and entry not in taken:
            taken.add(entry)
            return entry
        target = Entry(Node(None, f"{node.name} handed out"), 0)
        ends.append(self.tied.step(_copy, [entry], [target], node))
        return target


def _copy(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    run.xp.copyto(outputs[0], inputs[0], casting="unsafe")


class Compiled:
    """A symbol for arrays of certain shapes and dtypes, on one device, in one mode.

    Args:
        entries: the symbol's outputs.
        variables: its inputs, in order.
        wanted: those to differentiate by.
        shapes: of every entry.
        dtypes: likewise.
        device: where it runs.
        train: whether in training mode.
        pack: whether to keep packed copies of filters.
        blocks: where the memory comes from.
        data: positions of the inputs that are others in each call.
    """

    def __init__(
        self, entries: Sequence[Entry], variables: Sequence[Node], wanted: Collection[Node],
        shapes: dict[Entry, Shape], dtypes: dict[Entry, DType], device: Device, train: bool, pack: bool,
        blocks: Blocks, data: Sequence[int],
    ) -> None:  # fmt: skip
        self.device = device
        self.train = train
        self.entries = tuple(entries)
        self.shapes = shapes
        self.dtypes = dtypes
        self.variables = [Entry(node, 0) for node in variables]
        self.wanted = list(wanted)
        self.results = [(shapes[entry], dtypes[entry]) for entry in entries]
        """Shape and dtype of each output."""
        self.nbytes = sum(_nbytes(*result) for result in self.results)
        """Bytes of the outputs."""
        taken = sum(_nbytes(shapes[entry], dtypes[entry]) for entry in self.variables)
        self.is_light = 4 * taken <= LIGHT_BYTES and len(shapes) <= _LIGHT_VALUES
        """True if a call is cheap enough to run on the pushing thread."""
        self._data = [self.variables[i] for i in data]
        self._pack = pack
        self._blocks = blocks
        self._plan: Plan | None = None
        self._free: list[Instance] = []
        self._lock = threading.RLock()

    @property
    def plan(self) -> Plan:
        """The execution plan, compiled at first use: on a worker thread where possible."""
        with self._lock:
            if self._plan is None:
                context = self.device.context
                graph = graph_of(self.entries, self.wanted, self.shapes, self.dtypes, self.train, context)
                # A call runs its steps in a row: concurrent branches would only take more memory.
                options = replace(options_of(context.kernels), pack=self._pack, workers=1)
                self._plan = compile_graph(graph, straight=self.wanted, options=options)
            return self._plan

    # -- instances -------------------------------------------------------------------------------------

    def take(self) -> Instance:
        """An instance with memory, for one call."""
        plan = self.plan
        with self._lock:
            made = self._free.pop() if self._free else None
        if made is None:
            made = Instance(plan, self.wanted, self.device, self.train)
            made.tied.allocate_kept()
        nbytes = plan.arenas.get(self.device.context, 0)
        made.block = self._blocks.take(nbytes, made.tied, made.block)
        if nbytes:
            made.tied.settle(self.device.context, made.block.memory)
        return made

    def give(self, instance: Instance) -> None:
        """Take an instance back, which then holds nothing of the call but the parameters."""
        for entry in (*self._data, *instance.outputs, *instance.gradients.values()):
            instance.tied.put(entry, None)
        assert instance.block is not None
        self._blocks.give(instance.block)
        with self._lock:
            self._free.append(instance)

    # -- running ---------------------------------------------------------------------------------------

    def forward(self, inputs: Sequence[Array], outputs: Sequence[Array], versions: tuple[Any, ...]) -> Instance:
        """Run the forward pass; returns the instance, which has what the backward pass needs.

        Args:
            inputs: an array for each variable.
            outputs: where to put the outputs.
            versions: what tells whether an input has changed since another call.
        """
        instance = self.take()
        tied = instance.tied
        for entry, array in zip(self.variables, inputs, strict=True):
            if tied.arrays.get(entry) is not array:
                tied.put(entry, array)
        for entry, array in zip(instance.outputs, outputs, strict=True):
            tied.put(entry, array)
        if tied.once and versions != instance.done_once:
            run_steps(instance.run, tied.once, "a cached graph")
            instance.done_once = versions
        run_steps(instance.run, tied.forward, "a cached graph", again=True)
        run_steps(instance.run, instance.ends[0], "a cached graph", again=True)
        return instance

    @cached_property
    def pieces(self) -> list[Piece]:
        """The backward pass, cut where it makes many gradients: the first are used while the others are computed."""
        plan = self.plan
        wanted = [node for node in self.wanted if node in plan.gradients]
        made = {plan.gradients[node]: node for node in wanted}
        direct = {entry: node for entry, node in made.items() if entry in plan.external and entry not in plan.root}
        found = [_made_by(node, direct) for node in plan.backward]
        at = handover.cuts([sum(map(self._nbytes_of, row)) for row in found])
        rows, gradients = handover.pieces(plan.backward, at), handover.pieces(found, at)
        cut = [
            Piece(set(row), {node for each in made for node in each}) for row, made in zip(rows, gradients, strict=True)
        ]
        early = {node for piece in cut[:-1] for node in piece.gradients}
        return [*cut[:-1], Piece(cut[-1].nodes, {node for node in wanted if node not in early})]

    def _nbytes_of(self, variable: Node) -> int:
        entry = Entry(variable, 0)
        return _nbytes(self.shapes[entry], self.dtypes[entry])

    def begin_backward(self, instance: Instance, heads: Sequence[Array | None]) -> None:
        """Prepare the backward pass on what a forward pass left.

        Args:
            instance: the forward pass's.
            heads: a gradient for each output (None: the plan does not read it).
        """
        for node, array in zip(self.plan.graph.heads, heads, strict=True):
            instance.tied.put(Entry(node, 0), array)

    def backward(self, instance: Instance, piece: int, gradients: dict[Node, Array]) -> None:
        """Run one piece of the backward pass, after those before it.

        Args:
            instance: the forward pass's.
            piece: which.
            gradients: where to put the gradients that it makes.
        """
        tied = instance.tied
        for node, array in gradients.items():
            tied.put(instance.gradients[node], array)
        run_steps(instance.run, instance.rows(self.pieces)[piece], "a cached graph", again=True)
        if piece + 1 == len(self.pieces):
            run_steps(instance.run, instance.ends[1], "a cached graph", again=True)
            for node in self.plan.graph.heads:
                tied.put(Entry(node, 0), None)

    def reads_backward(self) -> tuple[set[int], set[int], set[int]]:
        """Positions of the variables, of the outputs and of their gradients whose content the backward pass reads."""
        plan = self.plan
        read = {plan.root.get(entry, entry) for node in plan.backward for entry in node.contents()}
        read |= {plan.root.get(entry, entry) for entry in plan.gradients.values()}
        external = {entry for entry in plan.external if entry not in plan.root}
        return (
            {i for i, entry in enumerate(self.variables) if entry in read},
            {i for i, entry in enumerate(plan.outputs) if entry in read and entry in external},
            {i for i, head in enumerate(plan.graph.heads) if Entry(head, 0) in read},
        )


def _made_by(node: Node, gradients: Mapping[Entry, Node]) -> list[Node]:
    """The variables whose gradients a node makes."""
    entries = (Entry(node, index) for index in range(node.outputs()))
    return [gradients[entry] for entry in entries if entry in gradients]


def _nbytes(shape: Shape, dtype: DType) -> int:
    return math.prod(shape) * dtype.itemsize
