"""The operators of a graph, one by one: a graph is one operation, and asks here whether somebody times its steps."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from flowmx.ops.compiled.sliced import Sliced
from flowmx.profiler.records import Record, StepTime, local

__all__ = ["current", "run"]


def current() -> Record | None:
    """The record of the operation that this thread runs; None while nothing is profiled."""
    return local.record


def run(record: Record, where: Any, step: Any) -> None:
    """Run a step (:class:`flowmx.graph.running.steps.Step`) and note when."""
    start = perf_counter()
    step[0](where, step[1], step[2])
    if isinstance(step[3].op, Sliced):  # its own steps have noted theirs
        return
    record.steps.append(StepTime(step[3], start, perf_counter()))
