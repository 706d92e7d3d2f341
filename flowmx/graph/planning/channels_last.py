"""Choice of the values of a graph with channels-last layout.

Convolution kernels are fastest if the channels (axis 1) are contiguous. If all operators between two convolutions keep
the layout, nothing is copied in between. Shapes stay the same; only the strides differ, so every operator can read such
a value.
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
    """Return the values with channels-last layout.

    Args:
        nodes: the steps, in order.
        shapes: the shape of every entry.
        dtypes: the dtype of every entry.
        external: entries with external memory, in C order.
        kinds: the dtypes that may have this layout.
    """
    result: set[Entry] = set()
    for node in nodes:
        op = node.op
        if op is None:
            continue
        sliced_layout = op.channels_last if isinstance(op, Sliced) else None
        keeps = op.traits.keeps_layout and any(entry in result for entry in node.inputs)
        if not (op.traits.makes_channels_last or keeps or sliced_layout):
            continue
        for index in range(node.outputs()):
            entry = Entry(node, index)
            is_possible = entry not in external and 3 <= len(shapes[entry]) <= 5 and dtypes[entry] in kinds
            if is_possible and (sliced_layout is None or sliced_layout[index]):
                result.add(entry)
    return frozenset(result)
