"""Snapshot of this process, JSON-compatible. It changes nothing, and holds the engine's lock briefly."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from time import monotonic
from typing import Any

from flowmx import devices
from flowmx.engine import LoopActor
from flowmx.engine import describe as describe_place
from flowmx.engine.failure import Failure
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import DONE, RUNNING, Operation, State, Variable
from flowmx.observability.flight import curves, messages, report_registry, stacks

__all__ = ["take"]

_MAX_OPERATIONS = 400
"""Maximum number of pending operations that do not run; the oldest are reported."""
_MAX_ENDED = 100
"""Maximum number of ended operations; the last ones are reported."""
_MAX_FAILURES = 8
"""Maximum number of failures; equal ones count as one."""
_LOCK_TIMEOUT = 1.0
"""Maximum time to wait for the engine's lock in seconds."""


def take() -> dict[str, Any]:
    """Return the state of this process."""
    has_lock = engine.lock.acquire(timeout=_LOCK_TIMEOUT)
    try:
        engine_state = _engine(has_lock)
    finally:
        if has_lock:
            engine.lock.release()
    return {
        "at": time.time(),
        "process": _process(),
        **engine_state,
        "memory": devices.memory_in_use() if has_lock else {},
        "exchanges": [_exchange(request) for request in list(messages.under_way.values())],
        "kernels": _kernels(),
        "reports": report_registry.reports(),
        "curves": curves.latest(),
    }


def _process() -> dict[str, object]:
    return {
        "pid": os.getpid(),
        "program": " ".join(sys.argv[:4]) or "python",
        "host": platform.node(),
        "versions": {"flowmx": _version(), "python": platform.python_version()},
    }


def _kernels() -> str:
    """Describe the library of the CPU's kernels, if they were imported."""
    library = sys.modules.get("flowmx.ops.kernels.onednn.library")
    return "" if library is None else str(library.status())


@cache
def _version() -> str:
    from importlib import metadata  # imported here, since it takes longer than the rest of this package

    try:
        return metadata.version("flowmx")
    except metadata.PackageNotFoundError:
        return "unknown"


def _engine(has_lock: bool) -> dict[str, object]:
    now, threads, names = monotonic(), stacks.stacks(), stacks.names()
    pending = list(engine.pending.copy())
    running = _running(threads)
    operations = dict.fromkeys([*running, *(op for op in pending if op.state == RUNNING), *pending[:_MAX_OPERATIONS]])
    waits_for = _before(operations)
    return {
        "locked": not has_lock,
        "engine": {
            "kind": engine.kind, "pushed": engine.scheduler.serial, "pending": len(pending),
            "failed": engine.books.failed, "pending_bytes": engine.scheduler.pending_bytes,
            "actors": {
                name: {"queued": len(actor.mailbox), "executed": actor.executed, "launches": actor.launches}
                for name, actor in engine.actors.copy().items()
            },
        },
        "operations": [_operation(op, now, waits_for.get(op, ()), running.get(op), names) for op in operations],
        "waits": _waits(now, threads, names, running),
        "threads": [
            {"name": names.get(ident, str(ident)), "stack": stacks.lines(stack)} for ident, stack in threads.items()
            if ident != threading.get_ident()
        ],
        "failures": _failures([failure for failure in engine.books.failures if not failure.raised]),
        "last": [_ended(entry) for entry in list(engine.books.journal or ())[-_MAX_ENDED:]],
    }  # fmt: skip


Running = tuple[int, list[str], Any]
"""The thread that runs an operation, the user's lines of its stack, and the graph node whose step it is at."""


def _running(threads: dict[int, stacks.Stack]) -> dict[Operation, Running]:
    running: dict[Operation, Running] = {}
    for ident, stack in threads.items():
        if ident == threading.get_ident():
            continue
        for op, calls in stacks.running_in(stack):
            running.setdefault(op, (ident, stacks.lines(calls), stacks.step_in(calls)))
    for actor in engine.actors.copy().values():
        if isinstance(actor, LoopActor):
            for op, task in actor.tasks():
                running.setdefault(op, (0, stacks.task_lines(task), None))
    return running


def _before(ops: Iterable[Operation]) -> dict[Operation, list[tuple[Operation, str]]]:
    """Return the operations that each operation waits for, with descriptions of the variables that they share."""
    waits_for: dict[Operation, list[tuple[Operation, str]]] = {}
    for op in ops:
        for later in op.dependents or ():
            waits_for.setdefault(later, []).append((op, _shared(op, later)))
    for outer, inner in list(engine.waiting.inside.values()):
        waits_for.setdefault(outer, []).append((inner, "its own code, which waits for it"))
    return waits_for


