"""Choice of the values of a graph that lie channels-last in memory.

Kernels of convolutions are fastest where the channels (axis 1) are contiguous. Laid out like that from one
to the next, through all that merely keeps a layout between them, nothing is copied in between. Shapes stay as they
are; only the strides differ, so every operator may read such a value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from flowmx.graph.node import Entry, Node
from flowmx.ops.compiled.sliced import Sliced
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Shape


def channels_last(
    nodes: Sequence[Node],
    shapes: Mapping[Entry, Shape],
    dtypes: Mapping[Entry, DType],
    external: Collection[Entry],
    kinds: Collection[DType],
) -> frozenset[Entry]:
    """The values to lay out channels-last.

    Args:
        nodes: the steps, in order.
        shapes: of every entry.
        dtypes: likewise.
        external: entries whose memory comes from outside, in C order.
        kinds: the element types to do so with.
    """
    found: set[Entry] = set()
    for node in nodes:
        op = node.op
        if op is None:
            continue
        laid = op.laid if isinstance(op, Sliced) else None
        keeps = op.traits.keeps_layout and any(entry in found for entry in node.inputs)
        if not (op.traits.makes_channels_last or keeps or laid):
            continue
        for index in range(node.outputs()):
            entry = Entry(node, index)
            may = entry not in external and 3 <= len(shapes[entry]) <= 5 and dtypes[entry] in kinds
            if may and (laid is None or laid[index]):
                found.add(entry)
    return frozenset(found)
