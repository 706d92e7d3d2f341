"""A predictor's part of flight reports: its queue, the results of requests, overload."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from flowmx.observability import flight
from flowmx.serve.measures import SECONDS
from flowmx.serve.runner import Runner

__all__ = ["of_runner", "speak"]

RESULTS = ("answered", "refused", "unavailable", "cancelled", "failed", "invalid")
_LATELY = 5.0
"""Seconds for which a refusal counts as one of now."""


def speak(runner: Runner) -> Callable[[], None]:
    """Register a runner's report with the flight recorder; returns the function that removes it."""
    name, say = f"serving {runner.name}", partial(of_runner, runner)
    flight.describe(name, say)
    return partial(flight.forget, name, say)


def of_runner(runner: Runner) -> dict[str, Any]:
    """Report of a runner; see :func:`flowmx.observability.flight.describe`."""
    measures, name = runner.measures, runner.name
    return {
        "model": name, "version": runner.model.version, "accepting": runner.accepting,
        "queued": runner.queue.rows, "limit": runner.queue.limit, "pending": runner.pending,
        "requests": {result: measures.requests.value(name, result) for result in RESULTS},
        "latency": {"bounds": list(SECONDS), "counts": measures.latency.counts(name)},
        "warnings": _warnings(runner), "kind": "overloaded server",
    }  # fmt: skip


def _warnings(runner: Runner) -> list[str]:
    if not runner.pace.refused_within(_LATELY, time.perf_counter()):
        return []
    refused, answered = (runner.measures.requests.value(runner.name, each) for each in ("refused", "answered"))
    text = (
        f"{runner.name} is overloaded: requests are refused ({refused:.0f} so far, {answered:.0f} were answered), "
        f"because {runner.queue.limit} rows may wait: send fewer at a time, raise queue or max_batch, or add a process"
    )
    return [text]
