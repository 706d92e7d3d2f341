"""Wait chains across processes, computed from their snapshots. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["NO_PROCESS", "Chain", "Link", "name_of", "wait_chains"]

NO_PROCESS = "there is no such process"
"""Why a process that has exited does not respond."""

Snapshot = Mapping[str, Any]

_MAX_LENGTH = 32


class Link(NamedTuple):
    """One link of a wait chain: a waiter, an operation, a request or an idle process.

    Attributes:
        node: name of the process in its job.
        text: description and duration.
        lines: further lines, such as source lines.
        operation: the process's entry of the operation, if the link is one.
        peer: the peer of the request, if the link is one.
        idle: whether the link is a process that waits for nothing and runs no operation.
        seconds: how long the request has waited; None if unknown.
    """

    node: str
    text: str
    lines: tuple[str, ...] = ()
    operation: Mapping[str, Any] | None = None
    peer: str = ""
    idle: bool = False
    seconds: float | None = None


Chain = list[Link]
"""A chain of links from a waiter to the operation at which all of them wait."""


def name_of(snapshot: Snapshot) -> str:
    """Return the name of a process in its job, else its process id."""
    for report in snapshot.get("reports", {}).values():
        if report.get("node"):
            return str(report["node"])
    return str(snapshot.get("name") or f"process {snapshot.get('process', {}).get('pid', '?')}")


def wait_chains(snapshots: Sequence[Snapshot]) -> list[Chain]:
    """Return the chains that begin at waiters, and those of operations without a waiter."""
    processes = _Processes(snapshots)
    chains = []
    for snapshot in snapshots:
        for wait in snapshot.get("waits", ()):
            head = Link(
                name_of(snapshot), f"{wait['who']} waits, for {wait['seconds']:.1f} s", tuple(wait["stack"][:1])
            )
            chains.append([head, *processes.follow(snapshot, wait["for"])])
        covered = {
            link.operation["id"] for chain in chains for link in chain if link.operation and _belongs_to(link, snapshot)
        }
        chains += [
            list(processes.follow(snapshot, op["id"]))
            for op in reversed(snapshot.get("operations", ()))
            if op["id"] not in covered and not _has_waiter(snapshot, op["id"])
        ]
        chains += [list(processes.reach(name_of(snapshot), wait)) for wait in _reported_waits(snapshot) if not chains]
    return [chain for chain in chains if chain]


def _belongs_to(link: Link, snapshot: Snapshot) -> bool:
    return link.node == name_of(snapshot)


def _has_waiter(snapshot: Snapshot, number: int) -> bool:
    return any(before["id"] == number for op in snapshot["operations"] for before in op["waits_for"])


def _reported_waits(snapshot: Snapshot) -> list[Mapping[str, Any]]:
    return [wait for report in snapshot.get("reports", {}).values() for wait in report.get("waits", ())]


class _Processes:
    """The snapshots of the processes by name."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self._by_name = {name_of(snapshot): snapshot for snapshot in snapshots}

    def follow(self, snapshot: Snapshot, number: int) -> Iterator[Link]:
        """Yield the links of an operation and of what it waits for; among several, the oldest."""
        operations = {op["id"]: op for op in snapshot["operations"]}
        visited: set[int] = set()
        through = ""
        while number in operations and number not in visited and len(visited) < _MAX_LENGTH:
            visited.add(number)
            op = operations[number]
            yield _link(name_of(snapshot), op, through)
            if not op["waits_for"]:
                yield from self._follow_request(snapshot, op)
                return
            first = min(op["waits_for"], key=lambda operation: operation["id"])
            number, through = first["id"], first["through"]

    def _follow_request(self, snapshot: Snapshot, op: Mapping[str, Any]) -> Iterator[Link]:
        if "kvstore" not in op["name"] and "kvstore" not in op["actor"]:
            return
        exchanges = snapshot.get("exchanges", ())
        waits = [
            {"for": exchange["peer"], "what": _request_of(exchange), "seconds": exchange["seconds"]}
            for exchange in exchanges[:1]
        ] or _reported_waits(snapshot)[:1]  # fmt: skip
        for wait in waits:
            yield from self.reach(name_of(snapshot), wait)

    def reach(self, node: str, wait: Mapping[str, Any]) -> Iterator[Link]:
        """Yield the links of a request and of what its peer waits for."""
        visited = {node}
        while True:
            peer = str(wait["for"])
            duration = f" for {wait['seconds']:.1f} s" if wait.get("seconds") else ""
            text = f"{wait['what']}: waits for {peer}{duration}"
            yield Link(node, text, peer=peer, seconds=wait.get("seconds"))
            snapshot = self._by_name.get(peer)
            if snapshot is None or peer in visited:
                return
            visited.add(peer)
            if snapshot.get("unreached"):
                yield Link(peer, f"does not respond: {snapshot['unreached']}")
                return
            waits = _reported_waits(snapshot)
            if not waits:
                oldest = _oldest(snapshot)
                if oldest is not None:
                    yield from self.follow(snapshot, oldest)
                elif snapshot.get("waits") or snapshot.get("threads"):
                    yield _idle_process(snapshot)
                return
            node, wait = peer, waits[0]


def _request_of(exchange: Mapping[str, Any]) -> str:
    keys = ", ".join(exchange["facts"].get("keys", ()))
    return f"{exchange['operation']}" + (f" of key {keys}" if keys else "")


def _oldest(snapshot: Snapshot) -> int | None:
    running = [op for op in snapshot["operations"] if op["state"] == "running"]
    return running[0]["id"] if running else None


def _idle_process(snapshot: Snapshot) -> Link:
    """Return the link of a process without a running operation, with the position of its main thread."""
    main = next((thread for thread in snapshot["threads"] if thread["name"] == "MainThread"), None)
    return Link(
        name_of(snapshot),
        "runs no operation; its main thread is at",
        tuple(main["stack"][:2]) if main else (),
        idle=True,
    )


def _link(node: str, op: Mapping[str, Any], through: str) -> Link:
    layer = f", layer {op['layer']!r}" if op.get("layer") else ""
    reason = f", through {through}" if through else ""
    state = op["state"]
    if state == "running" and op.get("seconds") is not None:
        state = f"running on {op['actor']} for {op['seconds']:.1f} s"
    text = f"operation {op['name']!r} (#{op['id']}{layer}), {state}{reason}"
    lines = [f"enqueued at {op['line']}"]
    if op.get("node"):
        lines.append(f"in node {op['node']['name']!r} of a graph, created at {op['node']['line']}")
    lines += [f"now at {line}" for line in op.get("stack", ())[:2]]
    return Link(node, text, tuple(lines), op)
