"""Rows of tables: peers and services, from the program's reports. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowmx.observability.dashboard.sample import Reading

__all__ = ["nodes", "peers", "quantile", "service_rows", "services"]


def services(reading: Reading) -> dict[str, Mapping[str, Any]]:
    """The report of each predictor, by the name of its model."""
    return {str(said["model"]): said for said in reading.said.values() if "latency" in said}


def service_rows(reading: Reading, values: Mapping[str, float]) -> list[dict[str, Any]]:
    """A row for each predictor, with its rate and latency from the newest values."""
    return [
        {
            "model": model, "version": said["version"], "accepting": said["accepting"], "queued": said["queued"],
            "limit": said["limit"], "pending": said["pending"], "requests": dict(said["requests"]),
            "rate": values.get(f"served.{model}.rate"), "p99": values.get(f"served.{model}.p99"),
        }
        for model, said in services(reading).items()
    ]  # fmt: skip


def nodes(reading: Reading) -> list[dict[str, Any]]:
    """This process's nodes in its jobs, and the nodes that they wait for."""
    return [
        {"name": said["node"], "doing": said.get("doing") or "", "waits": list(said.get("waits", ()))[:8]}
        for said in reading.said.values() if said.get("node")
    ]  # fmt: skip


def peers(reading: Reading) -> list[dict[str, Any]]:
    """A row for each peer: its health, and what was exchanged with it since the last reading."""
    said = [peer for each in reading.said.values() for peer in each.get("peers", ())]
    names = dict.fromkeys([*(str(peer["name"]) for peer in said), *(peer for peer, _, _ in reading.exchanges)])
    health = {str(peer["name"]): (peer["state"], peer.get("why") or "") for peer in said}
    rows = []
    for name in names:
        took = [seconds for peer, _, seconds in reading.exchanges if peer == name]
        state, why = health.get(name, ("alive", ""))
        rows.append({
            "name": name, "state": state, "why": why, "requests": len(took), "waiting": reading.waiting.get(name, 0),
            "bytes": sum(nbytes for peer, nbytes, _ in reading.exchanges if peer == name),
            "seconds": sum(took) / len(took) if took else None,
        })  # fmt: skip
    return rows


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """The bound that at most ``1 - share`` of the values were above; the largest where it is above all.

    Args:
        bounds: increasing.
        counts: the values up to each bound and above the one before, and last those above all.
        share: from 0 to 1.
    """
    wanted, below = share * sum(counts), 0
    for bound, count in zip(bounds, counts, strict=False):
        below += count
        if below >= wanted:
            return bound
    return bounds[-1]
