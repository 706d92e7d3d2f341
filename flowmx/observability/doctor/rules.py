"""Diagnosis: rules over processes' snapshots, one for each kind of fault. Pure.

A rule looks at all snapshots and gives findings with a weight; the heaviest is the culprit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from flowmx.observability.doctor.chains import Link, Snapshot, name_of, stories

__all__ = ["Finding", "diagnose"]

SLOW = 1.0
"""Seconds from which what runs, or waits, is suspected."""
BLOCKED = 0.25
"""Seconds from which an event loop that does not answer is blocked."""
STARVED = 0.5
"""Share of the time spent waiting for data from which a loader is too slow."""

FAILED = "an operation failed"
"""The kind of a finding about an exception."""
_FAILURES = 3
"""Most different failures of a process that are named."""

_CODE = re.compile(r".*?:\d+ in \S+: (.*)")
"""The text of a line, behind its place."""

_ALIKE = "let all nodes run the same versions"
_UNSEEN = "nobody waited for it yet: await or read what it makes"
_LOST = "see its log; launch with --policy elastic (FLOWMX_KVSTORE_POLICY) to go on without it until another joins"
_STOP = "mx.safety.stop_at_nan() stops at the first; a smaller learning rate or clip_gradient may avoid it"

_WAITS = ("acquire", "wait", "join", "get", "recv", "select", "result", "lock", "put", "sleep", "read")


class Finding(NamedTuple):
    """A fault.

    Attributes:
        weight: how sure it is that it is the cause of what is wrong; more is surer.
        kind: such as ``"blocked event loop"``.
        node: the process, as it is called in its job.
        text: what is wrong.
        line: the user's line, where one is to blame; else empty.
        advice: what to do.
    """

    weight: int
    kind: str
    node: str
    text: str
    line: str = ""
    advice: str = ""


def diagnose(snapshots: Sequence[Snapshot]) -> list[Finding]:
    """All findings, the culprit first.

    Args:
        snapshots: as :func:`~flowmx.observability.flight.observing.observe` makes them; of a process that could not be
            asked one with ``name`` and ``unreached`` (why) alone.
    """
    found = [finding for rule in _RULES for finding in rule(snapshots)]
    return sorted(dict.fromkeys(found), key=lambda each: -each.weight)


def _answered(snapshots: Sequence[Snapshot]) -> Iterator[Snapshot]:
    return (each for each in snapshots if not each.get("unreached"))


# -- one process ---------------------------------------------------------------------------------------------


def _blocked_loops(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in _answered(snapshots):
        for loop in snapshot.get("loops", ()):
            if loop["blocked"] >= BLOCKED:
                line = next(iter(loop["stack"]), "")
                waits = f", which waits for operation #{loop['waits']}" if loop["waits"] else ""
                text = f"the event loop of thread {loop['thread']} has been blocked for {loop['blocked']:.1f} s{waits}"
                advice = "await it, or move it to a thread: await asyncio.to_thread(...)"
                # Where it only waits for an operation, that is the cause.
                yield Finding(60 if loop["waits"] else 90, "blocked event loop", name_of(snapshot), text, line, advice)


def _endless(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    """Operations at the end of chains that have run for long."""
    counts: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], Link] = {}
    for story in stories(snapshots):
        last = story[-1]
        op = last.operation
        if op is not None and op["state"] == "running" and (op.get("seconds") or 0) >= SLOW and not _is_remote(op):
            key = (last.node, op["id"])
            counts[key] = counts.get(key, 0) + len(story) - 1
            ends[key] = last
    for key, link in ends.items():
        yield _endless_one(link, counts[key])


def _is_remote(op: Any) -> bool:
    return "kvstore" in op["actor"] or op["name"] == "DataLoader"


def _endless_one(link: Link, behind: int) -> Finding:
    op = link.operation
    assert op is not None
    line = next(iter(op.get("stack", ())), "")
    layer = f" of layer {op['layer']!r}" if op.get("layer") else ""
    text = f"operation {op['name']!r}{layer} has run for {op['seconds']:.1f} s and does not end"
    text += f"; {behind} wait behind it" if behind else ""
    code = _CODE.match(line)
    call = code[1] if code else line
    waits = any(f"{name}(" in call or call.startswith(("with ", "await ")) for name in _WAITS)
    is_users = op["name"] in ("Custom", "_backward_Custom") or bool(line)
    kind = "deadlocked Custom operator" if "Custom" in op["name"] and waits else "an operation that does not end"
    advice = f"its code stands at: {call}" + (", which waits for something that does not come" if waits else "")
    if not is_users:
        advice = "an operator of flowmx that takes this long has much to compute: see its inputs, and other programs"
    return Finding(80 + (10 if behind else 0), kind, link.node, text, line or op["line"], advice)


def _starved(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in _answered(snapshots):
        seen = snapshot.get("seen", {})
        rows = [each for each in seen.get("waits", ()) if each["for"] == "DataLoader"] + list(seen.get("loading", ()))
        share = sum(each["share"] for each in rows)
        if share >= STARVED:
            line = next((each["line"] for each in rows if each.get("line")), "") or _waiting_line(snapshot)
            text = f"the program waits for data {min(share, 1):.0%} of the time"
            advice = "give the DataLoader more num_workers or prefetch, or make samples cheaper"
            yield Finding(70, "starved loader", name_of(snapshot), text, line, advice)


def _waiting_line(snapshot: Snapshot) -> str:
    return next((wait["stack"][0] for wait in snapshot.get("waits", ()) if wait["stack"]), "")


def _growing(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in _answered(snapshots):
        for each in snapshot.get("seen", {}).get("growth", ())[:3]:
            text = (
                f"arrays made at one line stay: {each['arrays']} of {each['bytes'] / 1e6:.1f} MB in "
                f"{snapshot['seen']['seconds']:g} s"
            )
            advice = "something keeps them: a list that grows, or a tape; keep numbers (array.asscalar()) instead"
            yield Finding(50, "leak", name_of(snapshot), text, each["line"], advice)


def _not_finite(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in _answered(snapshots):
        found = snapshot.get("seen", {}).get("not_finite")
        if found:
            text, _, line = found.rpartition(" (at ")
            yield Finding(65, "NaN", name_of(snapshot), text, line.removesuffix(")"), _STOP)
        for name, value in snapshot.get("curves", {}).items():
            if not math.isfinite(value):
                yield Finding(64, "NaN", name_of(snapshot), f"the curve {name!r} is {value}", "", _STOP)


def _crossing(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    """Copies between devices by lines that do not ask for one."""
    for snapshot in _answered(snapshots):
        by_line: dict[str, int] = {}
        for each in snapshot.get("last", ()):
            if _is_crossing(each):
                by_line[each["line"]] = by_line.get(each["line"], 0) + 1
        for line, count in sorted(by_line.items(), key=lambda row: -row[1])[:1]:
            text = f"data crosses devices: {count} of the last {len(snapshot['last'])} operations are such copies"
            advice = "keep arrays on one device (as_in_context once, before the loop), and read results less often"
            yield Finding(40, "device crossing", name_of(snapshot), text, line, advice)


def _is_crossing(ended: Any) -> bool:
    actor = ended["actor"]
    return (" to host" in actor or "host to " in actor or "peers to " in actor) and not _asks_for_it(ended["line"])


def _asks_for_it(line: str) -> bool:
    return any(word in line for word in ("as_in_context", "as_in_ctx", "copyto"))


def _failures(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in _answered(snapshots):
        failures = snapshot.get("failures", ())
        mismatches = [each for each in failures if "the nodes of the job differ" in each["text"]]
        for each in mismatches[:1] or failures[:_FAILURES]:
            weight, kind, advice = (85, "version mismatch", _ALIKE) if mismatches else (55, FAILED, _UNSEEN)
            yield Finding(weight, kind, name_of(snapshot), _told(each), _line_of(each), advice)


def _told(failure: Any) -> str:
    """The exception, the operation that raised it, and how often."""
    text = f"{failure['error']}: {failure['text']}" if failure["text"] else failure["error"]
    if "operation" not in failure:  # a report of an earlier version
        return text
    of = "".join([
        f"raised by operation {failure['operation']!r} on {failure['actor']}",
        f" in layer {failure['layer']!r}" if failure.get("layer") else "",
        f", {failure['times']} times" if failure["times"] > 1 else "",
    ])  # fmt: skip
    return f"{text} ({of})"


def _line_of(failure: Any) -> str:
    if failure.get("line"):
        return str(failure["line"])
    notes = [note.removeprefix("flowmx: ") for note in failure["notes"]]
    return next((note.removeprefix("enqueued at ") for note in notes if note.startswith("enqueued at ")), "")


def _warnings(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in _answered(snapshots):
        for who, said in snapshot.get("said", {}).items():
            for text in said.get("warnings", ()):
                yield Finding(75, said.get("kind") or f"{who} warns", name_of(snapshot), str(text))


def _locked(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in _answered(snapshots):
        if snapshot.get("locked"):
            running = [each for each in snapshot["operations"] if each["state"] == "running"]
            line = next((line for each in running for line in each.get("stack", ())), "")
            text = "a thread has held the engine's lock for more than a second"
            yield Finding(88, "engine lock", name_of(snapshot), text, line, "no callback of the engine may block")


# -- several -------------------------------------------------------------------------------------------------


def _unreached(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in snapshots:
        if snapshot.get("unreached"):
            advice = "see whether it lives; py-spy dump or gdb show where native code stands"
            yield Finding(
                95, "a process that does not answer", name_of(snapshot), str(snapshot["unreached"]), "", advice
            )


def _lost_peers(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    for snapshot in _answered(snapshots):
        for said in snapshot.get("said", {}).values():
            for peer in said.get("peers", ()):
                if peer["state"] == "gone":
                    text = str(peer.get("why") or f"{peer['name']} is gone")
                    yield Finding(92, "lost peer", str(peer["name"]), text, "", _LOST)


def _silent_peers(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    """The last node in a chain of requests that is not answered for long, if that node was not asked."""
    asked = {name_of(each) for each in _answered(snapshots)}
    for story in stories(snapshots):
        link = next((each for each in reversed(story) if each.peer), None)
        if link is None or link.peer in asked or (link.seconds is not None and link.seconds < SLOW):
            continue
        advice = f"ask {link.peer} too: python -m flowmx doctor ... with its process or address"
        yield Finding(78, "lost peer", link.peer, f"{link.node} waits: {link.text}", advice=advice)


def _idle_peers(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    """A node that others wait for, and that waits for none and runs nothing."""
    for story in stories(snapshots):
        link = story[-1]
        if link.idle and len(story) > 1:
            text = f"{len(story) - 1} wait for {link.node}, which runs no operation"
            yield Finding(82, "a late node", link.node, text, next(iter(link.lines), ""))


def _differences(snapshots: Sequence[Snapshot]) -> Iterator[Finding]:
    """Facts that must be equal on all nodes and differ."""
    values: dict[str, dict[str, str]] = {}
    for snapshot in _answered(snapshots):
        said = [facts for each in snapshot.get("said", {}).values() for facts in [each.get("facts", {})]]
        versions = {"the version of flowmx": snapshot["process"]["versions"]["flowmx"]}
        for name, value in {**versions, **{k: v for facts in said for k, v in facts.items()}}.items():
            values.setdefault(name, {})[name_of(snapshot)] = str(value)
    for name, found in values.items():
        if len(set(found.values())) > 1:
            usual = max(set(found.values()), key=list(found.values()).count)
            for node, value in found.items():
                if value != usual:
                    text = f"{name} is {value}, and {usual} on the others"
                    yield Finding(86, "version mismatch", node, text, advice=_ALIKE)


Rule = Callable[[Sequence[Snapshot]], Iterator[Finding]]

_RULES: tuple[Rule, ...] = (
    _unreached, _lost_peers, _blocked_loops, _locked, _differences, _endless, _idle_peers, _silent_peers, _warnings,
    _starved, _not_finite, _failures, _growing, _crossing,
)  # fmt: skip
