"""Estimates of the time of steps, by which plans are compared.

On a fast machine what slices cost counts the most: it hardly depends on the number of cores.
"""

from __future__ import annotations

from flowmx.graph.graph import Graph
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.live import nbytes
from flowmx.ops.registry.traits import BatchParts

_STEP_NS = 15_000
"""Nanoseconds that one more step takes."""
_NS_A_BYTE = 0.05
"""Nanoseconds for each byte of weights that are brought into order and read once more."""
_FLOPS_A_NS = 50
"""Of one core."""
_ELEMENTS_A_NS = 0.5
FAST = 8
"""Cores of a fast machine."""


def nanoseconds(graph: Graph, node: Node, cores: int = FAST) -> float:
    """About how long an operator takes at least, on so many cores."""
    assert node.op is not None
    inputs = [graph.shapes[entry] for entry in node.inputs]
    flops, elements = node.op.cost(inputs, [graph.shapes[Entry(node, index)] for index in range(node.outputs())])
    return max(flops / _FLOPS_A_NS, elements / _ELEMENTS_A_NS) / cores


def once_more(graph: Graph, node: Node, parts: BatchParts) -> float:
    """About how many nanoseconds it costs to run an operator once more, for another slice of the batch."""
    assert node.op is not None
    if node.op.traits.view:
        return 0
    sizes = [0 if at in parts.inputs else nbytes(graph, each) for at, each in enumerate(node.inputs)]
    made = [nbytes(graph, Entry(node, index)) for index in range(node.outputs())]
    added = sum(made[at] for at in parts.sums)
    return _STEP_NS + _NS_A_BYTE * (node.op.bytes_read(sizes, sum(made)) + 3 * added)
