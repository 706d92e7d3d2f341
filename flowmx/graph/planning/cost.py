"""Estimates of the time of steps, by which plans are compared."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from flowmx import settings
from flowmx.devices import threads
from flowmx.graph.graph import Graph
from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.live import Shapes, nbytes
from flowmx.ops.compiled.chain import Chain
from flowmx.ops.registry.operators import kernel_for
from flowmx.ops.registry.traits import BatchParts

_STEP_NS = 40_000
"""Nanoseconds that one more step takes, in the middle of a network that has put everything else into the caches."""
_LOOSE_NS = 150_000
"""The same where the step's kernel looks at its arrays each time."""
_ORDER_NS = 40_000
"""The same of the primitive that brings weights into order."""
_NS_A_BYTE = 0.35
"""Nanoseconds of one core for each byte of weights that are brought into order once more."""
_ALIASED = 3
"""The factor that it takes longer by where all rows fall into the same lines of the first cache."""
_PAGE = 4096
"""The distance of rows in bytes where they do."""
_MEMORY_NS = 0.05
"""Nanoseconds for each byte that comes from memory or goes there, for all cores together."""
_CACHE_NS = 0.02
"""The same of the last cache."""
_FLOPS_A_NS = 100
"""Of one core."""
_ELEMENTS_A_NS = 4


def cores() -> int:
    """The number of threads that a kernel uses here."""
    return threads.kernel_threads(settings.get())


def nanoseconds(node: Node, form: Shapes, cores: int) -> float:
    """About how long an operator takes at least, on so many cores."""
    assert node.op is not None
    flops, elements = node.op.cost(*form)
    return max(flops / _FLOPS_A_NS, elements / _ELEMENTS_A_NS) / cores


@cache
def last_level() -> int:
    """The bytes of the processor's last cache; those of a usual one where the system does not say."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
        return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]]
    except (OSError, ValueError, KeyError, IndexError):
        return 32 << 20


def in_memory(costs: Any, moved: Any, part: Any = 1) -> Any:
    """The nanoseconds that steps take, whose values come from the last cache where they fit into half of it.

    Args:
        costs: what each takes at least, however fast its values come.
        moved: the bytes that each reads and writes for the whole batch.
        part: the part of the batch that it takes at a time.
    """
    each = np.where(moved * part > last_level() / 2, _MEMORY_NS, _CACHE_NS)
    return np.maximum(costs, moved * each)


def once_more(graph: Graph, node: Node, parts: BatchParts, cores: int) -> float:
    """About how many nanoseconds it costs to run an operator once more, for another slice of the batch."""
    assert node.op is not None
    if node.op.traits.view:
        return 0
    whole = [0 if at in parts.inputs else nbytes(graph, each) for at, each in enumerate(node.inputs)]
    made = [nbytes(graph, Entry(node, index)) for index in range(node.outputs())]
    added = sum(made[at] for at in parts.sums)
    is_tied = isinstance(node.op, Chain) or hasattr(kernel_for("cpu", node.op.name), "tie")
    more = float(_STEP_NS if is_tied else _LOOSE_NS)
    # Training reads matrices as they lie.
    if node.op.traits.heavy and len(whole) > 1 and whole[1] and not (graph.train and _is_matrix(graph, node.inputs[1])):
        whole[1] = 0
        more += ordering(graph, node, cores)
    each = _MEMORY_NS if graph.train else _NS_A_BYTE / cores
    return more + each * (node.op.bytes_read(whole, sum(made)) + 3 * added)


def _is_matrix(graph: Graph, entry: Entry) -> bool:
    return len(graph.shapes[entry]) == 2


def ordering(graph: Graph, node: Node, cores: int) -> float:
    """About how many nanoseconds a layer takes to bring its weight into order."""
    weight = node.inputs[1]
    size, rows = nbytes(graph, weight), max(1, graph.shapes[weight][0])
    slower = _ALIASED if size // rows % _PAGE == 0 else 1
    return _ORDER_NS + slower * _NS_A_BYTE * size / cores


class Costs(Protocol):
    """Estimates of a kind of device, in nanoseconds."""

    def nanoseconds(self, node: Node, form: Shapes) -> float:
        """About how long an operator takes at least, however fast its values come."""

    def in_memory(self, costs: Any, moved: Any, part: Any = 1) -> Any:
        """The time of steps of which that is known, and the bytes that each moves; a part of the batch at a time."""

    def once_more(self, graph: Graph, node: Node, parts: BatchParts) -> float:
        """The cost of running an operator once more, for another slice of the batch."""

    def ordering(self, graph: Graph, node: Node) -> float:
        """The time to bring a layer's weight into order for another slice."""


class Processor:
    """The costs of steps on the processor."""

    def __init__(self) -> None:
        self._cores = cores()

    def nanoseconds(self, node: Node, form: Shapes) -> float:
        return nanoseconds(node, form, self._cores)

    def in_memory(self, costs: Any, moved: Any, part: Any = 1) -> Any:
        return in_memory(costs, moved, part)

    def once_more(self, graph: Graph, node: Node, parts: BatchParts) -> float:
        return once_more(graph, node, parts, self._cores)

    def ordering(self, graph: Graph, node: Node) -> float:
        return ordering(graph, node, self._cores)
