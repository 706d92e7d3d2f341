"""Runners: plans bound to arrays, which run repeatedly.

A :class:`Runner` is bound to an arena for each device, and to an array for each external entry (:meth:`Runner.put`).
The caller ensures that runs of the same runner do not overlap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from flowmx import settings
from flowmx.devices import Context, Device
from flowmx.graph.checking.poison import Poisoned
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.workspace import value_layout
from flowmx.graph.running.compile_ahead import compile_loops
from flowmx.graph.running.native import NativeSteps
from flowmx.graph.running.results import CopyOut, Results
from flowmx.graph.running.slices import InSlices, Summing
from flowmx.graph.running.steps import Part, Step
from flowmx.ndarray.computations import forward_of
from flowmx.ops.compiled.chain import Chain
from flowmx.ops.compiled.sliced import Sliced, Summed
from flowmx.ops.kernels.native_steps import can_run_natively, computes_natively
from flowmx.ops.kernels.recording import current
from flowmx.ops.registry.kernels import TiedForward, tied_forward
from flowmx.ops.registry.operators import Array, Run, Shape

if TYPE_CHECKING:
    from flowmx.graph.running.arenas import Block
    from flowmx.graph.running.shared_copies import RunnerCopies


Readers = list[tuple[list[Array | None], int, Shape | None, TiedForward | None]]
"""The steps that use an entry. For each: its list of arrays, the position in it, the shape if the step uses a view, and
the step's forward if it depends on the array. The last two are None otherwise."""


