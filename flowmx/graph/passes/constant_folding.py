"""Constant folding: values that depend on no variable are computed when the graph is bound."""

from __future__ import annotations

import math

import numpy as np

from flowmx import devices
from flowmx.devices import cpu
from flowmx.graph.graph import Graph, Options, Rewriter, is_pure
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.effects import preserving_effects
from flowmx.ndarray.computations import forward_of
from flowmx.ops.compiled.constant import Constant
from flowmx.ops.registry.operators import Array, Operator, Run

SMALL = 1 << 16
"""The maximum size in bytes of a value that is negligible to keep."""
_FOLD_LIMIT = 1 << 20
"""The maximum size in bytes of an intermediate constant that is computed for a small one."""


@preserving_effects
def fold_constants(graph: Graph, options: Options) -> Graph:
    """Compute values that depend on no variable now, if keeping them is negligible.

    A constant of more than 64 KiB stays a node: kept between runs, it would take memory that others could share.
    """
    folding = _Folding(graph)
    for node in folding.rewriter.nodes:
        if node.op is not None:
            folding.visit(node, node.op)
    return folding.rewriter.result()


class _Folding:
    """A pass over a graph, with the constants so far."""

    def __init__(self, graph: Graph) -> None:
        self.rewriter = Rewriter(graph)
        self._graph = graph
        self._results = set(graph.results())
        self._device = devices.get(cpu(0))
        self._run = Run(self._device, graph.train)
        self._reads = dict(self.rewriter.uses)
        self._values: dict[Entry, Array] = {}
        self._constants: dict[tuple[Constant, object], Node] = {}
        self._shape_only: dict[Operator, tuple[int, bool]] = {}
        """For each operator, the number of inputs used only for their shape, and whether it can drop them."""

    def visit(self, node: Node, op: Operator) -> None:
        """Compute a node if it is constant; otherwise replace its inputs that are constant."""
        values_, inputs = self._values, node.inputs
        if op not in self._shape_only:
            self._shape_only[op] = (
                len(op.shape_only_inputs()),
                type(op).without_shape_inputs is not Operator.without_shape_inputs,
            )
        shape_only, is_droppable = self._shape_only[op]
        if shape_only < len(inputs) and not is_droppable and values_.keys().isdisjoint(inputs):
            self.rewriter.keep(node)
            return
        constants = [entry for entry in inputs if entry in values_]
        if max(len(constants), shape_only) < len(inputs):
            self._keep(node, op, constants)
        else:
            outputs = [Entry(node, index) for index in range(node.outputs())]
            results = self._compute(node, op, outputs)
            values_.update(zip(outputs, results or (), strict=results is not None))
            if results is None or max(value.nbytes for value in results) > SMALL:
                self._keep(node, op, constants)
        for entry in constants:
            self._reads[entry] -= 1
            if not self._reads[entry]:
                values_.pop(entry, None)

    def _compute(self, node: Node, op: Operator, outputs: list[Entry]) -> list[Array] | None:
        """Return the outputs of a node that is constant and cheap, else None."""
        if (
            op.traits.heavy
            or op.traits.once
            or not is_pure(op, self._graph.train)
            or not self._results.isdisjoint(outputs)
        ):
            return None
        if not 0 < sum(nbytes(self.rewriter, entry) for entry in outputs) <= _FOLD_LIMIT:
            return None
        value = self._form if len(op.shape_only_inputs()) == len(node.inputs) else self._values.get
        inputs = [value(entry) for entry in node.inputs]
        arrays = [array for array in inputs if array is not None]
        return self._forward(op, arrays, outputs) if len(arrays) == len(inputs) else None

    def _form(self, entry: Entry) -> Array:
        """Return an array with the shape and dtype of an entry, for operators that use only these."""
        return np.broadcast_to(np.zeros((), self._graph.dtypes[entry]), self._graph.shapes[entry])

    def _forward(self, op: Operator, inputs: list[Array], outputs: list[Entry]) -> list[Array] | None:
        """Compute a node's outputs as the graph would at run time; return None if that fails."""
        arrays = [np.empty(self._graph.shapes[entry], self._graph.dtypes[entry]) for entry in outputs]
        try:
            with np.errstate(all="ignore"):
                forward_of(op, self._device)(self._run, inputs, arrays)
        except Exception:  # any error of an operator: the run reports it
            return None
        return arrays

    def _keep(self, node: Node, op: Operator, constants: list[Entry]) -> None:
        for entry in constants:
            value = self._values[entry]
            if value.nbytes <= SMALL:
                self._fold(entry, value)
        if not self._shape_only[op][1]:
            self.rewriter.keep(node)
            return
        shape = self._graph.shapes[Entry(node, 0)]
        plain = op.without_shape_inputs(shape, self._graph.dtypes[Entry(node, 0)]) if shape and 0 not in shape else None
        if plain is not None:  # inputs used only for their shape are no longer needed
            positions = op.shape_only_inputs()
            inputs = [self.rewriter.new(entry) for index, entry in enumerate(node.inputs) if index not in positions]
            self.rewriter.replace(Entry(node, 0), Entry(self.rewriter.make(plain, inputs, node), 0))
        else:
            self.rewriter.keep(node)

    def _fold(self, entry: Entry, value: Array) -> None:
        """Replace an entry with a kept array; equal arrays share one node."""
        if isinstance(self.rewriter.new(entry).node.op, Constant):
            return
        op, context = Constant(value), self._graph.context(entry.node)
        node = self._constants.get((op, context))
        if node is None:
            node = self._constants[op, context] = self.rewriter.make(op, [], entry.node)
        self.rewriter.replace(entry, Entry(node, 0))
        self.rewriter.note(f"{entry.node.output_name(entry.index)} is computed once, when the graph is bound")


def nbytes(graph: Rewriter | Graph, entry: Entry) -> int:
    """Return the size of an entry in bytes."""
    return math.prod(graph.shapes[entry]) * graph.dtypes[entry].itemsize
