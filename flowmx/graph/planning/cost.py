"""Time estimates of steps, for comparing plans."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from flowmx import settings
from flowmx.devices import threads
from flowmx.graph.graph import Graph
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.live_bytes import Shapes, nbytes
from flowmx.ops.compiled.chain import Chain
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.traits import BatchParts

_STEP_NS = 40_000
"""Nanoseconds of an additional step, in the middle of a network whose data fills the caches."""
_LOOSE_NS = 150_000
"""Nanoseconds of an additional step whose kernel inspects its arrays each time."""
_REORDER_NS = 40_000
"""Nanoseconds of the primitive that reorders weights."""
_NS_PER_BYTE = 0.35
"""Nanoseconds on one core for each byte of weights that is reordered again."""
_ALIASED = 3
"""The factor for reordering if all rows map to the same lines of the first-level cache."""
_PAGE = 4096
"""The distance of rows in bytes at which all rows map to the same cache lines."""
_MEMORY_NS = 0.05
"""Nanoseconds for each byte to or from memory, for all cores together."""
_CACHE_NS = 0.02
"""Nanoseconds for each byte to or from the last-level cache, for all cores together."""
_FLOPS_PER_NS = 100
"""Floating-point operations per nanosecond and core."""
_ELEMENTS_PER_NS = 4


def cores() -> int:
    """Return the number of threads that a kernel uses here."""
    return threads.kernel_threads(settings.get())


def nanoseconds(node: Node, form: Shapes, cores: int) -> float:
    """Return the approximate lower bound of an operator's time on ``cores`` cores."""
    assert node.op is not None
    flops, elements = node.op.cost(*form)
    return max(flops / _FLOPS_PER_NS, elements / _ELEMENTS_PER_NS) / cores


@cache
def last_level_cache() -> int:
    """Return the size of the last-level cache in bytes, or a typical size if the system does not report it."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
        return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]]
    except (OSError, ValueError, KeyError, IndexError):
        return 32 << 20


def with_memory_traffic(costs: Any, moved: Any, part: Any = 1) -> Any:
    """Return the nanoseconds of steps, whose values come from the last-level cache if they fit into half of it.

    Args:
        costs: a lower bound for each, independent of memory traffic.
        moved: the number of bytes that each operator reads and writes for the whole batch.
        part: the part of the batch that is processed at a time.
    """
    ns_per_byte = np.where(moved * part > last_level_cache() / 2, _MEMORY_NS, _CACHE_NS)
    return np.maximum(costs, moved * ns_per_byte)


def repetition(graph: Graph, node: Node, parts: BatchParts, cores: int) -> float:
    """Return the approximate nanoseconds of running an operator again, for another slice of the batch."""
    assert node.op is not None
    if node.op.traits.view:
        return 0
    whole = [0 if position in parts.inputs else nbytes(graph, entry) for position, entry in enumerate(node.inputs)]
    outputs = [nbytes(graph, Entry(node, index)) for index in range(node.outputs())]
    added = sum(outputs[position] for position in parts.sums)
    kernel = kernel_for("cpu", node.op.name)
    is_tied = isinstance(node.op, Chain) or (kernel is not None and kernel.tie is not None)
    nanoseconds = float(_STEP_NS if is_tied else _LOOSE_NS)
    # Training reads matrices without reordering them.
    if node.op.traits.heavy and len(whole) > 1 and whole[1] and not (graph.train and _is_matrix(graph, node.inputs[1])):
        whole[1] = 0
        nanoseconds += reorder_cost(graph, node, cores)
    ns_per_byte = _MEMORY_NS if graph.train else _NS_PER_BYTE / cores
    return nanoseconds + ns_per_byte * (node.op.bytes_read(whole, sum(outputs)) + 3 * added)


def _is_matrix(graph: Graph, entry: Entry) -> bool:
    return len(graph.shapes[entry]) == 2


def reorder_cost(graph: Graph, node: Node, cores: int) -> float:
    """Return the approximate nanoseconds for a layer to reorder its weight."""
    weight = node.inputs[1]
    size, rows = nbytes(graph, weight), max(1, graph.shapes[weight][0])
    factor = _ALIASED if size // rows % _PAGE == 0 else 1
    return _REORDER_NS + factor * _NS_PER_BYTE * size / cores


class Costs(Protocol):
    """Time estimates for a kind of device, in nanoseconds."""

    def nanoseconds(self, node: Node, form: Shapes) -> float:
        """Return a lower bound of an operator's time, independent of memory traffic."""

    def with_memory_traffic(self, costs: object, moved: object, part: object = 1) -> Any:
        """Return the time of steps for a part of the batch, from their lower bounds and the bytes they move."""

    def repetition(self, graph: Graph, node: Node, parts: BatchParts) -> float:
        """Return the cost of running an operator again, for another slice of the batch."""

    def reorder_cost(self, graph: Graph, node: Node) -> float:
        """Return the time to reorder a layer's weight for another slice."""


class ProcessorCosts:
    """Time estimates on the processor."""

    def __init__(self) -> None:
        self._cores = cores()

    def nanoseconds(self, node: Node, form: Shapes) -> float:
        return nanoseconds(node, form, self._cores)

    def with_memory_traffic(self, costs: object, moved: object, part: object = 1) -> Any:
        return with_memory_traffic(costs, moved, part)

    def repetition(self, graph: Graph, node: Node, parts: BatchParts) -> float:
        return repetition(graph, node, parts, self._cores)

    def reorder_cost(self, graph: Graph, node: Node) -> float:
        return reorder_cost(graph, node, self._cores)
