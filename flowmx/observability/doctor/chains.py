"""Chains of waiting over all processes that were asked: a graph of nodes, made from their snapshots. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Link", "Story", "name_of", "stories"]

Snapshot = Mapping[str, Any]

_LONGEST = 32


class Link(NamedTuple):
    """One part of a chain.

    Attributes:
        node: the process, as it is called in its job.
        text: what it is, and since when.
        lines: more about it, such as where it stands.
        operation: where it is an operation, what its process said of it.
        peer: where it is a request, whom it is made to.
        idle: whether it is a process that waits for nobody and runs no operation.
        seconds: where it is a request, for how long it has waited; None where nobody knows.
    """

    node: str
    text: str
    lines: tuple[str, ...] = ()
    operation: Mapping[str, Any] | None = None
    peer: str = ""
    idle: bool = False
    seconds: float | None = None


Story = list[Link]
"""A chain, from a waiter to the operation that all wait for."""


def name_of(snapshot: Snapshot) -> str:
    """Name of a process: that in its job, else its process id."""
    for said in snapshot.get("said", {}).values():
        if said.get("node"):
            return str(said["node"])
    return str(snapshot.get("name") or f"process {snapshot.get('process', {}).get('pid', '?')}")


def stories(snapshots: Sequence[Snapshot]) -> list[Story]:
    """The chains that everybody who waits stands at the head of, and those of operations that nobody waits for."""
    jobs = _Jobs(snapshots)
    found = []
    for snapshot in snapshots:
        for wait in snapshot.get("waits", ()):
            head = Link(
                name_of(snapshot), f"{wait['who']} waits, for {wait['seconds']:.1f} s", tuple(wait["stack"][:1])
            )
            found.append([head, *jobs.follow(snapshot, wait["for"])])
        shown = {link.operation["id"] for story in found for link in story if link.operation and _is_of(link, snapshot)}
        found += [
            list(jobs.follow(snapshot, each["id"]))
            for each in reversed(snapshot.get("operations", ()))
            if each["id"] not in shown and not _is_waited_for(snapshot, each["id"])
        ]
        found += [list(jobs.reach(name_of(snapshot), wait)) for wait in _waits_said(snapshot) if not found]
    return [story for story in found if story]


def _is_of(link: Link, snapshot: Snapshot) -> bool:
    return link.node == name_of(snapshot)


def _is_waited_for(snapshot: Snapshot, number: int) -> bool:
    return any(before["id"] == number for op in snapshot["operations"] for before in op["waits_for"])


def _waits_said(snapshot: Snapshot) -> list[Mapping[str, Any]]:
    return [wait for said in snapshot.get("said", {}).values() for wait in said.get("waits", ())]


class _Jobs:
    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self._by_name = {name_of(each): each for each in snapshots}

    def follow(self, snapshot: Snapshot, number: int) -> Iterator[Link]:
        """An operation, and what it waits for: of several the one that has not ended for the longest time."""
        operations = {each["id"]: each for each in snapshot["operations"]}
        seen: set[int] = set()
        through = ""
        while number in operations and number not in seen and len(seen) < _LONGEST:
            seen.add(number)
            op = operations[number]
            yield _link(name_of(snapshot), op, through)
            if not op["waits_for"]:
                yield from self._over_the_wire(snapshot, op)
                return
            first = min(op["waits_for"], key=lambda each: each["id"])
            number, through = first["id"], first["through"]

    def _over_the_wire(self, snapshot: Snapshot, op: Mapping[str, Any]) -> Iterator[Link]:
        if "kvstore" not in op["name"] and "kvstore" not in op["actor"]:
            return
        exchanges = snapshot.get("exchanges", ())
        waits = [
            {"for": each["peer"], "what": _asked(each), "seconds": each["seconds"]} for each in exchanges[:1]
        ] or _waits_said(snapshot)[:1]  # fmt: skip
        for wait in waits:
            yield from self.reach(name_of(snapshot), wait)

    def reach(self, node: str, wait: Mapping[str, Any]) -> Iterator[Link]:
        """A request, and what whoever is asked waits for."""
        seen = {node}
        while True:
            peer = str(wait["for"])
            since = f" for {wait['seconds']:.1f} s" if wait.get("seconds") else ""
            text = f"{wait['what']}: waits for {peer}{since}"
            yield Link(node, text, peer=peer, seconds=wait.get("seconds"))
            there = self._by_name.get(peer)
            if there is None or peer in seen:
                return
            seen.add(peer)
            if there.get("unreached"):
                yield Link(peer, f"does not answer: {there['unreached']}")
                return
            further = _waits_said(there)
            if not further:
                blamed = _oldest(there)
                if blamed is not None:
                    yield from self.follow(there, blamed)
                elif there.get("waits") or there.get("threads"):
                    yield _at_work(there)
                return
            node, wait = peer, further[0]


def _asked(exchange: Mapping[str, Any]) -> str:
    keys = ", ".join(exchange["facts"].get("keys", ()))
    return f"{exchange['operation']}" + (f" of key {keys}" if keys else "")


def _oldest(snapshot: Snapshot) -> int | None:
    running = [each for each in snapshot["operations"] if each["state"] == "running"]
    return running[0]["id"] if running else None


def _at_work(snapshot: Snapshot) -> Link:
    """A process none of whose operations runs: where its main thread is."""
    main = next((each for each in snapshot["threads"] if each["name"] == "MainThread"), None)
    return Link(
        name_of(snapshot),
        "runs no operation; its main thread is at",
        tuple(main["stack"][:2]) if main else (),
        idle=True,
    )


def _link(node: str, op: Mapping[str, Any], through: str) -> Link:
    layer = f", layer {op['layer']!r}" if op.get("layer") else ""
    by = f", through {through}" if through else ""
    state = op["state"]
    if state == "running" and op.get("seconds") is not None:
        state = f"running on {op['actor']} for {op['seconds']:.1f} s"
    text = f"operation {op['name']!r} (#{op['id']}{layer}), {state}{by}"
    lines = [f"enqueued at {op['line']}"]
    if op.get("node"):
        lines.append(f"in node {op['node']['name']!r} of a graph, made at {op['node']['line']}")
    lines += [f"now at {line}" for line in op.get("stack", ())[:2]]
    return Link(node, text, tuple(lines), op)
