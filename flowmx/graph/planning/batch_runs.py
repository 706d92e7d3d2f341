"""Runs: consecutive operators with a batch axis, through which parts of the batch can pass one by one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from flowmx.graph.graph import Graph, is_pure
from flowmx.graph.node import Node
from flowmx.graph.planning.live_bytes import Shapes
from flowmx.ops.registry.traits import BatchParts

_EVICTION_LIMIT = 16
"""The maximum number of operators that are moved out of a run for an operator that needs their whole results."""


class Member(NamedTuple):
    """An operator of a run, with its batch parts."""

    node: Node
    parts: BatchParts


@dataclass
class Run:
    """Consecutive operators with a batch axis.

    Attributes:
        start, stop: positions in the order.
        units: the largest number of equal parts that the batch can be cut into.
        members: the batch parts of each operator of the run.
        before: operators between the members that read none of them, and run before them.
    """

    start: int
    stop: int
    units: int
    members: dict[Node, BatchParts] = field(default_factory=dict)
    before: dict[Node, None] = field(default_factory=dict)


def runs(
    graph: Graph, order: Sequence[Node], forms: Sequence[Shapes], parts: Sequence[BatchParts | None]
) -> list[Run]:  # fmt: skip
    """Return the runs of an order of operators.

    Args:
        graph: the graph.
        order: the operators that each run of the graph executes.
        forms: the shapes of their inputs and outputs.
        parts: their batch parts (None: an operator cannot be in a region).
    """
    result: list[Run] = []
    run: Run | None = None
    for index, (node, form, along) in enumerate(zip(order, forms, parts, strict=True)):
        rows = [] if along is None else _rows(along, form)
        if run is not None and _extend(graph, run, node, along, rows):
            run.stop = index + 1
            continue
        units, run = math.gcd(*rows), None
        if along is not None and units > 1:
            run = Run(index, index + 1, units, {node: along})
            result.append(run)
    return result


def parts_of(graph: Graph, node: Node, form: Shapes) -> BatchParts | None:
    """Return the batch parts of an operator, or None if it cannot be in a region."""
    op = node.op
    assert op is not None
    if op.traits.dynamic or not is_pure(op, train=False):
        return None
    inputs, outputs = form
    if not (all(map(all, inputs)) and all(map(all, outputs))):
        return None
    parts = op.batch_parts(inputs, outputs)
    return None if parts is None or parts.sums else parts


def _rows(parts: BatchParts, form: Shapes) -> list[int]:
    """Return the lengths of axis 0 of the inputs and outputs with a batch axis."""
    inputs, outputs = form
    return [*[inputs[index][0] for index in parts.inputs], *[outputs[index][0] for index in parts.outputs]]


def _extend(graph: Graph, run: Run, node: Node, parts: BatchParts | None, rows: Sequence[int]) -> bool:
    """Extend a run by an operator, in it or before it; return False if that is impossible."""
    if parts is not None and graph.context(node) is graph.context(next(iter(run.members))):
        fits = not any(count % run.units for count in rows)
        if fits and _reads_parts(node, parts, run):
            whole = [entry.node for index, entry in enumerate(node.inputs) if index not in parts.inputs]
            if _evict(run, [source for source in whole if source in run.members]):
                run.members[node] = parts
                return True
    if _is_before(node, run):
        run.before[node] = None
        return True
    return False


def _reads_parts(node: Node, parts: BatchParts, run: Run) -> bool:
    """Return whether the inputs that an operator reads from a run in parts are available in parts."""
    read = [node.inputs[index] for index in parts.inputs if node.inputs[index].node in run.members]
    return all(entry.index in run.members[entry.node].outputs for entry in read)


def _is_before(node: Node, run: Run) -> bool:
    """Return whether an operator can run before all of a run."""
    assert node.op is not None
    return is_pure(node.op, train=False) and not any(entry.node in run.members for entry in node.inputs)


def _evict(run: Run, needed: Iterable[Node]) -> bool:
    """Move members whose whole results are needed, and those they read, before the run; return False if too many."""
    moved: dict[Node, None] = {}
    stack = list(needed)
    while stack:
        node = stack.pop()
        if node not in moved:
            moved[node] = None
            stack += [entry.node for entry in node.inputs if entry.node in run.members]
    if len(moved) > min(_EVICTION_LIMIT, len(run.members) - 1):
        return not moved
    for node in moved:
        del run.members[node]
        run.before[node] = None
    return True
