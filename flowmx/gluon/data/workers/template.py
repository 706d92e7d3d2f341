"""The template: a process that has imported flowmx and forks workers for all loaders of a program.

A new interpreter takes as long to import flowmx as a worker takes for many batches. The template is such an
interpreter, with one thread and no other state; its forks get the current arguments, environment variables, files and
folder of the loader's process. A request is one message on a socket. It carries descriptors: the request's text, the
worker's socket, its package, standard output and error, and a pipe for the worker's process id and, later, its exit
code. No call waits for the template.
"""

from __future__ import annotations

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flowmx import process_hooks
from flowmx.gluon.data.workers import shared_memory
from flowmx.ops.registry.kernels import load_kernels

available = hasattr(os, "pidfd_open") and hasattr(os, "memfd_create") and hasattr(socket, "SOCK_SEQPACKET")
"""Whether a template is supported: on Linux."""

BOOT = """\
import gc, json, sys
gc.disable()
start = json.loads(sys.argv[1])
sys.path[:], sys.argv[:] = start["path"], start["argv"]
from flowmx.gluon.data.workers import process, template
process.main(template.serve(start))
"""
"""The source of the template's program; workers return from `serve` and run the last line."""
_STARTUP_VARIABLES = (
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
"""Prefixes of environment variables that libraries read only when they are loaded."""
_STATUS = struct.Struct("<Bq")
_STARTED, _ENDED = range(2)
"""Kinds of the template's status messages: a worker's process id, or its exit code."""
_FILES = 6


class ForkedProcess:
    """A worker process forked by the template, with the methods of ``subprocess.Popen`` that its loader uses.

    Its methods may be called from any thread, and from a finalizer during another call, because each status message is
    complete in itself.

    Args:
        status: the pipe with the template's status messages.
        template: the template's process.
    """

    def __init__(self, status: int, template: subprocess.Popen[bytes]) -> None:
        os.set_blocking(status, False)
        self._lock = threading.RLock()
        self._status = status
        self._template = template
        self._pid = 0
        self._handle = -1
        self._has_ended = False
        self.returncode: int | None = None

    def _read_status(self, timeout: float | None) -> None:
        """Read the template's next status message.

        Raises:
            subprocess.TimeoutExpired: no message came within this number of seconds.
        """
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        if not poll.poll(None if timeout is None else 1000 * timeout):
            raise subprocess.TimeoutExpired("a worker", timeout or 0)
        with self._lock:  # at the end of the pipe, all earlier messages are stored
            try:
                raw = os.read(self._status, _STATUS.size)
            except BlockingIOError:  # another thread has read it
                return
            if not raw:
                self._has_ended = True
                return
            kind, number = _STATUS.unpack(raw)
            if kind == _STARTED:
                with contextlib.suppress(OSError):  # the worker has already ended
                    self._handle = os.pidfd_open(number)
                self._pid = number
            else:
                self.returncode, self._has_ended = number, True

    @property
    def pid(self) -> int:
        """The process id; waits for it. 0 if the template ended before it could fork."""
        while not self._pid and not self._has_ended:
            self._read_status(None)
        return self._pid

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the exit code, negative for a signal; if the template ended early, return its exit code.

        Raises:
            subprocess.TimeoutExpired: the process has not ended in this number of seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._has_ended:
            self._read_status(None if end is None else max(0.0, end - time.monotonic()))
        return self._template.poll() if self.returncode is None else self.returncode

    def kill(self) -> None:
        """Kill the process if it has started; otherwise it ends when it finds its socket closed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            while not self._pid and not self._has_ended:
                self._read_status(0)
        if self._handle >= 0 and not self._has_ended:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def leave(self) -> None:
        """Mark the process as ended, in the child of a fork: the process belongs to the parent."""
        self._has_ended = True

    def __del__(self) -> None:
        for descriptor in (self._status, self._handle):
            if descriptor >= 0:
                os.close(descriptor)


class _Template(NamedTuple):
    """A running template: its process, the socket for requests, and its interpreter and startup variables."""

    process: subprocess.Popen[bytes]
    requests: socket.socket
    kind: Any

    def close(self) -> None:
        """Close the socket for requests; the template ends with the last of its workers."""
        self.requests.close()


_lock = threading.RLock()
_template: _Template | None = None
_retired: list[subprocess.Popen[bytes]] = []
"""Templates that get no more requests."""


def fork(connection: int, package: int, start: Mapping[str, object], environment: dict[str, str]) -> ForkedProcess:
    """Request a worker process from the template, without waiting for it.

    Args:
        connection: the descriptor of the worker's end of its socket.
        package: the descriptor of the worker's package.
        start: the other arguments of the worker's main program.
        environment: the worker's environment variables.
    """
    template = _current(environment)
    read_end, write_end = os.pipe()
    text = json.dumps({**start, "environment": environment, "folder": _folder()}).encode()
    request = shared_memory.new_file(len(text), "flowmx-request")
    files = [request, connection, package, *(_open_or_null(number) for number in (1, 2)), write_end]
    try:
        os.pwrite(request, text, 0)
        socket.send_fds(template.requests, [b"w"], files)
    except BaseException:  # cleanup, also when interrupted
        os.close(read_end)
        raise
    finally:
        for descriptor in (request, *files[3:]):
            os.close(descriptor)
    return ForkedProcess(read_end, template.process)


def _open_or_null(number: int) -> int:
    try:
        return os.dup(number)
    except OSError:
        return os.open(os.devnull, os.O_RDWR)


def _current(environment: dict[str, str]) -> _Template:
    """Return a template for workers with these environment variables; start it if necessary."""
    global _template
    kind = (sys.executable, {name: environment[name] for name in environment if name.startswith(_STARTUP_VARIABLES)})
    with _lock:
        if _template is not None and (_template.kind != kind or _template.process.poll() is not None):
            _retire()
        if _template is None:
            _template = _start(kind, environment)
        return _template


def _retire() -> None:
    """Stop sending requests to the template, which ends with its workers."""
    global _template
    assert _template is not None
    _retired[:] = [process for process in _retired if process.poll() is None]
    _retired.append(_template.process)
    _template.close()
    _template = None


def _folder() -> str:
    """Return the current folder; empty if it was removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _start(kind: tuple[str, dict[str, str]], environment: dict[str, str]) -> _Template:
    requests, template_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    modules = [name for name in sys.modules if name.startswith(("flowmx.", "numpy."))]
    start = {"path": sys.path, "argv": sys.argv, "requests": template_end.fileno(), "modules": modules}
    with template_end:
        process = subprocess.Popen(
            [kind[0], *subprocess._args_from_interpreter_flags(), "-c", BOOT, json.dumps(start)],  # type: ignore[attr-defined]
            stdin=subprocess.DEVNULL, pass_fds=[template_end.fileno()], process_group=0, env=environment,
        )  # fmt: skip
    return _Template(process, requests, kind)


def _close() -> None:
    if _template is not None:
        _retire()
    for process in _retired:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5.0)


