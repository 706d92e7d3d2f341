"""Timing of the single operators of a graph, which runs as one operation."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from flowmx.ops.compiled.sliced import Sliced
from flowmx.profiler.records import Record, StepTime, local

__all__ = ["current", "run_step"]


def current() -> Record | None:
    """Return the record of the operation that this thread runs, or None without the profiler."""
    return local.record


def run_step(record: Record, run: Any, step: Any) -> None:
    """Run a step (:class:`flowmx.graph.running.steps.Step`) and record its time."""
    start = perf_counter()
    step[0](run, step[1], step[2])
    if isinstance(step[3].op, Sliced):  # its inner steps are recorded
        return
    record.steps.append(StepTime(step[3], start, perf_counter()))
