"""Simplification of graphs: constant folding, and merging of common subexpressions."""

from __future__ import annotations

import math

import numpy as np

from flowmx import devices
from flowmx.devices import cpu
from flowmx.graph.graph import Graph, Options, Rewriter, is_pure, written
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.effects import keeping_effects
from flowmx.ndarray.core import forward_of
from flowmx.ops.compiled.constant import Constant
from flowmx.ops.registry.operators import Array, Operator, Run

SMALL = 1 << 16
"""Bytes of a value that costs nothing to keep."""
_WORK = 1 << 20
"""Bytes of a value up to which a constant is computed on the way to a small one."""


@keeping_effects
def fold_constants(graph: Graph, options: Options) -> Graph:
    """Compute what depends on no variable now, where keeping it costs next to nothing.

    A constant of more than 64 KiB stays a node: kept from run to run it would take memory that others could share.
    """
    folding = _Folding(graph)
    for node in folding.rewriter.nodes:
        if node.op is not None:
            folding.visit(node, node.op)
    return folding.rewriter.result()


class _Folding:
    """The constants found so far."""

    def __init__(self, graph: Graph) -> None:
        self.rewriter = Rewriter(graph)
        self._graph = graph
        self._wanted = set(graph.wanted())
        self._device = devices.get(cpu(0))
        self._run = Run(self._device, graph.train)
        self._reads = dict(self.rewriter.uses)
        self._values: dict[Entry, Array] = {}
        self._made: dict[tuple[Constant, object], Node] = {}
        self._alone: dict[Operator, tuple[int, bool]] = {}
        """For each operator how many inputs it only looks at the form of, and whether it can do without them."""

    def visit(self, node: Node, op: Operator) -> None:
        """Compute a node if it is constant; else let it read what has been folded."""
        known, inputs = self._values, node.inputs
        if op not in self._alone:
            self._alone[op] = len(op.only_shapes()), type(op).without_like is not Operator.without_like
        alone, may_go = self._alone[op]
        if alone < len(inputs) and not may_go and known.keys().isdisjoint(inputs):
            self.rewriter.keep(node)
            return
        read = [entry for entry in inputs if entry in known]
        if max(len(read), alone) < len(inputs):
            self._keep(node, op, read)
        else:
            outputs = [Entry(node, index) for index in range(node.outputs())]
            values = self._computed(node, op, outputs)
            known.update(zip(outputs, values or (), strict=values is not None))
            if values is None or max(value.nbytes for value in values) > SMALL:
                self._keep(node, op, read)
        for entry in read:
            self._reads[entry] -= 1
            if not self._reads[entry]:
                known.pop(entry, None)

    def _computed(self, node: Node, op: Operator, outputs: list[Entry]) -> list[Array] | None:
        """The outputs of a node that is constant and light; None for others."""
        if (
            op.traits.heavy
            or op.traits.once
            or not is_pure(op, self._graph.train)
            or not self._wanted.isdisjoint(outputs)
        ):
            return None
        if not 0 < sum(_nbytes(self.rewriter, entry) for entry in outputs) <= _WORK:
            return None
        value = self._form if len(op.only_shapes()) == len(node.inputs) else self._values.get
        inputs = [value(entry) for entry in node.inputs]
        return None if any(each is None for each in inputs) else self._forward(op, inputs, outputs)

    def _form(self, entry: Entry) -> Array:
        """An array with the shape and the dtype of an entry, for operators that look at nothing else."""
        return np.broadcast_to(np.zeros((), self._graph.dtypes[entry]), self._graph.shapes[entry])

    def _forward(self, op: Operator, inputs: list[Array], outputs: list[Entry]) -> list[Array] | None:
        """Compute a node's outputs as the graph would at run time; None if that fails, as it then will again."""
        made = [np.empty(self._graph.shapes[entry], self._graph.dtypes[entry]) for entry in outputs]
        try:
            with np.errstate(all="ignore"):
                forward_of(op, self._device)(self._run, inputs, made)
        except Exception:
            return None
        return made

    def _keep(self, node: Node, op: Operator, read: list[Entry]) -> None:
        for entry in read:
            value = self._values[entry]
            if value.nbytes <= SMALL:
                self._fold(entry, value)
        if not self._alone[op][1]:
            self.rewriter.keep(node)
            return
        shape = self._graph.shapes[Entry(node, 0)]
        plain = op.without_like(shape, self._graph.dtypes[Entry(node, 0)]) if shape and 0 not in shape else None
        if plain is not None:  # what was only looked at then need not be there any more
            alone = op.only_shapes()
            inputs = [self.rewriter.new(entry) for at, entry in enumerate(node.inputs) if at not in alone]
            self.rewriter.replace(Entry(node, 0), Entry(self.rewriter.make(plain, inputs, node), 0))
        else:
            self.rewriter.keep(node)

    def _fold(self, entry: Entry, value: Array) -> None:
        """Let a kept array stand for an entry; equal ones are one."""
        if isinstance(self.rewriter.new(entry).node.op, Constant):
            return
        op, context = Constant(value), self._graph.context(entry.node)
        known = self._made.get((op, context))
        if known is None:
            known = self._made[op, context] = self.rewriter.make(op, [], entry.node)
        self.rewriter.replace(entry, Entry(known, 0))
        self.rewriter.note(f"{entry.node.output_name(entry.index)} is computed once, when the graph is bound")


