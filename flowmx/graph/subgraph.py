"""Graphs inside operators: the bodies of loops and branches.

A :class:`Body` infers the shapes of its graph, and compiles it for given shapes into a :class:`Program`: a plan
tied to no arrays, which runs again and again on whatever it is handed, with its gradient where that is wanted.
The operators in ``ops/control/control_flow.py`` call it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flowmx.devices import Device
from flowmx.graph import infer
from flowmx.graph.compiler import compile_graph, graph_of, options_of
from flowmx.graph.graph import written
from flowmx.graph.node import Entry, auxiliary_nodes, topological
from flowmx.graph.running.pool import Pool
from flowmx.graph.running.results import Results
from flowmx.graph.running.steps import run_steps
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Run, Shape, ShapeOrNone

Key = tuple[Device, bool, tuple[Shape, ...], tuple[DType, ...], tuple[tuple[int, str], ...]]


class Body:
    """The graph of a loop's body or of a branch.

    Attributes:
        entries: its outputs.
        variables: its inputs, in the order of ``list_inputs``.
        auxiliary: positions of inputs that an operator inside may write, such as the statistics of a BatchNorm.
        random, detached: whether something inside draws random numbers, or is the user's own code.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self.nodes = topological(entries)
        self.variables = [node for node in self.nodes if node.is_variable]
        states = {*written(self.nodes), *auxiliary_nodes(self.nodes)}
        self.auxiliary = tuple(i for i, node in enumerate(self.variables) if node in states)
        ops = [node.op for node in self.nodes if node.op is not None]
        self.random = any(op.traits.uses_random for op in ops)
        self.detached = any(op.traits.detached for op in ops)
        self._programs: dict[Key, Program] = {}

    def infer_shape(
        self, shapes: Sequence[ShapeOrNone], outputs: Sequence[ShapeOrNone] = ()
    ) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        """The shapes of its inputs and outputs, as far as they follow from those of the inputs.

        Args:
            shapes: of the inputs.
            outputs: what is known of the outputs' shapes, where something is.
        """
        wanted = {entry: shape for entry, shape in zip(self.entries, outputs, strict=False) if shape is not None}
        found = infer.infer_shapes(self.nodes, dict(zip(self.variables, shapes, strict=True)), wanted)
        return [found[Entry(node, 0)] for node in self.variables], [found[entry] for entry in self.entries]

    def infer_type(self, dtypes: Sequence[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        """The dtypes, likewise."""
        found = infer.partial_types(self.nodes, dict(zip(self.variables, dtypes, strict=True)))
        return [found[Entry(node, 0)] for node in self.variables], [found[entry] for entry in self.entries]

    def program(self, run: Run, inputs: Sequence[Array], requests: Mapping[int, str] | None = None) -> Program:
        """The program compiled for these inputs' shapes and dtypes.

        Args:
            run: what it will run in.
            inputs: an array for each variable.
            requests: ``write`` or ``add`` for the position of each input to differentiate by.
        """
        key = (
            run.device,
            run.train,
            tuple([each.shape for each in inputs]),
            tuple([each.dtype for each in inputs]),
            tuple((requests or {}).items()),
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
        requests: positions of the inputs to differentiate by, each with ``write`` or ``add``.
    """

    def __init__(
        self, body: Body, device: Device, train: bool, shapes: Sequence[Shape], dtypes: Sequence[DType],
        requests: Sequence[tuple[int, str]],
    ) -> None:  # fmt: skip
        all_shapes = infer.known_shapes(body.nodes, dict(zip(body.variables, shapes, strict=True)))
        all_dtypes = infer.infer_types(body.nodes, dict(zip(body.variables, dtypes, strict=True)))
        wanted = {body.variables[position]: request for position, request in requests}
        graph = graph_of(body.entries, list(wanted), all_shapes, all_dtypes, train)
        plan = compile_graph(
            graph, options=replace(options_of(device.context.kernels), workers=1, slice=0), external=()
        )
        results = Results(plan, wanted)
        self.described = [(all_shapes[entry], all_dtypes[entry]) for entry in body.entries]
        """Shape and dtype of each output."""
        self._inputs = [Entry(node, 0) for node in (*body.variables, *graph.heads)]
        self._is_backward = bool(wanted)
        found = [node in results.gradients for node in wanted] if wanted else [True] * len(results.outputs)
        self._made = [position for position, is_made in enumerate(found) if is_made]
        """Positions of the results that there is something to do for, in the order of the endings."""
        self._pool = Pool(results, device, train, "a subgraph", None, self._inputs)

    def run(self, run: Run, inputs: Sequence[Array], results: Sequence[Array]) -> None:
        """Compute it.

        Args:
            run: what the steps may ask for.
            inputs: its inputs, then a gradient for each of its outputs where it was compiled with gradients.
            results: where to put the gradients, where it was compiled with them, or else the outputs.
        """
        runner = self._pool.take()
        runner.bind(self._inputs, inputs)
        run_steps(run, [*runner.once, *runner.forward, *runner.backward], "a subgraph")
        for step, position in zip(runner.endings[self._is_backward], self._made, strict=True):
            step.forward(run, step.inputs, [results[position]])
        self._pool.give(runner)
