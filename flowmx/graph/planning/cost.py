"""Estimates of the time of steps, by which plans are compared."""

from __future__ import annotations

from flowmx import settings
from flowmx.devices import threads
from flowmx.graph.graph import Graph
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.live import nbytes
from flowmx.ops.registry.traits import BatchParts

_STEP_NS = 60_000
"""Nanoseconds that one more step takes, in the middle of a network that has put everything else into the caches."""
_ORDER_NS = 50_000
"""The same of the primitive that brings weights into order."""
_NS_A_BYTE = 0.35
"""Nanoseconds of one core for each byte of weights that are brought into order once more."""
_ALIASED = 3
"""How many times as long that takes where all rows fall into the same lines of the first cache."""
_PAGE = 4096
"""The distance of rows in bytes where they do."""
_FLOPS_A_NS = 100
"""Of one core."""
_ELEMENTS_A_NS = 2


def cores() -> int:
    """The number of threads that a kernel uses here."""
    return threads.kernel_threads(settings.get())


def nanoseconds(graph: Graph, node: Node, cores: int) -> float:
    """About how long an operator takes at least, on so many cores."""
    assert node.op is not None
    inputs = [graph.shapes[entry] for entry in node.inputs]
    flops, elements = node.op.cost(inputs, [graph.shapes[Entry(node, index)] for index in range(node.outputs())])
    return max(flops / _FLOPS_A_NS, elements / _ELEMENTS_A_NS) / cores


def once_more(graph: Graph, node: Node, parts: BatchParts, cores: int) -> float:
    """About how many nanoseconds it costs to run an operator once more, for another slice of the batch."""
    assert node.op is not None
    if node.op.traits.view:
        return 0
    whole = [0 if at in parts.inputs else nbytes(graph, each) for at, each in enumerate(node.inputs)]
    made = [nbytes(graph, Entry(node, index)) for index in range(node.outputs())]
    added = sum(made[at] for at in parts.sums)
    if not node.op.traits.heavy or len(whole) < 2:
        return _STEP_NS + _NS_A_BYTE * (node.op.bytes_read(whole, sum(made)) + 3 * added) / cores
    read = node.op.bytes_read([0 if at == 1 else size for at, size in enumerate(whole)], sum(made)) + 3 * added
    return _STEP_NS + _NS_A_BYTE * read / cores + (ordering(graph, node, cores) if whole[1] else 0)


def ordering(graph: Graph, node: Node, cores: int) -> float:
    """About how many nanoseconds a layer takes to bring its weight into order."""
    weight = node.inputs[1]
    size, rows = nbytes(graph, weight), max(1, graph.shapes[weight][0])
    slower = _ALIASED if size // rows % _PAGE == 0 else 1
    return _ORDER_NS + slower * _NS_A_BYTE * size / cores
