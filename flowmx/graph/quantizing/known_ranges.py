"""Ranges of quantized values that do not depend on data: calibrated ranges, and those derived from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from flowmx.graph.node import Entry, Node
from flowmx.ops.quantization.ranges import Quantized, Range
from flowmx.ops.quantization.subgraph_layers import SubgraphLayer
from flowmx.ops.registry.dtypes import DType

__all__ = ["Ends", "known_bounds", "ranges_of"]

Ends = Mapping[Entry, np.float32]
"""The known ends of ranges, by the entries that hold them."""


def known_bounds(nodes: Iterable[Node], dtypes: Mapping[Entry, DType]) -> Ends:
    """Return the known ends of ranges.

    Args:
        nodes: a graph, inputs before users.
        dtypes: the dtype of every entry.
    """
    result: dict[Entry, np.float32] = {}
    for node in nodes:
        node_range = _range_of(node, dtypes, result)
        if node_range is not None and node.outputs() >= 3:
            result.update((Entry(node, index), np.float32(end)) for index, end in enumerate(node_range, 1))
    return result


def ranges_of(entries: Sequence[Entry], ends: Ends) -> list[Range | None]:
    """Return the ranges in pairs of entries, None if unknown."""
    result: list[Range | None] = []
    for low, high in zip(entries[::2], entries[1::2], strict=True):
        both = ends.get(low), ends.get(high)
        result.append(None if both[0] is None or both[1] is None else (both[0], both[1]))
    return result


def _range_of(node: Node, dtypes: Mapping[Entry, DType], ends: Ends) -> Range | None:
    """Return the range of a node's first output, or None."""
    op = node.op
    if isinstance(op, SubgraphLayer):
        return op.calibrated if op.quantized else None
    if not isinstance(op, Quantized):
        return None
    first = op.ranges_from()
    kinds = [dtypes[entry] for entry in (*node.inputs[:first], Entry(node, 0))]
    return op.known_range(kinds, ranges_of(node.inputs[first:], ends))
