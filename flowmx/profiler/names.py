"""Names of recorded things: the operators and layers of graphs' steps, the user's lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from flowmx.engine import Origin, describe
from flowmx.observability.safety.stepping import shown
from flowmx.observability.safety.watch import layer_of
from flowmx.ops.compiled.chain import Chain
from flowmx.profiler.records import Record

__all__ = ["Lines", "Named", "named"]


class Named(NamedTuple):
    """An operation, or an operator of a graph, under the names that the user knows.

    Attributes:
        operator: such as ``Convolution``; of a fused chain all, with ``+`` between.
        layer: the layer, or the layers of a chain with ``,`` between; empty where there is none.
        node: its node in the graph; empty where it is not of one.
        place: the user's line that made the node.
        start, end: in seconds.
    """

    operator: str
    layer: str
    node: str
    place: str
    start: float
    end: float


def named(record: Record) -> Iterator[Named]:
    """Rows for a table: the operation itself, or the operators of a graph."""
    if record.steps:
        yield from (Named(*of_node(step.node), step.start, step.end) for step in record.steps)
    else:
        layer = record.origin[2] if record.origin is not None else None
        yield Named(record.name, layer or "", "", "", record.start, record.end)


def of_node(node: Any) -> tuple[str, str, str, str]:
    """Operator, layer, name and line of a node."""
    if node.op is None:  # what is handed out to the user
        return "copy", layer_of(node.name.removesuffix(" handed out")), node.name, ""
    if isinstance(node.op, Chain):
        links = node.op.links
        layers = dict.fromkeys(layer_of(link.name) for link in links)
        return " + ".join(shown(link.op) for link in links), ", ".join(layers), node.name, node.place()
    return shown(node.op), layer_of(node.name), node.name, node.place()


class Lines:
    """Describes users' lines, each once."""

    def __init__(self) -> None:
        self._known: dict[Any, str] = {}

    def __call__(self, origin: Origin | None) -> str:
        if origin is None or origin[0] is None:
            return ""
        key = origin[:2]
        if key not in self._known:
            self._known[key] = describe(origin)
        return self._known[key]
