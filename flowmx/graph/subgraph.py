"""Graphs inside operators: the bodies of loops and branches.

A :class:`Body` infers the shapes of its graph, and compiles it for given shapes into a :class:`Program`: a plan
tied to no arrays, which runs again and again on whatever it is handed, with its gradient where that is wanted.
The operators in ``ops/control_flow.py`` call it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flowmx.devices import Device
from flowmx.graph import infer
from flowmx.graph.gradient import gradient
from flowmx.graph.node import Entry, Node, auxiliary_nodes, topological
from flowmx.graph.plan import make_plan
from flowmx.ndarray.core import forward_of
from flowmx.ops.dtypes import DType
from flowmx.ops.registry import Array, Run, Shape, ShapeOrNone

Key = tuple[Device, tuple[Shape, ...], tuple[DType, ...], tuple[int, ...]]


class Body:
    """The graph of a loop's body or of a branch.

    Attributes:
        entries: its outputs.
        variables: its inputs, in the order of ``list_inputs``.
        auxiliary: positions of inputs that are auxiliary states of an operator inside.
        random, detached: whether something inside draws random numbers, or is the user's own code.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self.nodes = topological(entries)
        self.variables = [node for node in self.nodes if node.is_variable]
        states = auxiliary_nodes(self.nodes)
        self.auxiliary = tuple(i for i, node in enumerate(self.variables) if node in states)
        ops = [node.op for node in self.nodes if node.op is not None]
        self.random = any(op.uses_random for op in ops)
        self.detached = any(op.detached for op in ops)
        self._programs: dict[Key, Program] = {}

    def infer_shape(self, shapes: Sequence[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        """The shapes of its inputs and outputs, as far as they follow from those of the inputs."""
        found = infer.infer_shapes(self.nodes, dict(zip(self.variables, shapes, strict=True)))
        return [found[Entry(node, 0)] for node in self.variables], [found[entry] for entry in self.entries]

    def infer_type(self, dtypes: Sequence[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        """The dtypes, likewise."""
        found = infer.partial_types(self.nodes, dict(zip(self.variables, dtypes, strict=True)))
        return [found[Entry(node, 0)] for node in self.variables], [found[entry] for entry in self.entries]

    def program(self, run: Run, inputs: Sequence[Array], wanted: Sequence[int] = ()) -> Program:
        """What computes it for inputs like these, with the gradients of the inputs at the ``wanted`` positions."""
        key = (
            run.device,
            tuple(each.shape for each in inputs),
            tuple(each.dtype for each in inputs),
            tuple(wanted),
        )
        known = self._programs.get(key)
        if known is None:
            known = self._programs[key] = Program(self, *key)
        return known


class Program:
    """A body compiled for a device and for inputs of certain shapes and dtypes.

    Args:
        body: the graph.
        device: what it runs on.
        shapes, dtypes: of the inputs.
        wanted: positions of the inputs to differentiate by.
    """

    def __init__(
        self, body: Body, device: Device, shapes: Sequence[Shape], dtypes: Sequence[DType], wanted: Sequence[int]
    ) -> None:
        known = infer.infer_shapes(body.nodes, dict(zip(body.variables, shapes, strict=True)))
        all_shapes = {e: infer.known_shape(shape, e.node.output_name(e.index)) for e, shape in known.items()}
        all_dtypes = infer.infer_types(body.nodes, dict(zip(body.variables, dtypes, strict=True)))
        heads: list[Node] = []
        gradients: dict[Node, Entry] = {}
        if wanted:
            for entry in body.entries:
                head = Node(None, f"{entry.node.output_name(entry.index)}_grad", origin=entry.node.origin)
                all_shapes[Entry(head, 0)], all_dtypes[Entry(head, 0)] = all_shapes[entry], all_dtypes[entry]
                heads.append(head)
            gradients = gradient(
                body.entries, [Entry(head, 0) for head in heads], [body.variables[i] for i in wanted], all_shapes,
                all_dtypes,
            )  # fmt: skip
        self._device = device
        self._plan = make_plan(body.entries, gradients, all_shapes, all_dtypes, ())
        self._slots: dict[Entry, int] = {}
        self._inputs = [self._slot(Entry(node, 0)) for node in (*body.variables, *heads)]
        nodes = (*self._plan.forward, *self._plan.backward)
        self._steps = [self._step(node) for node in nodes]
        self._outputs = [self._slots[entry] for entry in body.entries]
        found = [gradients.get(body.variables[i]) for i in wanted]
        self._gradients = [None if entry is None else self._slots[entry] for entry in found]
        self.described = [(all_shapes[entry], all_dtypes[entry]) for entry in body.entries]
        """Shape and dtype of each output."""
        self._free: list[list[Array]] = []

    def _slot(self, entry: Entry) -> int:
        return self._slots.setdefault(entry, len(self._slots))

    def _step(self, node: Node) -> Callable[[Run, list[Array]], None]:
        """One step, of the arrays in their slots."""
        assert node.op is not None
        entry = Entry(node, 0)
        if entry in self._plan.root:
            source, target, shape = self._slots[self._plan.root[entry]], self._slot(entry), self._plan.shapes[entry]

            def view(run: Run, values: list[Array]) -> None:
                values[target] = values[source].reshape(shape)

            return view
        forward = forward_of(node.op, self._device)
        ins = [self._slots[each] for each in node.inputs]
        outs = [self._slot(Entry(node, index)) for index in range(node.outputs())]

        def step(run: Run, values: list[Array]) -> None:
            try:
                forward(run, [values[i] for i in ins], [values[i] for i in outs])
            except Exception as error:
                error.add_note(f"flowmx: in node {node.name!r} ({node.op!r}) of a subgraph, made at {node.place()}")
                raise

        return step

    def _memory(self) -> list[Array]:
        """Arrays for the slots of everything that is computed."""
        plan = self._plan
        arena = self._device.allocate((plan.arena.size,), np.dtype(np.uint8))
        values: list[Array] = [None] * len(self._slots)
        for entry, place in plan.place.items():
            start = plan.arena.offsets[place]
            part = arena[start : start + plan.nbytes(entry)]
            values[self._slots[entry]] = part.view(plan.dtypes[entry]).reshape(plan.shapes[entry])
        return values

    def run(
        self,
        run: Run,
        inputs: Sequence[Array],
        outputs: Sequence[Array | None],
        gradients: Sequence[tuple[Array, bool]] = (),
    ) -> None:
        """Compute it.

        Args:
            run: what the steps may ask for.
            inputs: its inputs, then a gradient for each of its outputs where it was compiled with gradients.
            outputs: where to put the outputs (None: nowhere).
            gradients: for each wanted input where to put its gradient, and whether to add it to what is there.
        """
        try:
            values = self._free.pop()
        except IndexError:
            values = self._memory()
        for slot, array in zip(self._inputs, inputs, strict=True):
            values[slot] = array
        for step in self._steps:
            step(run, values)
        for out, slot in zip(outputs, self._outputs, strict=True):
            if out is not None:
                run.xp.copyto(out, values[slot])
        for (target, add), found in zip(gradients, self._gradients, strict=True):
            if found is None:
                if not add:
                    target[...] = 0
            elif add:
                run.xp.add(target, values[found], out=target)
            else:
                run.xp.copyto(target, values[found])
        for slot in self._inputs:
            values[slot] = None
        self._free.append(values)
