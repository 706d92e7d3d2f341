"""Diagnosis rules over the snapshots of processes, one per kind of fault. This module does no I/O.

A rule reads all snapshots and yields findings with weights; the heaviest finding is the probable cause.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from flowmx.observability.doctor.wait_chains import NO_PROCESS, Link, Snapshot, name_of, wait_chains

__all__ = ["Finding", "diagnose"]

SLOW = 1.0
"""Seconds after which a running operation or a waiting request is suspicious."""
BLOCKED = 0.25
"""Seconds after which an event loop that does not respond counts as blocked."""
STARVED = 0.5
"""Fraction of the time spent waiting for data above which a loader is too slow."""

FAILED = "an operation failed"
"""The kind of a finding about an exception."""
_MAX_FAILURES = 3
"""Maximum number of failures that are reported per process."""

_CODE = re.compile(r".*?:\d+ in \S+: (.*)")
"""Matches the code of a source line, after its place."""

_SAME_VERSIONS = "run the same versions on all nodes"
_UNREAD = "its result was never read: await or read it"
_LOST_ADVICE = "see its log; --policy elastic (FLOWMX_KVSTORE_POLICY) continues without it until another node joins"
_NAN_ADVICE = "mx.anomaly.stop_at_nan() stops at the first one; a smaller learning rate or clip_gradient may avoid it"

_BLOCKING_CALLS = ("acquire", "wait", "join", "get", "recv", "select", "result", "lock", "put", "sleep", "read")


class Finding(NamedTuple):
    """A fault.

    Attributes:
        weight: likelihood that it is the cause; larger is more likely.
        kind: the kind, such as ``"blocked event loop"``.
        node: name of the process in its job.
        text: description of the fault.
        line: the line of the user's code that causes it, if known.
        advice: what to do about it.
    """

    weight: int
    kind: str
    node: str
    text: str
    line: str = ""
    advice: str = ""


def diagnose(snapshots: Sequence[Snapshot]) -> list[Finding]:
    """Return all findings, the most likely cause first.

    Args:
        snapshots: results of :func:`~flowmx.observability.flight.observation.observe`. The snapshot of a process that
            could not be reached has only ``name`` and ``unreached``, the reason.
    """
    findings = [finding for rule in _RULES for finding in rule(snapshots)]
    return sorted(dict.fromkeys(findings), key=lambda finding: -finding.weight)


def _reachable(snapshots: Sequence[Snapshot]) -> Iterator[Snapshot]:
    return (snapshot for snapshot in snapshots if not snapshot.get("unreached"))


# -- one process ---------------------------------------------------------------------------------------------


def _blocked_loops(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in _reachable(snapshots):
        for loop in snapshot.get("loops", ()):
            if loop["blocked"] >= BLOCKED:
                line = next(iter(loop["stack"]), "")
                waits = f", which waits for operation #{loop['waits']}" if loop["waits"] else ""
                text = f"the event loop of thread {loop['thread']} has been blocked for {loop['blocked']:.1f} s{waits}"
                advice = "await it, or move it to a thread: await asyncio.to_thread(...)"
                # If the loop only waits for an operation, the operation is the cause.
                yield Finding(60 if loop["waits"] else 90, "blocked event loop", name_of(snapshot), text, line, advice)


def _endless_operations(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    """Yield long-running operations at the end of wait chains."""
    counts: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], Link] = {}
    for chain in wait_chains(snapshots):
        last = chain[-1]
        op = last.operation
        if op is not None and op["state"] == "running" and (op.get("seconds") or 0) >= SLOW and not _is_remote(op):
            key = (last.node, op["id"])
            counts[key] = counts.get(key, 0) + len(chain) - 1
            ends[key] = last
    for key, link in ends.items():
        yield _endless_operation(link, counts[key])


def _is_remote(op: Any) -> bool:
    return "kvstore" in op["actor"] or op["name"] == "DataLoader"


def _endless_operation(link: Link, waiter_count: int) -> Finding:
    op = link.operation
    assert op is not None
    line = next(iter(op.get("stack", ())), "")
    layer = f" of layer {op['layer']!r}" if op.get("layer") else ""
    text = f"operation {op['name']!r}{layer} has run for {op['seconds']:.1f} s and does not end"
    text += f"; {_count(waiter_count, 'other waits', 'others wait')} for it" if waiter_count else ""
    code = _CODE.match(line)
    call = code[1] if code else line
    waits = any(f"{name}(" in call or call.startswith(("with ", "await ")) for name in _BLOCKING_CALLS)
    is_user_code = op["name"] in ("Custom", "_backward_Custom") or bool(line)
    kind = "deadlocked Custom operator" if "Custom" in op["name"] and waits else "an operation that does not end"
    advice = f"its code is at: {call}" + (", which waits for an event that does not occur" if waits else "")
    if not is_user_code:
        advice = "an operator of flowmx that runs this long has large inputs, or other programs use the machine"
    return Finding(80 + (10 if waiter_count else 0), kind, link.node, text, line or op["line"], advice)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _starved_loaders(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in _reachable(snapshots):
        observation = snapshot.get("seen", {})
        waits = [wait for wait in observation.get("waits", ()) if wait["for"] == "DataLoader"]
        rows = waits + list(observation.get("loading", ()))
        share = sum(row["share"] for row in rows)
        if share >= STARVED:
            line = next((row["line"] for row in rows if row.get("line")), "") or _waiting_line(snapshot)
            text = f"the program waits for data {min(share, 1):.0%} of the time"
            advice = "increase num_workers or prefetch of the DataLoader, or make samples cheaper"
            yield Finding(70, "starved loader", name_of(snapshot), text, line, advice)


def _waiting_line(snapshot: Snapshot) -> str:
    return next((wait["stack"][0] for wait in snapshot.get("waits", ()) if wait["stack"]), "")


def _leaks(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in _reachable(snapshots):
        for row in snapshot.get("seen", {}).get("growth", ())[:3]:
            text = (
                f"arrays created at one line are not freed: {row['arrays']} of {row['bytes'] / 1e6:.1f} MB in "
                f"{snapshot['seen']['seconds']:g} s"
            )
            advice = "a growing list or a tape keeps them alive; store numbers (array.asscalar()) instead"
            yield Finding(50, "leak", name_of(snapshot), text, row["line"], advice)


def _nans(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in _reachable(snapshots):
        message = snapshot.get("seen", {}).get("not_finite")
        if message:
            text, _, line = message.rpartition(" (at ")
            yield Finding(65, "NaN", name_of(snapshot), text, line.removesuffix(")"), _NAN_ADVICE)
        for name, value in snapshot.get("curves", {}).items():
            if not math.isfinite(value):
                yield Finding(64, "NaN", name_of(snapshot), f"the curve {name!r} is {value}", "", _NAN_ADVICE)


def _device_crossings(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    """Yield the source line with the most implicit copies between devices."""
    for snapshot in _reachable(snapshots):
        by_line: dict[str, int] = {}
        for op in snapshot.get("last", ()):
            if _is_implicit_copy(op):
                by_line[op["line"]] = by_line.get(op["line"], 0) + 1
        for line, count in sorted(by_line.items(), key=lambda row: -row[1])[:1]:
            text = f"implicit copies between devices: {count} of the last {len(snapshot['last'])} operations"
            advice = "keep arrays on one device (as_in_context once, before the loop), and read results less often"
            yield Finding(40, "device crossing", name_of(snapshot), text, line, advice)


def _is_implicit_copy(op: Any) -> bool:
    actor = op["actor"]
    return (" to host" in actor or "host to " in actor or "peers to " in actor) and not _copies_explicitly(op["line"])


def _copies_explicitly(line: str) -> bool:
    return any(word in line for word in ("as_in_context", "as_in_ctx", "copyto"))


def _failures(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in _reachable(snapshots):
        failures = snapshot.get("failures", ())
        mismatches = [failure for failure in failures if "the nodes of the job differ" in failure["text"]]
        for failure in mismatches[:1] or failures[:_MAX_FAILURES]:
            weight, kind, advice = (85, "version mismatch", _SAME_VERSIONS) if mismatches else (55, FAILED, _UNREAD)
            yield Finding(weight, kind, name_of(snapshot), _describe(failure), _line_of(failure), advice)


def _describe(failure: Any) -> str:
    """Return the exception, the operation that raised it, and the number of occurrences."""
    text = f"{failure['error']}: {failure['text']}" if failure["text"] else failure["error"]
    if "operation" not in failure:  # a report of an earlier version
        return text
    details = "".join([
        f"raised by operation {failure['operation']!r} on {failure['actor']}",
        f" in layer {failure['layer']!r}" if failure.get("layer") else "",
        f", {failure['times']} times" if failure["times"] > 1 else "",
    ])  # fmt: skip
    return f"{text} ({details})"


def _line_of(failure: Any) -> str:
    if failure.get("line"):
        return str(failure["line"])
    notes = [note.removeprefix("flowmx: ") for note in failure["notes"]]
    return next((note.removeprefix("enqueued at ") for note in notes if note.startswith("enqueued at ")), "")


def _warnings(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in _reachable(snapshots):
        for name, report in snapshot.get("reports", {}).items():
            for text in report.get("warnings", ()):
                yield Finding(75, report.get("kind") or f"{name} warns", name_of(snapshot), str(text))


def _held_engine_locks(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in _reachable(snapshots):
        if snapshot.get("locked"):
            running = [op for op in snapshot["operations"] if op["state"] == "running"]
            line = next((line for op in running for line in op.get("stack", ())), "")
            text = "a thread has held the engine's lock for more than a second"
            yield Finding(88, "engine lock", name_of(snapshot), text, line, "callbacks of the engine must not block")


# -- several processes ---------------------------------------------------------------------------------------------


def _unreachable_processes(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in snapshots:
        if snapshot.get("unreached"):
            text = str(snapshot["unreached"])
            if text == NO_PROCESS:
                advice = "check the process id: `pgrep -af python` lists the processes of Python"
                yield Finding(95, "a missing process", name_of(snapshot), text, "", advice)
                continue
            advice = "check that it runs; py-spy dump or gdb shows where its native code is"
            yield Finding(95, "a process that does not respond", name_of(snapshot), text, "", advice)


def _lost_peers(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in _reachable(snapshots):
        for report in snapshot.get("reports", {}).values():
            for peer in report.get("peers", ()):
                if peer["state"] == "gone":
                    text = str(peer.get("why") or f"{peer['name']} is gone")
                    yield Finding(92, "lost peer", str(peer["name"]), text, "", _LOST_ADVICE)


def _silent_peers(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    """Yield the last node of a chain of unanswered requests, if it has no snapshot."""
    reachable = {name_of(snapshot) for snapshot in _reachable(snapshots)}
    for chain in wait_chains(snapshots):
        link = next((link for link in reversed(chain) if link.peer), None)
        if link is None or link.peer in reachable or (link.seconds is not None and link.seconds < SLOW):
            continue
        advice = f"diagnose {link.peer} too: python -m flowmx doctor ... with its process id or URL"
        yield Finding(78, "lost peer", link.peer, f"{link.node} waits: {link.text}", advice=advice)


def _idle_peers(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    """Yield nodes that others wait for, and that wait for nothing and run no operation."""
    for chain in wait_chains(snapshots):
        link = chain[-1]
        if link.idle and len(chain) > 1:
            text = f"{_count(len(chain) - 1, 'other waits', 'others wait')} for {link.node}, which runs no operation"
            yield Finding(82, "a late node", link.node, text, next(iter(link.lines), ""))


def _differences(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    """Yield values that must be equal on all nodes and differ."""
    values: dict[str, dict[str, str]] = {}
    for snapshot in _reachable(snapshots):
        facts = {"the version of flowmx": snapshot["process"]["versions"]["flowmx"]}
        for report in snapshot.get("reports", {}).values():
            facts.update(report.get("facts", {}))
        for name, value in facts.items():
            values.setdefault(name, {})[name_of(snapshot)] = str(value)
    for name, by_node in values.items():
        if len(set(by_node.values())) > 1:
            common_value = max(set(by_node.values()), key=list(by_node.values()).count)
            for node, value in by_node.items():
                if value != common_value:
                    text = f"{name} is {value}, expected {common_value}, as on the other nodes"
                    yield Finding(86, "version mismatch", node, text, advice=_SAME_VERSIONS)


Rule = Callable[[Sequence[Snapshot]], Iterator[Finding]]

_RULES: tuple[Rule, ...] = (
    _unreachable_processes, _lost_peers, _blocked_loops, _held_engine_locks, _differences, _endless_operations,
    _idle_peers, _silent_peers, _warnings, _starved_loaders, _nans, _failures, _leaks, _device_crossings,
)  # fmt: skip
