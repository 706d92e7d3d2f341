"""A worker's log messages about long waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from flowmx.comm.node import Node
from flowmx.kvstore.server.callers import identity
from flowmx.kvstore.shards import Key
from flowmx.kvstore.spaces import format_key
from flowmx.kvstore.wait_log import Waits, format_keys, format_members
from flowmx.kvstore.worker.sender import Sender, pushes_of
from flowmx.kvstore.worker.servers import Servers

__all__ = ["log_waits"]

log = logging.getLogger("flowmx.kvstore")


async def log_waits(node: Node, sender: Sender, servers: Servers, names: Mapping[Key, str], waits: Waits) -> None:
    """Log the rounds and barriers that this worker has waited for a long time, and the nodes that it waits for.

    Args:
        node: this worker in its job.
        sender: has the unanswered items.
        servers: know the missing pushes.
        names: the names of parameters, by key.
        waits: decides when to log a wait.
    """
    parts: dict[Any, float | None] = {
        ("part", key, piece, number): None
        for item in sender.pending() for key, piece, number in pushes_of(item)
    }  # fmt: skip
    barriers: dict[Any, float | None] = {("barrier", name): None for name in node.awaited}
    due = waits.due({**parts, **barriers})
    for wait, seconds in due.items():
        kind, name, *_ = wait
        missing = node.awaited.get(name, []) if kind == "barrier" else []
        if missing:
            log.warning(
                "%s has waited %.0f s at the barrier %r for %s (FLOWMX_KVSTORE_PATIENCE)",
                node.name, seconds, name, format_members(missing),
            )  # fmt: skip
    due_parts = {wait: seconds for wait, seconds in due.items() if wait in parts}
    if due_parts:
        await _log_rounds(node, servers, names, due_parts)


async def _log_rounds(
    node: Node, servers: Servers, names: Mapping[Key, str], due: Mapping[Any, float]
) -> None:  # fmt: skip
    responses = await asyncio.gather(*(servers.call(home, "stats", {}) for home in range(servers.count)))
    states: dict[tuple[Key, int], Any] = {
        (part["part"][0], part["part"][1]): part for response in responses for part in response.header["parts"]
    }
    members = {identity(member.id, member.incarnation): member for member in node.view.members}
    groups: dict[tuple[tuple[str, ...], int], list[tuple[str, float]]] = {}
    for wait, seconds in due.items():
        _, key, piece, number = wait
        state = states.get((key, piece), {"waits_for": []})
        missing = tuple(member for member in state["waits_for"] if member in members)
        name = f"{format_key(key)} ({names[key]})" if key in names else format_key(key)
        if missing:
            groups.setdefault((missing, number), []).append((name, seconds))
    for (missing, number), waits in groups.items():
        log.warning(
            "%s has waited %.0f s for round %d of %s: %s has not pushed (FLOWMX_KVSTORE_PATIENCE)",
            node.name, max(seconds for _, seconds in waits), number, format_keys(name for name, _ in waits),
            format_members(members[member] for member in missing),
        )  # fmt: skip
