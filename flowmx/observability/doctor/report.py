"""The doctor's text report: processes, wait chains, findings. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flowmx.observability.doctor.rules import Finding
from flowmx.observability.doctor.wait_chains import Chain, Snapshot, name_of, wait_chains

__all__ = ["render"]

_MAX_CHAINS = 6


def render(snapshots: Sequence[Snapshot], findings: Sequence[Finding]) -> str:
    """Return the report as text."""
    lines = [line for snapshot in snapshots for line in _process(snapshot)]
    chains = sorted(wait_chains(snapshots), key=len, reverse=True)
    if chains:
        lines += ["", "wait chains"]
        lines += [line for chain in chains[:_MAX_CHAINS] for line in _links(chain, len(snapshots) > 1)]
        if len(chains) > _MAX_CHAINS:
            lines.append(f"  and {len(chains) - _MAX_CHAINS} more chains")
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
    busy = {op["actor"] for op in snapshot["operations"] if op["state"] == "running"}
    for actor, row in engine["actors"].items():
        yield f"  {actor}: {'busy' if actor in busy else 'idle'}, {row['queued']} queued, {row['executed']} done"
    for loop in snapshot.get("loops", ()):
        state = f"blocked for {loop['blocked']:.1f} s" if loop["blocked"] > 0.1 else f"lag {loop['lag'] * 1e3:.1f} ms"
        yield f"  event loop of {loop['thread']}: {state}"
    if snapshot.get("kernels"):
        yield f"  kernels: {snapshot['kernels']}"
    memory = ", ".join(f"{device} {_size(nbytes)}" for device, nbytes in snapshot.get("memory", {}).items())
    if memory:
        yield f"  memory of arrays: {memory}"
    for report in snapshot.get("reports", {}).values():
        if report.get("peers"):
            yield "  peers: " + ", ".join(f"{peer['name']} {peer['state']}" for peer in report["peers"])


def _links(chain: Chain, has_several: bool) -> Iterator[str]:
    for depth, link in enumerate(chain):
        indent = "  " + "   " * depth
        node = f"{link.node}: " if has_several else ""
        yield f"{indent}{'└─ ' if depth else ''}{node}{link.text}"
        yield from (f"{indent}{'   ' if depth else ''}   {line}" for line in link.lines)


def _verdict(findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        yield "no fault found"
        return
    for number, finding in enumerate(findings):
        yield f"{'CAUSE' if number == 0 else 'also'}: {finding.kind}, {finding.node}: {finding.text}"
        if finding.line:
            yield f"  at {finding.line}"
        if finding.advice:
            yield f"  {finding.advice}"


def _size(nbytes: Any) -> str:
    return f"{nbytes / 2**20:.1f} MiB"
