"""Text report of the doctor: the processes, the chains of waiting, the findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flowmx.observability.doctor.chains import Snapshot, Story, name_of, stories
from flowmx.observability.doctor.rules import Finding

__all__ = ["draw"]

_CHAINS = 6


def draw(snapshots: Sequence[Snapshot], findings: Sequence[Finding]) -> str:
    """The report as text."""
    lines = [line for snapshot in snapshots for line in _process(snapshot)]
    found = sorted(stories(snapshots), key=len, reverse=True)
    if found:
        lines += ["", "who waits for what"]
        lines += [line for story in found[:_CHAINS] for line in _chain(story, len(snapshots) > 1)]
        if len(found) > _CHAINS:
            lines.append(f"  and {len(found) - _CHAINS} chains more")
    lines += ["", *_verdict(findings)]
    return "\n".join(lines)


def _process(snapshot: Snapshot) -> Iterator[str]:
    name = name_of(snapshot)
    if snapshot.get("unreached"):
        yield f"{name}: {snapshot['unreached']}"
        return
    process, engine = snapshot["process"], snapshot["engine"]
    yield f"{name}: {process['program']} (process {process['pid']} on {process['host']})"
    if snapshot.get("why"):
        yield f"  written because: {snapshot['why']}"
    counts = f"{engine['pending']} operations pending, {_size(engine['pending_bytes'])}, {engine['failed']} failed"
    yield f"  engine: {counts}"
    busy = {each["actor"] for each in snapshot["operations"] if each["state"] == "running"}
    for actor, row in engine["actors"].items():
        yield f"  {actor}: {'busy' if actor in busy else 'idle'}, {row['queued']} queued, {row['executed']} done"
    for loop in snapshot.get("loops", ()):
        state = f"blocked for {loop['blocked']:.1f} s" if loop["blocked"] > 0.1 else f"lag {loop['lag'] * 1e3:.1f} ms"
        yield f"  event loop of {loop['thread']}: {state}"
    memory = ", ".join(f"{device} {_size(nbytes)}" for device, nbytes in snapshot.get("memory", {}).items())
    if memory:
        yield f"  memory of arrays: {memory}"
    for said in snapshot.get("said", {}).values():
        if said.get("peers"):
            yield "  peers: " + ", ".join(f"{peer['name']} {peer['state']}" for peer in said["peers"])


def _chain(story: Story, has_several: bool) -> Iterator[str]:
    for depth, link in enumerate(story):
        indent = "  " + "   " * depth
        node = f"{link.node}: " if has_several else ""
        yield f"{indent}{'└─ ' if depth else ''}{node}{link.text}"
        yield from (f"{indent}{'   ' if depth else ''}   {line}" for line in link.lines)


def _verdict(findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        yield "nothing is wrong, as far as can be seen"
        return
    for number, each in enumerate(findings):
        yield f"{'CULPRIT' if number == 0 else 'also'}: {each.kind}, {each.node}: {each.text}"
        if each.line:
            yield f"  at {each.line}"
        if each.advice:
            yield f"  {each.advice}"


def _size(nbytes: Any) -> str:
    return f"{nbytes / 2**20:.1f} MiB"
