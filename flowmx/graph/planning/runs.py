"""Runs: operators in a row of the order that go along with the batch, so that parts of it can go through one by one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from flowmx.graph.graph import Graph, is_pure
from flowmx.graph.node import Node
from flowmx.graph.planning.live import Shapes
from flowmx.ops.registry.traits import BatchParts

_EVICTED = 16
"""Operators that may be taken out of a run for one that needs their whole results."""


class Member(NamedTuple):
    """An operator of a run, with what of it goes along with the batch."""

    node: Node
    parts: BatchParts


@dataclass
class Run:
    """Operators in a row that go along with the batch.

    Attributes:
        start, stop: positions in the order.
        units: the greatest number of equal parts that the batch can be cut into.
        members: by node.
        before: operators between them that read none of them, and run before them.
    """

    start: int
    stop: int
    units: int
    members: dict[Node, BatchParts] = field(default_factory=dict)
    before: dict[Node, None] = field(default_factory=dict)


def runs(
    graph: Graph, order: Sequence[Node], forms: Sequence[Shapes], parts: Sequence[BatchParts | None]
) -> list[Run]:  # fmt: skip
    """The runs of an order, of those operators that compute something in each run of the graph.

    Args:
        graph: what is computed.
        order: the operators.
        forms: the shapes of their inputs and outputs.
        parts: what of each goes along with the batch (None: it may not be in a region).
    """
    found: list[Run] = []
    now: Run | None = None
    for at, (node, form, along) in enumerate(zip(order, forms, parts, strict=True)):
        rows = [] if along is None else _rows(along, form)
        if now is not None and _goes_on(graph, now, node, along, rows):
            now.stop = at + 1
            continue
        units, now = math.gcd(*rows), None
        if along is not None and units > 1:
            now = Run(at, at + 1, units, {node: along})
            found.append(now)
    return found


def parts_of(graph: Graph, node: Node, form: Shapes) -> BatchParts | None:
    """The parts of an operator that go along with the batch; None where it may not be in a region."""
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
    """The lengths of axis 0 of what goes along."""
    inputs, outputs = form
    return [*[inputs[at][0] for at in parts.inputs], *[outputs[at][0] for at in parts.outputs]]


def _goes_on(graph: Graph, run: Run, node: Node, parts: BatchParts | None, rows: Sequence[int]) -> bool:
    """Let a run go on with an operator, in it or before it; False where it cannot."""
    if parts is not None and graph.context(node) is graph.context(next(iter(run.members))):
        fits = not any(each % run.units for each in rows)
        if fits and _reads_parts(node, parts, run):
            whole = [entry.node for at, entry in enumerate(node.inputs) if at not in parts.inputs]
            if _evict(run, [each for each in whole if each in run.members]):
                run.members[node] = parts
                return True
    if _is_before(node, run):
        run.before[node] = None
        return True
    return False


def _reads_parts(node: Node, parts: BatchParts, run: Run) -> bool:
    """Tell whether what an operator reads of a run, part by part, is there part by part."""
    read = [node.inputs[at] for at in parts.inputs if node.inputs[at].node in run.members]
    return all(entry.index in run.members[entry.node].outputs for entry in read)


def _is_before(node: Node, run: Run) -> bool:
    """Tell whether an operator can run before all of a run."""
    assert node.op is not None
    return is_pure(node.op, train=False) and not any(entry.node in run.members for entry in node.inputs)


def _evict(run: Run, needed: Iterable[Node]) -> bool:
    """Let members whose whole results are needed run before the others, with what they read of them."""
    found: dict[Node, None] = {}
    stack = list(needed)
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            stack += [entry.node for entry in node.inputs if entry.node in run.members]
    if len(found) > min(_EVICTED, len(run.members) - 1):
        return not found
    for node in found:
        del run.members[node]
        run.before[node] = None
    return True
