"""Merging of common subexpressions."""

from __future__ import annotations

from flowmx.graph.graph import Graph, Options, Rewriter, is_pure, written_variables
from flowmx.graph.node import Entry, Node
from flowmx.graph.passes.constant_folding import SMALL, nbytes
from flowmx.ops.registry.operators import Operator


def merge_common(graph: Graph, options: Options) -> Graph:
    """Compute common subexpressions once.

    Nodes are common if they have equal operators, the same inputs and the same device, and no side effects. The
    backward pass reuses a value of the forward pass only if that lives until then anyway, or is small: otherwise it
    would take memory all the time in between.
    """
    if not options.merge:
        return graph
    rewriter = Rewriter(graph)
    changing = written_variables(rewriter.nodes, graph.train)
    forward, kept_entries = set(graph.forward()), _kept_entries(graph)
    operator_numbers: dict[Operator, int | None] = {}
    """For each operator, the number of its key; None if it has side effects."""
    numbers: dict[object, int] = {}
    firsts: dict[object, tuple[Node, Node]] = {}
    for node in rewriter.nodes:
        op = node.op
        if op is None:
            continue
        if op not in operator_numbers:
            operator_numbers[op] = numbers.setdefault(_key(op), len(numbers)) if is_pure(op, graph.train) else None
        copy, number = rewriter.keep(node), operator_numbers[op]
        inputs = copy.inputs
        if number is None or (changing and any(entry.node in changing for entry in inputs)):
            continue
        key = (number, inputs, graph.context(node) if graph.groups else None)
        first, representative = firsts.get(key, (None, node))
        if first is None:
            if inputs or _is_small(graph, node):
                firsts[key] = (node, copy)
            continue
        outputs = [Entry(node, index) for index in range(node.outputs())]
        if (
            (first in forward) == (node in forward)
            or _is_small(graph, node)
            or op.traits.view
            or all(Entry(first, index) in kept_entries for index in range(len(outputs)))
        ):
            for entry in outputs:
                rewriter.replace(entry, Entry(representative, entry.index))
            rewriter.note(f"{node.name} equals {first.name}, and is computed once")
        else:
            firsts[key] = (node, copy)
    return rewriter.result()


def _is_small(graph: Graph, node: Node) -> bool:
    """Return whether the outputs of a node are negligible to keep."""
    return sum([nbytes(graph, Entry(node, index)) for index in range(node.outputs())]) <= SMALL


def _key(op: Operator) -> object:
    """Return a key that is equal for operators with the same result: class and parameters, or the operator itself."""
    if not op.is_defined_by_parameters():
        return op
    cls = type(op)
    return cls, tuple([repr(getattr(op, name)) for name in cls.parameters])  # repr: 0.0 and -0.0 differ


def _kept_entries(graph: Graph) -> set[Entry]:
    """Return the entries that outlive the forward pass: outputs, and those that the backward pass reads."""
    forward = set(graph.forward())
    entries = set(graph.outputs)
    for node in graph.nodes():
        if node not in forward:
            entries.update(node.inputs)
    return entries