def _shared(earlier: Operation, later: Operation) -> str:
    written, touched = set(earlier.writes), {*earlier.reads, *earlier.writes}
    for variable in (*later.reads, *later.writes):
        if variable in written or (variable in later.writes and variable in touched):
            return _name(variable)
    return ""


def _name(variable: Variable) -> str:
    shape = getattr(variable, "shape", None)
    if shape is not None:
        return f"an array {tuple(shape)} {getattr(variable, 'dtype', '')}"
    return repr(variable.name) if variable.name else type(variable).__name__.lower()


def _operation(
    op: Operation, now: float, waits_for: Iterable[tuple[Operation, str]], running: Running | None,
    names: dict[int, str],
) -> dict[str, object]:  # fmt: skip
    is_running = running is not None or op.state == RUNNING
    described: dict[str, object] = {
        "id": op.serial, "name": op.name, "state": "running" if is_running else State(op.state).name.lower(),
        "actor": getattr(op.actor, "name", ""), "layer": op.origin[2] if op.origin else None,
        "line": describe_place(op.origin), "seconds": round(now - op.began, 3) if is_running and op.began else None,
        "waits_for": [{"id": other.serial, "through": through} for other, through in list(waits_for)[:8]],
    }  # fmt: skip
    if running is not None:
        ident, lines, node = running
        described |= {"thread": names.get(ident, "the engine's loop"), "stack": lines}
        if node is not None:
            described["node"] = {"name": node.name, "line": node.place()}
    return described


def _waits(
    now: float, threads: dict[int, stacks.Stack], names: dict[int, str], running: Mapping[Operation, Running]
) -> list[dict[str, object]]:  # fmt: skip
    """Return the tasks and threads that wait for operations; a thread may run others meanwhile."""
    tasks_and_threads = [wait for wait in list(engine.waits.values()) if wait.op.state != DONE]
    waits = [
        _wait(f"task {wait.task.get_name()}", wait.op, now - wait.since, stacks.task_lines(wait.task))
        for wait in tasks_and_threads if wait.task is not None
    ]  # fmt: skip
    wait_times = {wait.thread: wait.since for wait in tasks_and_threads if wait.task is None}
    start_times = {ident: op.began for op, (ident, _, _) in running.items()}
    for ident, stack in threads.items():
        op = stacks.waited_in(stack)
        if op is not None and op.state != DONE:
            seconds = now - wait_times.get(ident, start_times.get(ident, now))
            waits.append(_wait(names.get(ident, str(ident)), op, seconds, stacks.lines(stack)))
    return waits


def _wait(who: str, op: Operation, seconds: float, lines: list[str]) -> dict[str, object]:
    return {"who": who, "for": op.serial, "seconds": round(seconds, 3), "stack": lines}


def _failures(failures: Sequence[Failure]) -> list[dict[str, object]]:
    """Return the first failures, those with equal exception, operation and line merged and counted."""
    merged: dict[tuple[str, str, str], dict[str, Any]] = {}
    for failure in sorted(failures, key=lambda failure: failure.serial):
        line = describe_place(failure.origin) if failure.origin else ""
        key = (type(failure.exception).__name__, failure.operation, line)
        if key in merged:
            merged[key]["times"] += 1
        else:
            merged[key] = {**_failure(failure), "line": line, "times": 1}
    return list(merged.values())[:_MAX_FAILURES]


def _failure(failure: Failure) -> dict[str, object]:
    error = failure.exception
    try:
        text = str(error)
    except Exception as unprintable:  # user code
        text = f"(str() of it raises {type(unprintable).__name__})"
    return {
        "error": type(error).__name__, "text": text[:2000], "notes": list(getattr(error, "__notes__", ()))[:8],
        "operation": failure.operation, "actor": failure.actor, "layer": failure.origin[2] if failure.origin else None,
    }  # fmt: skip


def _ended(entry: Any) -> dict[str, Any]:
    serial, name, actor, origin, began, ended, failed = entry
    return {
        "id": serial, "name": name, "actor": actor, "line": describe_place(origin), "failed": failed,
        "layer": origin[2] if origin else None, "ended": round(ended - monotonic(), 3),
        "seconds": round(ended - began, 6) if began else None,
    }  # fmt: skip


def _exchange(request: messages.Exchange) -> dict[str, object]:
    seconds = round(monotonic() - request.since, 3)
    return {
        "peer": request.peer, "operation": request.operation, "facts": dict(request.facts), "seconds": seconds,
    }  # fmt: skip
