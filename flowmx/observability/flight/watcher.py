"""The watcher: a thread that answers the doctor, and writes a report when operations no longer end.

It is independent of the engine and of event loops, so that it answers when those are blocked. It starts with the
engine's thread, and stops for a fork.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType

from flowmx import process_hooks, settings, tracebacks
from flowmx.devices import block_pool
from flowmx.engine.runtime import engine
from flowmx.errors import OutOfMemory
from flowmx.observability.flight import folder
from flowmx.observability.flight.event_loop_pings import Pings
from flowmx.serialization.atomic import replace_file

__all__ = ["start", "stop", "write"]

_log = logging.getLogger("flowmx.observability.flight")
_MAX_JOURNAL = 4096
"""Maximum number of ended operations in the journal."""
_CHECK_INTERVAL = 1.0
"""Interval between checks in seconds."""
_END_TIMEOUT = 0.3
"""Seconds in which no operation ends, after which a program that failed counts as hanging."""
_MAX_REQUEST = 4096
"""Maximum size of a request in bytes."""


def write(path: str | os.PathLike[str] | None = None, why: str = "asked for") -> Path:
    """Write a snapshot of this process to a file, for ``python -m flowmx doctor FILE``.

    Args:
        path: the file (default: ``PID.report.json`` in the runtime folder, FLOWMX_RUNTIME_FOLDER).
        why: the reason that the report states.

    Returns:
        The path of the file.
    """
    from flowmx.observability.flight import observation

    target = Path(path) if path is not None else folder.report(os.getpid())
    snapshot = observation.observe(0.0, values=False)
    replace_file(target, [json.dumps({"why": why, **snapshot}, default=str).encode()])
    return target


class Watcher:
    """The watcher's thread and its socket."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._wake: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._path: Path | None = None
        self._pings = Pings()
        self._progress = (0, monotonic())
        self._reported = False
        self.due: deque[str] = deque(maxlen=4)
        """Reasons of the reports that the next check writes."""

    def start(self) -> None:
        """Start the thread if it does not run."""
        if self._thread is not None or not settings.get().flight_recorder:
            return
        wake, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._run, args=(wake,), name="flowmx-flight", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and remove the socket."""
        thread, self._thread = self._thread, None
        if thread is None or self._wake is None:
            return
        self._wake.close()
        if thread is not threading.current_thread() and thread.is_alive():  # a fork may precede its start
            thread.join(_CHECK_INTERVAL)

    def abandon(self) -> None:
        """Reset the state in the child of a fork, which has no such thread."""
        for connection in (self._wake, self._listener):
            if connection is not None:
                connection.close()
        self.__init__()  # type: ignore[misc]

    def _run(self, wake: socket.socket) -> None:
        with selectors.DefaultSelector() as selector, wake:
            selector.register(wake, selectors.EVENT_READ)
            self._listener = self._listen()
            if self._listener is not None:
                selector.register(self._listener, selectors.EVENT_READ)
            try:
                while True:
                    for key, _ in selector.select(_CHECK_INTERVAL):
                        if key.fileobj is wake:
                            return
                        self._answer()
                    with _logging_errors("this process could not be checked"):
                        self._check()
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
        """Answer one request; this takes at most the seconds in the request."""
        assert self._listener is not None
        with _logging_errors("a request could not be answered"):
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(5.0)
                request = json.loads(connection.makefile("rb").readline(_MAX_REQUEST) or b"{}")
                seconds, values = float(request.get("seconds", 1.0)), bool(request.get("values", True))
                from flowmx.observability.flight import observation

                snapshot = observation.observe(seconds, values, self._pings)
                connection.sendall(json.dumps(snapshot, default=str).encode())

    def _check(self) -> None:
        self._pings.send()
        if self.due:
            _report(self.due.popleft())
        limit, now = settings.get().stall_seconds, monotonic()
        completed, progress_time = self._progress
        if engine.scheduler.completed != completed or not engine.pending:
            self._progress, self._reported = (engine.scheduler.completed, now), False
        elif limit and now - progress_time >= limit and not self._reported:
            self._reported = True
            _report(f"no operation has ended for {now - progress_time:.0f} s (FLOWMX_STALL_SECONDS)")


@contextlib.contextmanager
def _logging_errors(what: str) -> Iterator[None]:
    """Log the exceptions of the context instead of raising them, so that the thread continues."""
    try:
        yield
    except (OSError, ValueError) as error:
        _log.info("%s: %s", what, error)
    except Exception:  # reports call user code; the thread must survive
        _log.exception("%s", what)


def _report(why: str) -> None:
    """Write a report and log its path, or the error."""
    try:
        path = write(why=why)
    except Exception:  # reports call user code; the thread must survive
        _log.exception("%s, and the report could not be written", why)
    else:
        _log.warning("%s: `python -m flowmx doctor %s` shows what waits for what", why, path)


_watcher = Watcher()


def _out_of_memory(message: str) -> None:
    """Request a report from the next check. The calling thread holds a lock for which the report would wait."""
    if engine.books.journal is not None and not _watcher.due:
        _watcher.due.append(message)


def start() -> None:
    """Start the flight recorder now; by default it starts with the engine's first queued operation."""
    config = settings.get()
    if engine.books.journal is None and config.flight_recorder:
        engine.books.journal = deque(maxlen=_MAX_JOURNAL)
    _watcher.start()


def stop() -> None:
    """Stop the flight recorder until :func:`start`; nothing is recorded."""
    engine.books.journal = None
    _watcher.stop()


def _on_settings_changed(config: settings.Settings) -> None:
    if not config.flight_recorder:
        stop()
    elif engine.hosting.loop is not None:
        start()


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Handle an uncaught exception: write a report if operations hang or memory ran out, then show the traceback."""
    if engine.books.journal is not None and not issubclass(kind, KeyboardInterrupt | SystemExit):
        out_of_memory = issubclass(kind, OutOfMemory | MemoryError)
        if out_of_memory or _is_hanging():
            _report(f"{'out of memory' if out_of_memory else 'the program failed'}: {kind.__name__}: {error}"[:500])
    process_hooks.show_folded(kind, error, trace)


def _is_hanging() -> bool:
    """Return whether operations are pending and none ends within :data:`_END_TIMEOUT`."""
    end = monotonic() + _END_TIMEOUT
    completed = engine.scheduler.completed
    while engine.pending:
        if engine.scheduler.completed != completed:  # an operation has ended
            completed, end = engine.scheduler.completed, monotonic() + _END_TIMEOUT
        if monotonic() > end:
            return True
        sleep(0.001)
    return False


def _after_fork_in_parent() -> None:
    if engine.hosting.loop is not None:  # the engine continues to run
        start()


engine.start_callbacks.append(start)
block_pool.out_of_memory_observers.append(_out_of_memory)
engine.settings_listeners.append(_on_settings_changed)
process_hooks.show_uncaught(_uncaught)
process_hooks.at_install(tracebacks.fold_in_ipython)
process_hooks.at_exit(_watcher.stop)
process_hooks.at_fork(before=_watcher.stop, after_in_parent=_after_fork_in_parent, after_in_child=_watcher.abandon)
