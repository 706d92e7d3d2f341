"""Snapshot of this process, JSON-compatible. Reads only; holds the engine's lock briefly."""

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
from flowmx.observability.flight import curves, facts, messages, stacks

__all__ = ["take"]

_MOST = 400
"""Most pending operations in a snapshot: all that run, and the oldest."""
_LAST = 100
"""Most ended operations in a snapshot."""
_FAILURES = 8
"""Most failures in a snapshot; those that are alike are one."""
_PATIENCE = 1.0
"""Seconds to wait for the engine's lock."""


def take() -> dict[str, Any]:
    """The state of this process."""
    has_lock = engine.lock.acquire(timeout=_PATIENCE)
    try:
        found = _engine(has_lock)
    finally:
        if has_lock:
            engine.lock.release()
    return {
        "at": time.time(),
        "process": _process(),
        **found,
        "memory": devices.memory_in_use() if has_lock else {},
        "exchanges": [_exchange(each) for each in list(messages.under_way.values())],
        "said": facts.said(),
        "curves": curves.latest(),
    }


def _process() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "program": " ".join(sys.argv[:4]) or "python",
        "host": platform.node(),
        "versions": {"flowmx": _version(), "python": platform.python_version()},
    }


@cache
def _version() -> str:
    from importlib import metadata  # only when asked: importing it takes longer than the rest of this package

    try:
        return metadata.version("flowmx")
    except metadata.PackageNotFoundError:
        return "unknown"


def _engine(has_lock: bool) -> dict[str, Any]:
    now, found, names = monotonic(), stacks.stacks(), stacks.names()
    pending = list(engine.pending.copy())
    running = _running(found)
    shown = dict.fromkeys([*running, *(op for op in pending if op.state == RUNNING), *pending[:_MOST]])
    before = _before(shown)
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
        "operations": [_operation(op, now, before.get(op, ()), running.get(op), names) for op in shown],
        "waits": _waits(now, found, names, running),
        "threads": [
            {"name": names.get(ident, str(ident)), "stack": stacks.lines(stack)} for ident, stack in found.items()
            if ident != threading.get_ident()
        ],
        "failures": _failures([each for each in engine.books.failures if not each.seen]),
        "last": [_ended(each) for each in list(engine.books.journal or ())[-_LAST:]],
    }  # fmt: skip


Running = tuple[int, list[str], Any]
"""The thread that runs an operation, the user's lines inside of it, and the node of a graph that it stands at."""


def _running(threads: dict[int, stacks.Stack]) -> dict[Operation, Running]:
    found: dict[Operation, Running] = {}
    for ident, stack in threads.items():
        if ident == threading.get_ident():
            continue
        for op, called in stacks.running_in(stack):
            found.setdefault(op, (ident, stacks.lines(called), stacks.step_in(called)))
    for actor in engine.actors.copy().values():
        if isinstance(actor, LoopActor):
            for op, task in actor.tasks():
                found.setdefault(op, (0, stacks.task_lines(task), None))
    return found


def _before(ops: Iterable[Operation]) -> dict[Operation, list[tuple[Operation, str]]]:
    """For each operation those that it waits for, each with the variable that both name."""
    found: dict[Operation, list[tuple[Operation, str]]] = {}
    for op in ops:
        for later in op.dependents or ():
            found.setdefault(later, []).append((op, _shared(op, later)))
    for outer, inner in list(engine.waiting.inside.values()):
        found.setdefault(outer, []).append((inner, "its own code, which waits for it"))
    return found


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
    op: Operation, now: float, before: Iterable[tuple[Operation, str]], running: Running | None, names: dict[int, str]
) -> dict[str, Any]:  # fmt: skip
    is_running = running is not None or op.state == RUNNING
    found: dict[str, Any] = {
        "id": op.serial, "name": op.name, "state": "running" if is_running else State(op.state).name.lower(),
        "actor": getattr(op.actor, "name", ""), "layer": op.origin[2] if op.origin else None,
        "line": describe_place(op.origin), "seconds": round(now - op.began, 3) if is_running and op.began else None,
        "waits_for": [{"id": each.serial, "through": through} for each, through in list(before)[:8]],
    }  # fmt: skip
    if running is not None:
        ident, lines, node = running
        found |= {"thread": names.get(ident, "the engine's loop"), "stack": lines}
        if node is not None:
            found["node"] = {"name": node.name, "line": node.place()}
    return found


def _waits(
    now: float, threads: dict[int, stacks.Stack], names: dict[int, str], running: Mapping[Operation, Running]
) -> list[dict[str, Any]]:  # fmt: skip
    """Tasks and threads that wait for operations; a thread may run others meanwhile."""
    asleep = [wait for wait in list(engine.waits.values()) if wait.op.state != DONE]
    found = [
        _wait(f"task {each.task.get_name()}", each.op, now - each.since, stacks.task_lines(each.task))
        for each in asleep if each.task is not None
    ]  # fmt: skip
    since = {each.thread: each.since for each in asleep if each.task is None}
    lent = {ident: op.began for op, (ident, _, _) in running.items()}
    for ident, stack in threads.items():
        op = stacks.waited_in(stack)
        if op is not None and op.state != DONE:
            seconds = now - since.get(ident, lent.get(ident, now))
            found.append(_wait(names.get(ident, str(ident)), op, seconds, stacks.lines(stack)))
    return found


def _wait(who: str, op: Operation, seconds: float, lines: list[str]) -> dict[str, Any]:
    return {"who": who, "for": op.serial, "seconds": round(seconds, 3), "stack": lines}


def _failures(failures: Sequence[Failure]) -> list[dict[str, Any]]:
    """Failures by exception, operation and line, each once with how often it came; the first ones."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for each in sorted(failures, key=lambda failure: failure.serial):
        line = describe_place(each.origin) if each.origin else ""
        key = (type(each.exception).__name__, each.operation, line)
        if key in found:
            found[key]["times"] += 1
        else:
            found[key] = {**_failure(each), "line": line, "times": 1}
    return list(found.values())[:_FAILURES]


def _failure(failure: Failure) -> dict[str, Any]:
    error = failure.exception
    try:
        text = str(error)
    except Exception as unprintable:  # it is user code
        text = f"(its text can not be had: {type(unprintable).__name__})"
    return {
        "error": type(error).__name__, "text": text[:2000], "notes": list(getattr(error, "__notes__", ()))[:8],
        "operation": failure.operation, "actor": failure.actor, "layer": failure.origin[2] if failure.origin else None,
    }  # fmt: skip


def _ended(each: Any) -> dict[str, Any]:
    serial, name, actor, origin, began, ended, failed = each
    return {
        "id": serial, "name": name, "actor": actor, "line": describe_place(origin), "failed": failed,
        "layer": origin[2] if origin else None, "ended": round(ended - monotonic(), 3),
        "seconds": round(ended - began, 6) if began else None,
    }  # fmt: skip


def _exchange(each: messages.Exchange) -> dict[str, Any]:
    seconds = monotonic() - each.since
    return {"peer": each.peer, "operation": each.operation, "facts": dict(each.facts), "seconds": round(seconds, 3)}
