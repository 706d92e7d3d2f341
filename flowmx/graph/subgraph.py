"""Graphs inside operators: the bodies of loops and branches.

A :class:`Body` infers the shapes of its graph, and compiles it for given shapes into a :class:`Program`: a plan
tied to no arrays, which runs again and again on whatever it is handed, with its gradient where that is wanted.
The operators in ``ops/control/control_flow.py`` call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowmx.devices import Device
from flowmx.graph import infer
from flowmx.graph.compiler import compile_graph, graph_of, options_of
from flowmx.graph.node import Entry, auxiliary_nodes, topological
from flowmx.graph.tied import Tied, run_steps
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Run, Shape, ShapeOrNone

Key = tuple[Device, bool, tuple[Shape, ...], tuple[DType, ...], tuple[int, ...]]


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
        """The program compiled for these inputs' shapes and dtypes, with gradients for the ``wanted`` positions."""
        key = (
            run.device,
            run.train,
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
        train: whether in training mode.
        shapes, dtypes: of the inputs.
        wanted: positions of the inputs to differentiate by.
    """

    def __init__(
        self,
        body: Body,
        device: Device,
        train: bool,
        shapes: Sequence[Shape],
        dtypes: Sequence[DType],
        wanted: Sequence[int],
    ) -> None:
        all_shapes = infer.known_shapes(body.nodes, dict(zip(body.variables, shapes, strict=True)))
        all_dtypes = infer.infer_types(body.nodes, dict(zip(body.variables, dtypes, strict=True)))
        differentiated = [body.variables[i] for i in wanted]
        graph = graph_of(body.entries, differentiated, all_shapes, all_dtypes, train)
        self._device = device
        self._plan = compile_graph(graph, options=replace(options_of(device.context.kernels), workers=1), external=())
        self._inputs = [Entry(node, 0) for node in (*body.variables, *graph.heads)]
        self._gradients = [self._plan.gradients.get(node) for node in differentiated]
        self.described = [(all_shapes[entry], all_dtypes[entry]) for entry in body.entries]
        """Shape and dtype of each output."""
        self._free: list[Tied] = []

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
            tied = self._free.pop()
        except IndexError:
            tied = Tied(self._plan, {None: self._device})
            tied.allocate_kept()
            tied.allocate()
        for entry, array in zip(self._inputs, inputs, strict=True):
            tied.put(entry, array)
        run_steps(run, [*tied.once, *tied.forward, *tied.backward], "a subgraph")
        for out, entry in zip(outputs, self._plan.outputs, strict=True):
            if out is not None:
                run.xp.copyto(out, tied.arrays[entry])
        for (target, add), found in zip(gradients, self._gradients, strict=True):
            if found is None:
                if not add:
                    target[...] = 0
            elif add:
                run.xp.add(target, tied.arrays[found], out=target)
            else:
                run.xp.copyto(target, tied.arrays[found])
        for entry in self._inputs:
            tied.put(entry, None)
        self._free.append(tied)
