"""Graphs inside operators: the bodies of loops and branches.

A :class:`Body` infers the shapes of its graph and compiles it for given shapes into a :class:`Program`: a plan without
arrays, which runs on any arrays, optionally with gradients. The operators in ``ops/control/control_flow.py`` use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flowmx.devices import Device
from flowmx.graph import infer
from flowmx.graph.capacity import GraphCache, bytes_of, tick
from flowmx.graph.compiler import compile_graph, graph_of, options_of
from flowmx.graph.graph import fixed_variables, written_variables
from flowmx.graph.node import Entry, auxiliary_nodes, topological
from flowmx.graph.running.pool import Pool
from flowmx.graph.running.results import Results
from flowmx.graph.running.steps import run_steps
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Run, Shape, ShapeOrNone

Key = tuple[Device, bool, tuple[Shape, ...], tuple[DType, ...], tuple[tuple[int, str], ...]]


class Body:
    """The graph of a loop body or of a branch.

    Attributes:
        entries: its outputs.
        variables: its inputs, in the order of ``list_inputs``.
        auxiliary: positions of inputs that an operator inside may write, such as the statistics of a BatchNorm.
        fixed: positions of inputs that all operators inside treat as 1 (:meth:`Operator.fixed_inputs`).
        random, detached: whether an operator inside draws random numbers, or runs user code.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self.nodes = topological(entries)
        self.variables = [node for node in self.nodes if node.is_variable]
        states = {*written_variables(self.nodes), *auxiliary_nodes(self.nodes)}
        self.auxiliary = tuple(i for i, node in enumerate(self.variables) if node in states)
        ones = fixed_variables(self.nodes)
        self.fixed = tuple(i for i, node in enumerate(self.variables) if node in ones)
        ops = [node.op for node in self.nodes if node.op is not None]
        self.random = any(op.traits.uses_random for op in ops)
        self.detached = any(op.traits.detached for op in ops)
        self._cache = GraphCache("the body of a loop or branch")

    def infer_shape(
        self, shapes: Sequence[ShapeOrNone], outputs: Sequence[ShapeOrNone] = ()
    ) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        """Return the shapes of its inputs and outputs, as far as they can be inferred.

        Args:
            shapes: the shapes of the inputs.
            outputs: the known shapes of outputs.
        """
        expected = {entry: shape for entry, shape in zip(self.entries, outputs, strict=False) if shape is not None}
        inferred = infer.infer_shapes(self.nodes, dict(zip(self.variables, shapes, strict=True)), expected)
        return [inferred[Entry(node, 0)] for node in self.variables], [inferred[entry] for entry in self.entries]

    def infer_type(self, dtypes: Sequence[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        """Return the dtypes of its inputs and outputs, as far as they can be inferred."""
        inferred = infer.partial_types(self.nodes, dict(zip(self.variables, dtypes, strict=True)))
        return [inferred[Entry(node, 0)] for node in self.variables], [inferred[entry] for entry in self.entries]

    def program(self, run: Run, inputs: Sequence[Array], requests: Mapping[int, str] | None = None) -> Program:
        """Return the program compiled for the shapes and dtypes of these inputs.

        Args:
            run: the operation that will run it.
            inputs: an array for each variable.
            requests: ``write`` or ``add`` for the position of each differentiated input.
        """
        key = (
            run.device,
            run.train,
            tuple([array.shape for array in inputs]),
            tuple([array.dtype for array in inputs]),
            tuple((requests or {}).items()),
        )
        program: Program | None = self._cache.graphs.get(key)
        if program is None:
            program = Program(self, *key)
            self._cache.add(key, program)
        program.used = tick()
        return program


class Program:
    """A body compiled for a device and for inputs of certain shapes and dtypes.

    Args:
        body: the graph.
        device: the device.
        train: whether it runs in training mode.
        shapes, dtypes: those of the inputs.
        requests: positions of the differentiated inputs, each with ``write`` or ``add``.
    """

    def __init__(
        self, body: Body, device: Device, train: bool, shapes: Sequence[Shape], dtypes: Sequence[DType],
        requests: Sequence[tuple[int, str]],
    ) -> None:  # fmt: skip
        all_shapes = infer.known_shapes(body.nodes, dict(zip(body.variables, shapes, strict=True)))
        all_dtypes = infer.infer_types(body.nodes, dict(zip(body.variables, dtypes, strict=True)))
        targets = {body.variables[position]: request for position, request in requests}
        graph = graph_of(body.entries, list(targets), all_shapes, all_dtypes, train)
        plan = compile_graph(
            graph, options=replace(options_of(device.context.kernels), workers=1, slice=0), external=()
        )
        results = Results(plan, targets)
        self.used = 0
        self._own_bytes = bytes_of(len(plan.graph.shapes))
        self.output_forms = [(all_shapes[entry], all_dtypes[entry]) for entry in body.entries]
        """Shape and dtype of each output."""
        self._inputs = [Entry(node, 0) for node in (*body.variables, *graph.heads)]
        self._is_backward = bool(targets)
        has_result = [node in results.gradients for node in targets] if targets else [True] * len(results.outputs)
        self._positions = [position for position, present in enumerate(has_result) if present]
        """Positions of the results that a copy-out writes, in the order of the copy-outs."""
        self._pool = Pool(results, device, train, "a subgraph", None, self._inputs)

    @property
    def held_bytes(self) -> int:
        """Approximate bytes of the plan and its runners."""
        return self._own_bytes + self._pool.held_bytes

    def run(self, run: Run, inputs: Sequence[Array], results: Sequence[Array]) -> None:
        """Compute the results.

        Args:
            run: the operation that runs it.
            inputs: its inputs, then a gradient for each output if it was compiled with gradients.
            results: where to write the gradients, or without gradients the outputs.
        """
        runner = self._pool.take()
        runner.bind(self._inputs, inputs)
        run_steps(run, [*runner.once, *runner.forward, *runner.backward], "a subgraph")
        for step, position in zip(runner.copy_outs[self._is_backward], self._positions, strict=True):
            step.forward(run, step.inputs, [results[position]])
        self._pool.give(runner)
