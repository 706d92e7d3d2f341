"""Timing of operations: notes in a record when one ran, wherever that is, and the steps of a graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from flowmx.engine import Operation, ThreadActor
from flowmx.profiler.records import Record, local

__all__ = ["time_operation"]

Done = Callable[[Record], None]


def time_operation(op: Operation, record: Record, done: Done) -> None:
    """Have an operation that is about to be pushed note in a record when it ran.

    Args:
        op: the operation.
        record: its record.
        done: called with the record at the end; where the operation never ran, since what it reads has failed, its
            start is its end.
    """
    end = partial(_end, record, done)
    if op.is_coroutine:
        op.wrap(partial(_time_coroutine, record, end))
    elif isinstance(op.actor, ThreadActor) or op.actor.launches:
        op.wrap(partial(_time, record, end))
    else:  # it is over when its actor says so, and not when the function returns
        op.wrap(partial(_begin, record))
        op.tell(record, end)


def _time(record: Record, end: Callable[[], None], op: Operation, proceed: Callable[[], Any]) -> Any:
    record.thread = local.thread
    outer, local.record = local.record, record
    record.start = perf_counter()
    try:
        return proceed()
    finally:
        local.record = outer
        end()


async def _time_coroutine(record: Record, end: Callable[[], None], op: Operation, proceed: Callable[[], Any]) -> Any:
    record.start = perf_counter()
    try:
        return await proceed()
    finally:
        end()


def _begin(record: Record, op: Operation, proceed: Callable[[], Any]) -> Any:
    record.start = perf_counter()
    return proceed()


def _end(record: Record, done: Done) -> None:
    record.end = perf_counter()
    record.start = record.start or record.end
    done(record)
