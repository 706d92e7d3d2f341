"""Layers by the element type in which they multiply: of one plan, and of all that are in use."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from flowmx.graph.graph import multiplies
from flowmx.graph.node import Node
from flowmx.graph.plan import Plan
from flowmx.graph.running.results import Results, live
from flowmx.ops.registry.dtypes import name_of

__all__ = ["in_use", "layers_of"]


def layers_of(plan: Plan, steps: Iterable[Node]) -> dict[str, list[str]]:
    """The names of a plan's layers among some steps, by precision; bytes are int8, signed or not."""
    found: dict[str, list[str]] = {}
    for node in steps:
        if node.op is not None and multiplies(node.op) and not node.op.traits.once:
            kind = name_of(plan.graph.dtypes[node.inputs[0]]).replace("uint8", "int8")
            found.setdefault(kind, []).append(node.name)
    return found


def in_use(besides: Collection[Results] = ()) -> dict[str, list[str]]:
    """The names of the layers of all graphs that are compiled and in use, but for some, by precision, each once."""
    found: dict[str, dict[str, None]] = {}
    for each in (each for each in live() if each not in besides):
        for kind, names in layers_of(each.plan, each.plan.forward).items():
            found.setdefault(kind, {}).update(dict.fromkeys(names))
    return {kind: list(names) for kind, names in sorted(found.items(), key=lambda item: -len(item[1]))}
