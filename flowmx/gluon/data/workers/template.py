"""A process that has imported flowmx and forks workers, kept for all loaders of a program.

A new interpreter takes as long to import flowmx as a worker for many batches. The template is such an interpreter, with
one thread and nothing begun; its forks have the arguments, variables, files and folder that the loader's process has
now. An order is one message on a socket, which carries descriptors: the order's text, the worker's socket, its package,
standard output and error, and a pipe by which the template says who the worker is and, later, how it ended. Nobody
waits for the template.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowmx.gluon.data.workers import shared

available = hasattr(os, "pidfd_open") and hasattr(os, "memfd_create") and hasattr(socket, "SOCK_SEQPACKET")
"""True where a template can be kept: on Linux."""

BOOT = """\
import gc, json, sys
gc.disable()
given = json.loads(sys.argv[1])
sys.path[:], sys.argv[:] = given["path"], given["argv"]
from flowmx.gluon.data.workers import process, template
process.main(template.serve(given))
"""
"""The source of the template's program; each fork goes on with its last line."""

_AT_START = (
    "PYTHON",
    "LD_",
    "LC_",
    "LANG",
    "TZ",
    "MALLOC_",
    "GLIBC_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "OPENBLAS_",
    "MKL_",
    "NPY_",
)
"""Beginnings of the names of environment variables that libraries heed as they are loaded, if at all."""

_NEWS = struct.Struct("<Bq")
_BEGUN, _ENDED = range(2)
"""Kinds of news of a worker from the template: its process id, or its exit code."""
_FILES = 6


class Forked:
    """A worker process that the template forks; as far as its loader asks, a ``subprocess.Popen``.

    Any thread may ask, and a finaliser in the middle of another question: each message says what it tells.

    Args:
        status: the pipe by which its template says its process id and how it ended.
        template: the process that forks it.
    """

    def __init__(self, status: int, template: subprocess.Popen[bytes]) -> None:
        os.set_blocking(status, False)
        self._lock = threading.RLock()
        self._status = status
        self._template = template
        self._pid = 0
        self._handle = -1
        self._ended = False
        self.returncode: int | None = None

    def _listen(self, timeout: float | None) -> None:
        """Take in what the template says next.

        Raises:
            subprocess.TimeoutExpired: it said nothing in so many seconds.
        """
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        if not poll.poll(None if timeout is None else 1000 * timeout):
            raise subprocess.TimeoutExpired("a worker", timeout or 0)
        with self._lock:  # who finds the end of it has what another thread has read
            try:
                raw = os.read(self._status, _NEWS.size)
            except BlockingIOError:  # another thread has read it
                return
            if not raw:
                self._ended = True
                return
            kind, number = _NEWS.unpack(raw)
            if kind == _BEGUN:
                with contextlib.suppress(OSError):  # it has ended already
                    self._handle = os.pidfd_open(number)
                self._pid = number
            else:
                self.returncode, self._ended = number, True

    @property
    def pid(self) -> int:
        """The process id, for which this waits; 0 where the template ended before it could fork."""
        while not self._pid and not self._ended:
            self._listen(None)
        return self._pid

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code, negative for a signal; where the template has ended, its own.

        Raises:
            subprocess.TimeoutExpired: it has not ended in so many seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._ended:
            self._listen(None if end is None else max(0.0, end - time.monotonic()))
        return self._template.poll() if self.returncode is None else self.returncode

    def kill(self) -> None:
        """End it at once, where it has begun; one that has not yet ends when it finds its socket closed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            while not self._pid and not self._ended:
                self._listen(0)
        if self._handle >= 0 and not self._ended:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def leave(self) -> None:
        """Take it as ended, in the child of a fork: it is no business of this process."""
        self._ended = True

    def __del__(self) -> None:
        for each in (self._status, self._handle):
            if each >= 0:
                os.close(each)


class _Template(NamedTuple):
    """A running template: its process, the socket for orders, and what it was started with."""

    process: subprocess.Popen[bytes]
    orders: socket.socket
    kind: Any

    def close(self) -> None:
        """Order no more: it ends with the last of its workers."""
        self.orders.close()


_lock = threading.RLock()
_template: _Template | None = None
_past: list[subprocess.Popen[bytes]] = []
"""Templates that get no more orders."""


def fork(connection: int, package: int, start: dict[str, Any], environment: dict[str, str]) -> Forked:
    """Have a worker process forked; this does not wait until it is there.

    Args:
        connection: the descriptor of the worker's end of its socket.
        package: the descriptor of its package.
        start: what else its main program is given.
        environment: its environment variables.
    """
    found = _current(environment)
    reading, writing = os.pipe()
    text = json.dumps({**start, "environment": environment, "folder": _folder()}).encode()
    order = shared.new_file(len(text), "flowmx-order")
    files = [order, connection, package, *(_open_or_null(number) for number in (1, 2)), writing]
    try:
        os.pwrite(order, text, 0)
        socket.send_fds(found.orders, [b"w"], files)
    except BaseException:
        os.close(reading)
        raise
    finally:
        for each in (order, *files[3:]):
            os.close(each)
    return Forked(reading, found.process)


def _open_or_null(number: int) -> int:
    try:
        return os.dup(number)
    except OSError:
        return os.open(os.devnull, os.O_RDWR)


def _current(environment: dict[str, str]) -> _Template:
    """A template for workers with these variables, started now where there is none."""
    global _template
    kind = (sys.executable, {name: environment[name] for name in environment if name.startswith(_AT_START)})
    with _lock:
        if _template is not None and (_template.kind != kind or _template.process.poll() is not None):
            _retire()
        if _template is None:
            _template = _started(kind, environment)
        return _template


def _retire() -> None:
    """Let the template end."""
    global _template
    assert _template is not None
    _past[:] = [each for each in _past if each.poll() is None]
    _past.append(_template.process)
    _template.close()
    _template = None


def _folder() -> str:
    """The current folder; empty where it was removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _started(kind: tuple[str, dict[str, str]], environment: dict[str, str]) -> _Template:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    modules = [name for name in sys.modules if name.startswith(("flowmx.", "numpy."))]
    given = {"path": sys.path, "argv": sys.argv, "orders": there.fileno(), "modules": modules}
    with there:
        process = subprocess.Popen(
            [kind[0], *subprocess._args_from_interpreter_flags(), "-c", BOOT, json.dumps(given)],  # type: ignore[attr-defined]
            stdin=subprocess.DEVNULL, pass_fds=[there.fileno()], process_group=0, env=environment,
        )  # fmt: skip
    return _Template(process, here, kind)


