"""Rows of the tables of peers, services and generators, from the program's reports. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowmx.observability.dashboard.process_state import Reading

__all__ = ["generator_rows", "generators", "nodes", "peers", "quantile", "service_rows", "services"]


def services(reading: Reading) -> dict[str, Mapping[str, Any]]:
    """Return the reports of predictors, by model name."""
    return {str(report["model"]): report for report in reading.reports.values() if "latency" in report}


def service_rows(reading: Reading, values: Mapping[str, float]) -> list[dict[str, object]]:
    """Return a row per predictor, with its rate and latency from the newest values."""
    return [
        {
            "model": model, "version": report["version"], "accepting": report["accepting"], "queued": report["queued"],
            "limit": report["limit"], "pending": report["pending"], "requests": dict(report["requests"]),
            "rate": values.get(f"served.{model}.rate"), "p99": values.get(f"served.{model}.p99"),
            "sessions": report.get("sessions"),
        }
        for model, report in services(reading).items()
    ]  # fmt: skip


def generators(reading: Reading) -> dict[str, Mapping[str, Any]]:
    """Return the reports of generators of text, by model name."""
    return {str(report["generator"]): report for report in reading.reports.values() if "generator" in report}


def generator_rows(reading: Reading, values: Mapping[str, float]) -> list[dict[str, object]]:
    """Return a row per generator, with its rate and time to the first token from the newest values."""
    return [
        {
            "model": model, "running": report["running"], "waiting": report["waiting"], "limit": report["limit"],
            "pages": report["pages"], "page_count": report["page_count"], "preemptions": report["preemptions"],
            "rate": values.get(f"generated.{model}.rate"), "prompts": values.get(f"generated.{model}.prompts"),
            "first": values.get(f"generated.{model}.first"), "adapters": dict(report["adapters"]),
        }
        for model, report in generators(reading).items()
    ]  # fmt: skip


def nodes(reading: Reading) -> list[dict[str, Any]]:
    """Return this process's nodes in its jobs, and the nodes that they wait for."""
    return [
        {"name": report["node"], "doing": report.get("doing") or "", "waits": list(report.get("waits", ()))[:8]}
        for report in reading.reports.values() if report.get("node")
    ]  # fmt: skip


def peers(reading: Reading) -> list[dict[str, object]]:
    """Return a row per peer: its health, and the requests that have ended since the last reading."""
    reported = [peer for report in reading.reports.values() for peer in report.get("peers", ())]
    names = dict.fromkeys([*(str(peer["name"]) for peer in reported), *(peer for peer, _, _ in reading.exchanges)])
    health = {str(peer["name"]): (peer["state"], peer.get("why") or "") for peer in reported}
    rows = []
    for name in names:
        durations = [seconds for peer, _, seconds in reading.exchanges if peer == name]
        state, why = health.get(name, ("alive", ""))
        rows.append({
            "name": name, "state": state, "why": why, "requests": len(durations),
            "waiting": reading.waiting.get(name, 0),
            "bytes": sum(nbytes for peer, nbytes, _ in reading.exchanges if peer == name),
            "seconds": sum(durations) / len(durations) if durations else None,
        })  # fmt: skip
    return rows


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """Return the upper bound of a quantile of a histogram; the largest bound if the quantile exceeds all bounds.

    Args:
        bounds: upper bounds of the buckets, increasing.
        counts: number of values per bucket; the last count is of values above all bounds.
        share: the quantile, from 0 to 1.
    """
    rank, total = share * sum(counts), 0
    for bound, count in zip(bounds, counts, strict=False):
        total += count
        if total >= rank:
            return bound
    return bounds[-1]
