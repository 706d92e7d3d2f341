"""A job node's part of flight reports: its peers, and the nodes that it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any

from flowmx.comm.node import Node
from flowmx.comm.view import View
from flowmx.kvstore.server.callers import identity
from flowmx.kvstore.server.pending_calls import start_time
from flowmx.kvstore.shards import Key
from flowmx.kvstore.spaces import format_key, space_of
from flowmx.kvstore.versions import version

if TYPE_CHECKING:
    from flowmx.kvstore.server.state_machine import Core

__all__ = ["node_report", "server_report"]

_MAX_PARTS = 64
"""Maximum number of parts that a server reports."""


def node_report(node: Node, facts: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the report of a node of any role; see :func:`flowmx.observability.flight.describe`.

    Args:
        node: this process in the job.
        facts: the values that must be equal on all nodes; by default the versions.
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


def _named(key: Key) -> str:
    return format_key(key) if space_of(key) else str(key)


def _peers(view: View, own_id: str) -> list[dict[str, str]]:
    alive = [member for member in view.members if member.id != own_id]
    occupied = {(member.role, member.rank) for member in view.members if member.state == "alive"}
    lost = [member for member in view.lost if (member.role, member.rank) not in occupied]  # not replaced
    return [
        {"name": member.name, "state": member.state, "why": member.loss_message if member.state == "gone" else ""}
        for member in {member.id: member for member in (*alive, *lost)}.values()
    ]


def server_report(node: Node, core: Core) -> dict[str, object]:
    """Return the report of a server: the node's, and the workers whose pushes are missing for waiting requests."""
    names = {identity(member.id, member.incarnation): member.name for member in node.view.members}
    now = monotonic()
    keys_by_worker: dict[str, list[str]] = {}
    longest: dict[str, float] = {}
    slots = [slot for slot in list(core.state.slots.values()) if slot.pulls or slot.pushes]
    for slot in islice(slots, _MAX_PARTS):
        starts = [at for request in (*slot.pushes, *slot.pulls) if (at := start_time(request)) is not None]
        for worker in slot.missing():
            name = names.get(worker, worker)
            keys_by_worker.setdefault(name, []).append(_named(slot.part.key))
            if starts:
                longest[name] = max(longest.get(name, 0.0), now - min(starts))
    waits = [
        {"for": name, "what": f"the round of key {', '.join(dict.fromkeys(keys[:4]))}", "seconds": longest.get(name)}
        for name, keys in keys_by_worker.items()
    ]
    report = node_report(node)
    return {**report, "waits": [*waits, *report["waits"]]}
