"""A server's log messages about rounds that wait for a long time."""

from __future__ import annotations

import logging
from typing import Any

from flowmx.comm.node import Node
from flowmx.comm.view import Member
from flowmx.kvstore.server.callers import identity
from flowmx.kvstore.server.pending_calls import start_time
from flowmx.kvstore.server.slot import Slot
from flowmx.kvstore.server.state_machine import Core
from flowmx.kvstore.spaces import format_key
from flowmx.kvstore.wait_log import Waits, format_keys, format_members

__all__ = ["log_waits"]

log = logging.getLogger("flowmx.kvstore")


def log_waits(node: Node, core: Core, waits: Waits) -> None:
    """Log rounds that have waited for a long time: the waiting workers, and the workers whose pushes are missing."""
    slots = {(slot.part, slot.round + 1): slot for slot in core.state.slots.values() if slot.pushes or slot.pulls}
    due = waits.due({wait: _since(slot) for wait, slot in slots.items() if slot.missing()})
    names = {identity(member.id, member.incarnation): member for member in node.view.members}
    groups: dict[tuple[frozenset[str], frozenset[str], int], list[Any]] = {}
    for wait in due:
        slot = slots[wait]
        callers = frozenset(worker for worker, _ in (*slot.pushes.values(), *slot.pulls.values()))
        groups.setdefault((callers, frozenset(slot.missing()), slot.round + 1), []).append(wait)
    for (callers, missing, number), group in groups.items():
        keys = format_keys(format_key(slots[wait].part.key) for wait in group)
        log.warning(
            "%s has waited %.0f s for round %d of %s: %s has not pushed; %s waits (FLOWMX_KVSTORE_PATIENCE)",
            node.name, max(due[wait] for wait in group), number, keys, format_members(_members(missing, names)),
            ", ".join(member.name for member in _members(callers, names)),
        )  # fmt: skip


def _since(slot: Slot) -> float | None:
    return min((at for request in (*slot.pushes, *slot.pulls) if (at := start_time(request)) is not None), default=None)


def _members(identities: frozenset[str], names: dict[str, Member]) -> list[Member]:
    members = [names[member] for member in identities if member in names]
    return sorted(members, key=lambda member: (member.role, member.rank))
