"""Layers by the dtype of their products: of one plan, and of all plans in use."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from flowmx.graph.graph import multiplies
from flowmx.graph.node import Node
from flowmx.graph.running.results import Results, live
from flowmx.ops.registry.dtypes import name_of

if TYPE_CHECKING:
    from flowmx.graph.plan import Plan

__all__ = ["in_use", "layers_of"]


def layers_of(plan: Plan, steps: Iterable[Node]) -> dict[str, list[str]]:
    """Return the names of a plan's layers among steps, by precision; int8 and uint8 count as int8."""
    layers: dict[str, list[str]] = {}
    for node in steps:
        if node.op is not None and multiplies(node.op) and not node.op.traits.once:
            kind = name_of(plan.graph.dtypes[node.inputs[0]]).replace("uint8", "int8")
            layers.setdefault(kind, []).append(node.name)
    return layers


def in_use(exclude: Collection[Results] = ()) -> dict[str, list[str]]:
    """Return the names of the layers of all graphs in use except ``exclude``, by precision, without duplicates."""
    layers: dict[str, dict[str, None]] = {}
    for results in (results for results in live() if results not in exclude):
        for kind, names in layers_of(results.plan, results.plan.forward).items():
            layers.setdefault(kind, {}).update(dict.fromkeys(names))
    return {kind: list(names) for kind, names in sorted(layers.items(), key=lambda item: -len(item[1]))}
