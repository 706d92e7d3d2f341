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
    sizes = [0 if at in parts.inputs else nbytes(graph, each) for at, each in enumerate(node.inputs)]
    made = [nbytes(graph, Entry(node, index)) for index in range(node.outputs())]
    added = sum(made[at] for at in parts.sums)
    return _STEP_NS + ordering(node, node.op.bytes_read(sizes, sum(made)) + 3 * added, cores)


def ordering(node: Node, size: int, cores: int) -> float:
    """About how many nanoseconds it takes to bring so many bytes of weights into order."""
    assert node.op is not None
    return _ORDER_NS * node.op.traits.heavy + _NS_A_BYTE * size / cores