def _leave() -> None:
    """Discard the templates in the child of a fork: they belong to its parent."""
    global _template, _lock
    _lock = threading.RLock()
    if _template is not None:
        _retire()
    for process in _retired:
        process.returncode = 0
    _retired.clear()


process_hooks.at_exit(_close)
process_hooks.at_fork(after_in_child=_leave)


# -- in the template ---------------------------------------------------------------------------------------


def serve(start: dict[str, Any]) -> dict[str, object]:
    """Fork a worker for each request. Returns only in the workers, with the arguments of their main program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in start["modules"]:
        with contextlib.suppress(Exception):  # a worker will import it again and report the error
            importlib.import_module(name)
    load_kernels("cpu")  # else each worker imports them
    gc.freeze()  # a garbage collection in a worker would copy all pages
    requests = socket.socket(fileno=start["requests"])
    statuses: dict[int, tuple[int, int]] = {}  # process id and status pipe, by pidfd
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    is_open = True
    while is_open or statuses:
        for ready, _ in poll.poll():
            if ready != requests.fileno():
                poll.unregister(ready)
                _reap(ready, *statuses.pop(ready))
                continue
            _, files, _, _ = socket.recv_fds(requests, 1, _FILES)
            if not files:  # the loader's process has closed the socket
                poll.unregister(requests)
                is_open = False
                continue
            status = files[-1]
            pid = os.fork()
            if not pid:
                requests.close()
                for handle, (_, pipe) in statuses.items():
                    os.close(handle)
                    os.close(pipe)
                return _become_worker(files)
            for file in files[:-1]:
                os.close(file)
            _report(status, _STARTED, pid)
            handle = os.pidfd_open(pid)
            statuses[handle] = (pid, status)
            poll.register(handle, select.POLLIN)
    os._exit(0)


def _reap(handle: int, pid: int, status: int) -> None:
    """Report a worker's exit code."""
    _, code = os.waitpid(pid, 0)
    _report(status, _ENDED, os.waitstatus_to_exitcode(code))
    os.close(status)
    os.close(handle)


def _report(status: int, kind: int, number: int) -> None:
    with contextlib.suppress(OSError):  # the reader has closed the pipe
        os.write(status, _STATUS.pack(kind, number))


def _become_worker(files: list[int]) -> dict[str, Any]:
    """Set up a forked worker, and return the arguments of its main program."""
    request, connection, package, output, errors, status = files
    os.setpgid(0, 0)  # Ctrl-C is for the loader's process
    os.dup2(output, 1)
    os.dup2(errors, 2)
    start: dict[str, Any] = json.loads(os.pread(request, os.fstat(request).st_size, 0))
    for descriptor in (request, output, errors, status):
        os.close(descriptor)
    sys.path[:], sys.argv[:] = start["path"], start["argv"]
    os.environ.clear()
    os.environ.update(start["environment"])
    if start["folder"]:
        os.chdir(start["folder"])
    random.seed()
    np.random.seed()
    gc.enable()
    return {**start, "connection": connection, "package": package}
