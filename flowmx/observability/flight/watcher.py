"""The thread that watches this process: it answers questions, and writes a report where nothing goes on.

It is no part of the engine and of no event loop, so that it answers where those are blocked. It begins with the
engine's own thread, and is stopped for a fork.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import selectors
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any

from flowmx import settings, tracebacks
from flowmx.devices import blocks
from flowmx.engine.runtime import engine
from flowmx.errors import OutOfMemory
from flowmx.observability.flight import folder, observing
from flowmx.observability.flight.loops import Pings
from flowmx.serialization.atomic import replace_file

__all__ = ["start", "stop", "write"]

_log = logging.getLogger("flowmx.observability.flight")
_JOURNAL = 4096
"""Operations that are kept."""
_TICK = 1.0
"""Seconds between looks."""
_MOMENT = 0.3
"""Seconds without the end of an operation after which a program that dies counts as one that hangs."""
_REQUEST = 4096
"""Most bytes of a question."""


def write(path: str | os.PathLike[str] | None = None, why: str = "asked for") -> Path:
    """Write what this process does and did to a file, for ``python -m flowmx doctor FILE``; returns its path.

    Args:
        path: the file; None: one of its own in the runtime folder (FLOWMX_RUNTIME_FOLDER).
        why: the reason, which stands in it.
    """
    target = Path(path) if path is not None else folder.report(os.getpid())
    found = observing.observe(0.0, values=False)
    replace_file(target, [json.dumps({"why": why, **found}, default=str).encode()])
    return target


class Watcher:
    """The thread and its socket."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._wake: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._path: Path | None = None
        self._pings = Pings()
        self._progress = (0, monotonic())
        self._reported = False
        self.due: deque[str] = deque(maxlen=4)
        """Why reports are to be written, at the next look."""

    def start(self) -> None:
        """Begin, where it has not begun."""
        if self._thread is not None or not settings.get().flight_recorder:
            return
        wake, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._run, args=(wake,), name="flowmx-flight", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, and take the socket away."""
        thread, self._thread = self._thread, None
        if thread is None or self._wake is None:
            return
        self._wake.close()
        if thread is not threading.current_thread():
            thread.join(_TICK)

    def abandon(self) -> None:
        """In the child of a fork: there is no such thread."""
        for each in (self._wake, self._listener):
            if each is not None:
                each.close()
        self.__init__()  # type: ignore[misc]

    def _run(self, wake: socket.socket) -> None:
        with selectors.DefaultSelector() as selector, wake:
            selector.register(wake, selectors.EVENT_READ)
            self._listener = self._listen()
            if self._listener is not None:
                selector.register(self._listener, selectors.EVENT_READ)
            try:
                while True:
                    for key, _ in selector.select(_TICK):
                        if key.fileobj is wake:
                            return
                        self._answer()
                    with _going_on("this process could not be looked at"):
                        self._tick()
            finally:
                self._close()

    def _listen(self) -> socket.socket | None:
        try:
            self._path = folder.socket_path(os.getpid(), make=True)
            folder.sweep()
            self._path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(os.fspath(self._path))
            listener.listen(8)
        except (OSError, AttributeError) as error:
            _log.info("no socket for `python -m flowmx doctor`: %s", error)
            return None
        return listener

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _answer(self) -> None:
        """Answer one question, at most a few seconds long."""
        assert self._listener is not None
        with _going_on("a question could not be answered"):
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(5.0)
                asked = json.loads(connection.makefile("rb").readline(_REQUEST) or b"{}")
                seconds, values = float(asked.get("seconds", 1.0)), bool(asked.get("values", True))
                found = observing.observe(seconds, values, self._pings)
                connection.sendall(json.dumps(found, default=str).encode())

    def _tick(self) -> None:
        self._pings.send()
        if self.due:
            _report(self.due.popleft())
        limit, now = settings.get().stall_seconds, monotonic()
        completed, since = self._progress
        if engine.scheduler.completed != completed or not engine.pending:
            self._progress, self._reported = (engine.scheduler.completed, now), False
        elif limit and now - since >= limit and not self._reported:
            self._reported = True
            _report(f"no operation has ended for {now - since:.0f} s (FLOWMX_STALL_SECONDS)")


@contextlib.contextmanager
def _going_on(what: str) -> Iterator[None]:
    """Whatever goes wrong inside is only logged: the thread stays."""
    try:
        yield
    except (OSError, ValueError) as error:
        _log.info("%s: %s", what, error)
    except Exception:
        _log.exception("%s", what)


def _report(why: str) -> None:
    """Write a report and say where; what goes wrong with it is only logged."""
    try:
        path = write(why=why)
    except Exception:
        _log.exception("%s, and the report could not be written", why)
    else:
        _log.warning("%s: `python -m flowmx doctor %s` tells what waits for what", why, path)


_watcher = Watcher()


def _out_of_memory(complaint: str) -> None:
    """Note it: called on a thread that holds a lock, for which a report would wait."""
    if engine.books.journal is not None and not _watcher.due:
        _watcher.due.append(complaint)


def start() -> None:
    """Begin to watch this process, where it does not begin with the engine's first queued operation."""
    config = settings.get()
    if engine.books.journal is None and config.flight_recorder:
        engine.books.journal = deque(maxlen=_JOURNAL)
    _watcher.start()


def stop() -> None:
    """Watch no more, and note nothing, until :func:`start`."""
    engine.books.journal = None
    _watcher.stop()


def _follow(config: settings.Settings) -> None:
    if not config.flight_recorder:
        stop()
    elif engine.hosting.loop is not None:
        start()


_hook: Callable[..., Any] = sys.excepthook


def _died(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The program dies of an exception: before the traceback, leave a report of what is pending or took the memory."""
    if engine.books.journal is not None and not issubclass(kind, KeyboardInterrupt | SystemExit):
        out_of_memory = issubclass(kind, OutOfMemory | MemoryError)
        if out_of_memory or _hangs():
            _report(f"{'out of memory' if out_of_memory else 'the program failed'}: {kind.__name__}: {error}"[:500])
    (tracebacks.show if _hook is sys.__excepthook__ else _hook)(kind, error, trace)


def _hangs() -> bool:
    """Tell whether operations are pending and none ends soon; what only needs its moment is nothing to report."""
    end = monotonic() + _MOMENT
    completed = engine.scheduler.completed
    while engine.pending:
        if engine.scheduler.completed != completed:  # some have ended
            completed, end = engine.scheduler.completed, monotonic() + _MOMENT
        if monotonic() > end:
            return True
        sleep(0.001)
    return False


def _after_fork_in_parent() -> None:
    if engine.hosting.loop is not None:  # it could not be stopped
        start()


engine.openers.append(start)
blocks.told.append(_out_of_memory)
engine.followers.append(_follow)
sys.excepthook = _died
tracebacks.fold_in_ipython()
atexit.register(lambda: _watcher.stop())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_watcher.stop, after_in_parent=_after_fork_in_parent, after_in_child=_watcher.abandon
    )  # fmt: skip
