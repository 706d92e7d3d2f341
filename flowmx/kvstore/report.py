"""A job node's part of flight reports: its peers, and the nodes that it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any

from flowmx.comm.node import Node
from flowmx.comm.view import View
from flowmx.kvstore.facts import version
from flowmx.kvstore.server.callers import identity
from flowmx.kvstore.server.calls import begun

if TYPE_CHECKING:
    from flowmx.kvstore.server.core import Core

__all__ = ["of_node", "of_server"]

_MOST = 64
"""Parts that a server tells of."""


def of_node(node: Node, facts: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Report of a node of any role; see :func:`flowmx.observability.flight.describe`.

    Args:
        node: this process in the job.
        facts: what must be alike on all nodes, where it is more than the versions.
    """
    barriers = [
        {"for": member.name, "what": f"barrier {name!r}", "seconds": None}
        for name, missing in list(node.awaited.items()) for member in list(missing)
    ]  # fmt: skip
    return {
        "node": node.name,
        "doing": node.activity,
        "peers": _peers(node.view, node.id),
        "waits": barriers,
        "facts": dict(facts or version()),
    }


def _peers(view: View, own: str) -> list[dict[str, str]]:
    alive = [each for each in view.members if each.id != own]
    taken = {(each.role, each.rank) for each in view.members if each.state == "alive"}
    lost = [each for each in view.gone if (each.role, each.rank) not in taken]  # or another has taken its place
    return [
        {"name": each.name, "state": each.state, "why": each.obituary if each.state == "gone" else ""}
        for each in {each.id: each for each in (*alive, *lost)}.values()
    ]


def of_server(node: Node, core: Core) -> dict[str, Any]:
    """Report of a server: a node's, and for each part with waiting requests the workers whose push is missing."""
    names = {identity(each.id, each.incarnation): each.name for each in node.view.members}
    now = monotonic()
    found: dict[str, list[str]] = {}
    longest: dict[str, float] = {}
    slots = [slot for slot in list(core.state.slots.values()) if slot.pulls or slot.pushes]
    for slot in islice(slots, _MOST):
        came = [at for each in (*slot.pushes, *slot.pulls) if (at := begun(each)) is not None]
        for who in slot.missing():
            name = names.get(who, who)
            found.setdefault(name, []).append(str(slot.part.key))
            if came:
                longest[name] = max(longest.get(name, 0.0), now - min(came))
    waits = [
        {"for": name, "what": f"the round of key {', '.join(dict.fromkeys(keys[:4]))}", "seconds": longest.get(name)}
        for name, keys in found.items()
    ]
    said = of_node(node)
    return {**said, "waits": [*waits, *said["waits"]]}