def _close() -> None:
    if _template is not None:
        _retire()
    for each in _past:
        with contextlib.suppress(subprocess.TimeoutExpired):
            each.wait(5.0)


def _leave() -> None:
    """Forget the templates in the child of a fork: they are its parent's."""
    global _template, _lock
    _lock = threading.RLock()
    if _template is not None:
        _retire()
    for each in _past:
        each.returncode = 0
    _past.clear()


atexit.register(_close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave)


# -- in the template ---------------------------------------------------------------------------------------


def serve(given: dict[str, Any]) -> dict[str, Any]:
    """Fork a worker for each order; returns in such a worker, with what its main program is given."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in given["modules"]:
        with contextlib.suppress(Exception):  # a worker that needs it imports it again, and tells
            importlib.import_module(name)
    gc.freeze()  # a collection in a worker would copy each page that it looks at
    orders = socket.socket(fileno=given["orders"])
    statuses: dict[int, tuple[int, int]] = {}  # of each worker by the descriptor that tells its end
    poll = select.poll()
    poll.register(orders, select.POLLIN)
    listening = True
    while listening or statuses:
        for ready, _ in poll.poll():
            if ready != orders.fileno():
                poll.unregister(ready)
                _bury(ready, *statuses.pop(ready))
                continue
            _, files, _, _ = socket.recv_fds(orders, 1, _FILES)
            if not files:  # the loader's process orders no more
                poll.unregister(orders)
                listening = False
                continue
            status = files[-1]
            pid = os.fork()
            if not pid:
                orders.close()
                for handle, (_, other) in statuses.items():
                    os.close(handle)
                    os.close(other)
                return _begun(files)
            for each in files[:-1]:
                os.close(each)
            _say(status, _BEGUN, pid)
            handle = os.pidfd_open(pid)
            statuses[handle] = (pid, status)
            poll.register(handle, select.POLLIN)
    os._exit(0)


def _bury(handle: int, pid: int, status: int) -> None:
    """Tell how a worker ended."""
    _, code = os.waitpid(pid, 0)
    _say(status, _ENDED, os.waitstatus_to_exitcode(code))
    os.close(status)
    os.close(handle)


def _say(status: int, kind: int, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(status, _NEWS.pack(kind, number))


def _begun(files: list[int]) -> dict[str, Any]:
    """Become a worker: what its main program is given."""
    order, connection, package, output, errors, status = files
    os.setpgid(0, 0)  # Ctrl-C is for the loader's process
    os.dup2(output, 1)
    os.dup2(errors, 2)
    given: dict[str, Any] = json.loads(os.pread(order, os.fstat(order).st_size, 0))
    for each in (order, output, errors, status):
        os.close(each)
    sys.path[:], sys.argv[:] = given["path"], given["argv"]
    os.environ.clear()
    os.environ.update(given["environment"])
    if given["folder"]:
        os.chdir(given["folder"])
    random.seed()
    np.random.seed()
    gc.enable()
    return {**given, "connection": connection, "package": package}
