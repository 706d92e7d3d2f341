"""The section of a predictor in flight reports: its queue, results of requests, overload."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from flowmx.observability import flight
from flowmx.serve.metrics import SECONDS
from flowmx.serve.runner import Runner
from flowmx.serve.sessions.runner import SessionRunner

__all__ = ["register", "report"]

RESULTS = ("answered", "refused", "unavailable", "cancelled", "failed", "invalid")
_RECENT = 5.0
"""Seconds during which a refusal counts as recent."""


def register(runner: Runner, sessions: SessionRunner | None) -> Callable[[], None]:
    """Register a runner's report with the flight recorder; return the function that removes it."""
    name, function = f"serving {runner.name}", partial(report, runner, sessions)
    flight.describe(name, function)
    return partial(flight.forget, name, function)


def report(runner: Runner, sessions: SessionRunner | None = None) -> dict[str, Any]:
    """Return the report of a runner; see :func:`flowmx.observability.flight.describe`."""
    instruments, name = runner.instruments, runner.name
    return {
        "model": name, "version": runner.model.version, "accepting": runner.accepting,
        "queued": runner.queue.rows, "decoding": runner.queue.decoding,
        "limit": runner.queue.limit, "pending": runner.pending,
        "requests": {result: instruments.requests.value(name, result) for result in RESULTS},
        "latency": {"bounds": list(SECONDS), "counts": instruments.latency.counts(name)},
        "warnings": _warnings(runner), "kind": "overloaded server",
    } | ({} if sessions is None else {"sessions": sessions.report()})  # fmt: skip


def _warnings(runner: Runner) -> list[str]:
    if not runner.pace.refused_within(_RECENT, time.perf_counter()):
        return []
    refused, answered = (runner.instruments.requests.value(runner.name, result) for result in ("refused", "answered"))
    text = (
        f"{runner.name} is overloaded: its queue of {runner.queue.limit} rows is full and requests are refused "
        f"({refused:.0f} so far, {answered:.0f} answered): send fewer at a time, raise max_queue or max_batch, or add "
        "a process"
    )
    return [text]