class Runner:
    """A plan with its arrays.

    Args:
        results: the plan and its results.
        devices: the devices by context; a plan without contexts has one device, under None.
        train: whether in training mode.
        where: the name of the graph in messages.

    Attributes:
        once, forward, backward: the steps of the plan; their lists of arrays change as arrays are bound.
        first_consumer: the forwards that are bound to the arrays of a step, by node.
        copy_outs: the steps that copy results to their arrays, after the forward and after the backward pass.
        parameters: the parameter arrays that the caller bound last.
        block: the memory of its last call, in a pool.
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
        self.call: list[Readers] | None = None
        """The readers of the arrays of a call, for :meth:`bind_call`; set by the caller."""
        self._readers: defaultdict[Entry, Readers] = defaultdict(list)
        self._arena_memory: dict[Context | None, Array | None] = dict.fromkeys(plan.arenas)
        self._poisoned = Poisoned(plan, self._arena) if settings.get().exec_check else None
        self.first_consumer: dict[Node, TiedForward] = {}
        self.parameters: list[Array] = []
        self.copies: RunnerCopies | None = None
        """The results of ``once`` that it shares with other runners."""
        self.arrays: dict[Entry, Array | None] = {}
        """The bound arrays by entry."""
        self.once, self.forward, self.backward = (
            [step for node in nodes if (step := self._step_of(node)) is not None]
            for nodes in (plan.once, plan.forward, plan.backward)
        )
        self.copy_outs = tuple([[self._copy_step(copy_out) for copy_out in group] for group in results.copy_outs])
        self._compile_ahead()

    def _compile_ahead(self) -> None:
        """Start compiling the loops of the steps, while the first ones already run."""
        nodes = [step.node for step in (*self.once, *self.forward, *self.backward) if type(step.node.op) is Chain]
        if nodes:
            compile_loops(nodes, lambda entry: value_layout(self.plan, entry), self.device(nodes[0]).kernels)

    def part(self, device: Device, once: Sequence[Step] = (), steps: Sequence[Step] = ()) -> Part:
        """Return steps to run as one operation of a device."""
        is_native = self._poisoned is None and can_run_natively(device)
        launcher = NativeSteps(self._is_planned, self._flops) if is_native else None
        return Part(Run(device, self._train, self._memo), self._where, once, steps, launcher)

    def _is_planned(self, array: Array) -> bool:
        """Return whether an array is in an arena or is computed once, so that its layout is that of the plan."""
        memories = [memory for memory in self._arena_memory.values() if memory is not None]
        is_in_arena = any(array.base is memory or array.base is memory.base for memory in memories)
        return is_in_arena or any(array is output for step in self.once for output in step.outputs)

    def _flops(self, step: Step) -> int:
        """Return the number of floating-point operations of a step; a copy-out has none."""
        node, shapes = step.node, self.plan.graph.shapes
        if node.op is None or len(step.inputs) != len(node.inputs):
            return 0
        outputs = [shapes[Entry(node, index)] for index in range(node.outputs())]
        return node.op.cost([shapes[entry] for entry in node.inputs], outputs)[0]

    @cached_property
    def whole_forward(self) -> Part:
        """The forward pass of a plan for one device, including its copy-outs."""
        part = self.part(self._devices[self.plan.graph.default], self.once, [*self.forward, *self.copy_outs[0]])
        part.refresh = None if self.copies is None else self.copies.update
        return part

    @cached_property
    def backward_pieces(self) -> list[Part]:
        """The pieces of its backward pass, including its copy-outs."""
        device = self._devices[self.plan.graph.default]
        rows = [[step for step in self.backward if step.node in piece.nodes] for piece in self.results.pieces]
        rows[-1] += self.copy_outs[1]
        return [self.part(device, steps=row) for row in rows]

    def _step_of(self, node: Node) -> Step | None:
        """Return the step of a node, without arrays, or None if it has nothing to do."""
        assert node.op is not None
        outputs = [Entry(node, index) for index in range(node.outputs())]
        if outputs[0] in self.plan.root:
            return None
        shapes = self.plan.graph.shapes
        if all(0 in shapes[entry] for entry in outputs) and not node.op.writes_inputs():
            return None
        tied = self._tied_forward(node)
        if tied is not None:
            self.first_consumer[node] = tied
        device = self.device(node)
        if tied is None:
            forward = forward_of(node.op, device)
        else:  # a sliced operator measures its inner steps itself
            forward = tied if isinstance(node.op, Sliced) else device.timed(node.op, tied)
        is_native = computes_natively(device.kernels, node.op) if tied is None else tied.only_native
        if self._poisoned is not None and not node.op.traits.once:
            forward = self._poisoned.wrap(forward, node)
        return self._step(forward, node.inputs, outputs, node, is_native)

    def _tied_forward(self, node: Node) -> TiedForward | None:
        """Return the forward of a node that is bound to its arrays, if there is one."""
        assert node.op is not None
        if isinstance(node.op, Sliced):
            inner = Runner(Results(node.op.plan), self._devices, self._train, self._where)
            return InSlices(node.op, inner, self._where)
        if isinstance(node.op, Summed):
            return Summing()
        predicts = not (self._train or self.plan.gradients)
        return tied_forward(self.device(node).kernels, node.op, predicts)

    def _copy_step(self, copy_out: CopyOut) -> Step:
        forward = _accumulate if copy_out.adds else _copy if copy_out.source else _clear
        is_native = forward is _copy
        inputs = [copy_out.source] if copy_out.source else []
        return self._step(forward, inputs, [copy_out.target], copy_out.node, is_native)

    def _step(
        self, forward: Callable[..., None], inputs: Sequence[Entry], outputs: Sequence[Entry], node: Node,
        is_native: bool,
    ) -> Step:  # fmt: skip
        """Return a step that reads and writes the arrays bound to these entries."""
        step = Step(forward, [None] * len(inputs), [None] * len(outputs), node, is_native)
        tied = self.first_consumer.get(node)
        if tied is not None:
            tied.stale = True
        root_of, shapes, readers = self.plan.root.get, self.plan.graph.shapes, self._readers
        for entries, arrays in ((inputs, step.inputs), (outputs, step.outputs)):
            for position, entry in enumerate(entries):
                root = root_of(entry)
                shape = None if root is None else shapes[entry]
                readers[root or entry].append((arrays, position, shape, tied))
        return step

    def device(self, node: Node) -> Device:
        """Return the device that a node runs on."""
        graph = self.plan.graph
        return self._devices[graph.context(node) if graph.groups else graph.default]

    def put(self, entry: Entry, array: Array | None) -> None:
        """Bind an array to an entry and its views from the next run on; None unbinds them."""
        self.bind((entry,), (array,))

    def bind(self, entries: Iterable[Entry], new_arrays: Iterable[Array | None]) -> None:
        """Bind an array to each entry, if it changes."""
        bound, readers = self.arrays, self._readers
        for entry, array in zip(entries, new_arrays, strict=True):
            if bound.get(entry) is not array:
                bound[entry] = array
                for arrays, position, shape, tied in readers.get(entry, ()):
                    arrays[position] = array if shape is None or array is None else array.reshape(shape)
                    if tied is not None:
                        tied.stale = True

    def bind_call(self, call: Sequence[Readers], arrays: Iterable[Array | None]) -> None:
        """Bind arrays for one call to entries that are unbound before and after it: the short form of :meth:`bind`.

        Args:
            call: the readers of each entry.
            arrays: an array for each entry; None after the call.
        """
        for readers, array in zip(call, arrays, strict=True):
            for arrays_of_step, position, shape, tied in readers:
                arrays_of_step[position] = array if shape is None or array is None else array.reshape(shape)
                if tied is not None:
                    tied.stale = True

    def readers(self, entries: Sequence[Entry]) -> list[Readers]:
        """Return the readers of each entry, for :meth:`bind_call`."""
        return [self._readers.get(entry, []) for entry in entries]

    def bind_arena(self, context: Context | None, memory: Array | None) -> bool:
        """Bind all values in the arena of a device to this memory; return False if they already are.

        With no memory, this must be called again before the next run.
        """
        plan = self.plan
        if self._arena_memory.get(context, memory) is memory:
            return False

        offsets = plan.arena.offsets
        entries = [entry for entry in plan.place if plan.graph.context(entry.node) is context]
        if memory is None:
            self.bind(entries, [None] * len(entries))
        else:
            self.bind(entries, [self._view_entry(memory, offsets[plan.place[entry]], entry) for entry in entries])
        for node, place in plan.workspace.items():
            if plan.graph.context(node) is context and node in self.first_consumer:
                start = offsets[place]
                self.first_consumer[node].use(
                    None if memory is None else memory[start : start + plan.lives[place].size]
                )
        self._arena_memory[context] = memory
        return True

    def unbind_arena(self, memory: Array) -> None:
        """Unbind the values in the arena with this memory, if there is one."""
        for context, arena in self._arena_memory.items():
            if arena is memory:
                self.bind_arena(context, None)

    def _arena(self, context: Context | None) -> Array:
        """Return the memory of an arena that is bound."""
        return cast("Array", self._arena_memory[context])

    def _view_entry(self, memory: Array, start: int, entry: Entry) -> Array:
        """Return the bytes of an arena from ``start`` on as the array of an entry."""
        graph = self.plan.graph
        shape, dtype = graph.shapes[entry], graph.dtypes[entry]
        if entry not in self.plan.channels_last and type(memory) is np.ndarray:
            return np.ndarray(shape, dtype, memory, start)  # one call: large graphs make thousands
        flat = memory[start : start + self.plan.nbytes(entry)].view(dtype)
        if entry not in self.plan.channels_last:
            return flat.reshape(shape)
        rank = len(shape)
        return flat.reshape(shape[0], *shape[2:], shape[1]).transpose(0, rank - 1, *range(1, rank - 1))

    def allocate_separate(self, entries: Iterable[Entry] | None = None) -> None:
        """Allocate and bind the entries with separate memory, or some of them, unless they are bound."""
        graph = self.plan.graph
        for entry in self.plan.separate if entries is None else entries:
            if self.arrays.get(entry) is None:
                self.put(entry, self.device(entry.node).allocate(graph.shapes[entry], graph.dtypes[entry]))


def _copy(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    recording = current()
    if recording is not None:
        recording.add_copy(outputs[0], inputs[0])
    run.xp.copyto(outputs[0], inputs[0], casting="unsafe")


def _accumulate(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    run.xp.add(outputs[0], inputs[0], out=outputs[0], casting="unsafe")


def _clear(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    outputs[0][...] = 0
