"""Ranges of quantized values that no data changes: those that were measured before, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from flowmx.graph.node import Entry, Node
from flowmx.ops.quantization.fused import Part
from flowmx.ops.quantization.ranges import Quantized, Range
from flowmx.ops.registry.dtypes import DType

__all__ = ["Ends", "known_ends", "ranges_of"]

Ends = Mapping[Entry, np.float32]
"""The known ends of ranges, by the entries that hold them."""


def known_ends(nodes: Iterable[Node], dtypes: Mapping[Entry, DType]) -> Ends:
    """The ends of ranges that are known.

    Args:
        nodes: a graph, inputs before users.
        dtypes: of its entries.
    """
    found: dict[Entry, np.float32] = {}
    for node in nodes:
        ends = _range_of(node, dtypes, found)
        if ends is not None and node.outputs() >= 3:
            found.update((Entry(node, index), np.float32(end)) for index, end in enumerate(ends, 1))
    return found


def ranges_of(entries: Sequence[Entry], known: Ends) -> list[Range | None]:
    """The ranges in pairs of entries, as far as they are known."""
    found: list[Range | None] = []
    for low, high in zip(entries[::2], entries[1::2], strict=True):
        both = known.get(low), known.get(high)
        found.append(None if both[0] is None or both[1] is None else (both[0], both[1]))
    return found


def _range_of(node: Node, dtypes: Mapping[Entry, DType], known: Ends) -> Range | None:
    """The range of a node's first output."""
    op = node.op
    if isinstance(op, Part):
        return op.calibrated if op.quantized else None
    if not isinstance(op, Quantized):
        return None
    first = op.ranges_from()
    kinds = [dtypes[entry] for entry in (*node.inputs[:first], Entry(node, 0))]
    return op.known_range(kinds, ranges_of(node.inputs[first:], known))