def _nbytes(known: Rewriter | Graph, entry: Entry) -> int:
    return math.prod(known.shapes[entry]) * known.dtypes[entry].itemsize


# -- the same thing twice ----------------------------------------------------------------------------------


def merge_common(graph: Graph, options: Options) -> Graph:
    """Compute the same thing once.

    The same is: an equal operator, the same inputs, the same device, and nothing comes of it but its outputs. What
    the backward pass would compute again is taken from the forward pass only where it lives until then anyway, or is
    small: else it would take memory all along between the two.
    """
    if not options.merge:
        return graph
    rewriter = Rewriter(graph)
    changing = written(rewriter.nodes, graph.train)
    forward, lasting = set(graph.forward()), _lasting(graph)
    says: dict[Operator, int | None] = {}
    """For each operator the number of what it says; None where it does more than that."""
    numbers: dict[object, int] = {}
    known: dict[object, tuple[Node, Node]] = {}
    for node in rewriter.nodes:
        op = node.op
        if op is None:
            continue
        if op not in says:
            says[op] = numbers.setdefault(_says(op), len(numbers)) if is_pure(op, graph.train) else None
        kept, said = rewriter.keep(node), says[op]
        inputs = kept.inputs
        if said is None or (changing and any(entry.node in changing for entry in inputs)):
            continue
        key = (said, inputs, graph.context(node) if graph.groups else None)
        first, made = known.get(key, (None, node))
        if first is None:
            if inputs or _is_small(graph, node):
                known[key] = (node, kept)
            continue
        outputs = [Entry(node, index) for index in range(node.outputs())]
        if (
            (first in forward) == (node in forward)
            or _is_small(graph, node)
            or op.traits.view
            or all(Entry(first, index) in lasting for index in range(len(outputs)))
        ):
            for entry in outputs:
                rewriter.replace(entry, Entry(made, entry.index))
            rewriter.note(f"{node.name} is what {first.name} is already")
        else:
            known[key] = (node, kept)
    return rewriter.result()


def _is_small(graph: Graph, node: Node) -> bool:
    """Tell whether the outputs of a node cost nothing to keep."""
    return sum([_nbytes(graph, Entry(node, index)) for index in range(node.outputs())]) <= SMALL


def _says(op: Operator) -> object:
    """A key that is equal for operators with the same result: class and parameters, else the operator itself."""
    if not op.is_said_by_parameters():
        return op
    cls = type(op)
    return cls, tuple([repr(getattr(op, name)) for name in cls.parameters])  # as texts: 0.0 and -0.0 are two


def _lasting(graph: Graph) -> set[Entry]:
    """The entries that outlive the forward pass: outputs, and those that the backward pass reads."""
    forward = set(graph.forward())
    found = set(graph.outputs)
    for node in graph.nodes():
        if node not in forward:
            found.update(node.inputs)
    return found
