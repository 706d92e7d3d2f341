"""Timing of operations on all kinds of actors."""

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
    """Record the start and end of an operation that is about to be pushed.

    Args:
        op: the operation.
        record: its record.
        done: called with the record at the end. If the operation did not run because one of its inputs failed, its
            start equals its end.
    """
    end = partial(_end, record, done)
    if op.is_coroutine:
        op.wrap(partial(_time_coroutine, record, end))
    elif isinstance(op.actor, ThreadActor) or op.actor.launches:
        op.wrap(partial(_time, record, end))
    else:  # its actor reports the end, which is later than the function's return
        op.wrap(partial(_begin, record))
        op.add_waiter(record, end)


def _time(record: Record, end: Callable[[], None], op: Operation, proceed: Callable[[], object]) -> Any:
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


def _begin(record: Record, op: Operation, proceed: Callable[[], object]) -> Any:
    record.start = perf_counter()
    return proceed()


def _end(record: Record, done: Done) -> None:
    record.end = perf_counter()
    record.start = record.start or record.end
    done(record)
