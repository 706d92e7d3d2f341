"""Names in profiles: the operators and layers of graph steps, and the user's source lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from flowmx.engine import Origin, describe
from flowmx.observability.safety.graph_watch import display_name
from flowmx.observability.safety.nan_watch import layer_of
from flowmx.ops.compiled.chain import Chain
from flowmx.profiler.records import Record

__all__ = ["LineCache", "NamedOperation", "named_operations"]


class NamedOperation(NamedTuple):
    """An operation, or an operator of a graph, with its names for display.

    Attributes:
        operator: such as ``Convolution``; the operators of a fused chain are joined by ``+``.
        layer: the layer; the layers of a chain are joined by ``,``; empty if unknown.
        node: its node in the graph; empty outside graphs.
        place: the user's source line that created the node.
        start, end: times in seconds.
    """

    operator: str
    layer: str
    node: str
    place: str
    start: float
    end: float


def named_operations(record: Record) -> Iterator[NamedOperation]:
    """Yield the operation itself, or the operators of its graph."""
    if record.steps:
        yield from (NamedOperation(*of_node(step.node), step.start, step.end) for step in record.steps)
    else:
        layer = record.origin[2] if record.origin is not None else None
        yield NamedOperation(record.name, layer or "", "", "", record.start, record.end)


def of_node(node: Any) -> tuple[str, str, str, str]:
    """Return the operator, layer, name and source line of a node."""
    if node.op is None:  # an output for the user
        return "copy", layer_of(node.name.removesuffix(" (result)")), node.name, ""
    if isinstance(node.op, Chain):
        links = node.op.links
        layers = dict.fromkeys(layer_of(link.name) for link in links)
        return " + ".join(display_name(link.op) for link in links), ", ".join(layers), node.name, node.place()
    return display_name(node.op), layer_of(node.name), node.name, node.place()


class LineCache:
    """Describes the user's source lines, cached."""

    def __init__(self) -> None:
        self._descriptions: dict[object, str] = {}

    def __call__(self, origin: Origin | None) -> str:
        if origin is None or origin[0] is None:
            return ""
        key = origin[:2]
        if key not in self._descriptions:
            self._descriptions[key] = describe(origin)
        return self._descriptions[key]
