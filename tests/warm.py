"""Python processes that start in milliseconds: an interpreter that has imported flowmx forks them.

Importing flowmx takes a new process longer than most of what tests do in it. While :func:`starts` lasts,
``subprocess`` (and asyncio, which stands on it) hands commands like ``[sys.executable, "-c", code]`` to a process that
has done so already. The fork takes over the command's environment, folder, files, signals and arguments. It has its
own parent, ``__main__`` and exit, and has read no settings yet: importing flowmx reads none. Whatever the environment
decides at import (``PYTHONHASHSEED``, the number of BLAS threads) is as in the forking process. Tests of such things,
and of imports, use a new interpreter.

A process that was forked for a program, not for a text, starts its own children from a second fork, taken before the
program began. So the nodes of a launcher start as quickly.

A program that ends joins its threads, runs the ``atexit`` functions, flushes its output and exits at once. Python would
also finalize all modules, which copies every page of the forking process and takes twelve times as long as the rest of
a fork. Modules are finalized where ``Popen.ends_whole`` is set, for tests of exits, and after an uncaught exception.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

from flowmx.comm.launch.child import FOLDER, ISOLATED_PYTHON

ROOT = Path(__file__).parent.parent
PR_SET_CHILD_SUBREAPER = 36
SERVE = """
import atexit
last = []
atexit.register(lambda: [each() for each in last])
from tests import warm
warm.serve({}, last)
"""
"""The program of the forking process. Functions in ``last`` are called after all registered exit functions."""
PLAIN = subprocess.Popen
MODULES = (
    "flowmx.kvstore.server.main", "flowmx.kvstore.launching.command", "flowmx.comm.launch.scheduler",
    "flowmx.gluon.data.workers.process", "flowmx.cli", "flowmx.ndarray.backward_replay", "faulthandler", "textwrap",
    "numpy.random",
)  # fmt: skip
"""The modules that the process imports before it forks others."""


class Order(dict[str, Any]):
    """A command for Python, in pieces: ``flags`` and ``warnings`` options, and the ``words`` from its ``-c`` on."""

    @classmethod
    def of(cls, command: Sequence[str]) -> Order | None:
        """Parse a command. Return None if it does not run Python, or has options that need a new process."""
        words = [os.fsdecode(word) for word in command]
        guarded = words[:4] == [*ISOLATED_PYTHON, str(FOLDER / "start.py")]  # a launcher's child, which dies with it
        launcher, words = (words[4], words[5:]) if guarded else ("", words)
        namespaces: list[str] = []
        if words[:1] == ["nsenter"]:
            end = words.index("--")
            namespaces, words = [word.partition("=")[2] for word in words[1:end]], words[end + 1 :]
        if not words or words.pop(0) != sys.executable:
            return None
        order = cls(launcher=launcher, namespaces=namespaces, unbuffered=False, faulthandler=False, warnings=[])
        while words and words[0] in ("-u", "-B", "-X", "-W"):
            flag = words.pop(0)
            if flag == "-u":
                order["unbuffered"] = True
            elif flag == "-B":  # what is imported is already compiled
                continue
            elif flag == "-W":
                order["warnings"].append(words.pop(0))
            elif words.pop(0) != "faulthandler":
                return None
            else:
                order["faulthandler"] = True
        if not words or (words[0].startswith("-") and words[0] not in ("-c", "-m")):
            return None
        return cls(order, words=words)


class Server:
    """A process that forks others, started for the first of them."""

    def __init__(self, connection: socket.socket | None = None) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._connection = connection
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, order: Order, files: Sequence[int]) -> int:
        """Fork a process for an order, with the order's open files; it is this process's child."""
        with self._lock:
            if self._connection is None:
                self._connection = self._open()
            prctl = ctypes.CDLL(None).prctl
            prctl(PR_SET_CHILD_SUBREAPER, 1)  # who loses its parent meanwhile is this process's child
            try:
                data = json.dumps(order).encode()
                socket.send_fds(self._connection, [len(data).to_bytes(4, "little")], list(files))
                self._connection.sendall(data)
                return int.from_bytes(self._connection.recv(4, socket.MSG_WAITALL), "little")
            finally:
                prctl(PR_SET_CHILD_SUBREAPER, 0)

    def _open(self) -> socket.socket:
        here, there = socket.socketpair()
        own = ("FLOWMX_", "DMLC_", "PYTHON")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        command = [sys.executable, "-c", SERVE.format(there.fileno())]
        with there:
            self._process = PLAIN(command, pass_fds=[there.fileno()], cwd=ROOT, env=environment, start_new_session=True)
        return here

    def can(self) -> bool:
        """Return whether this process created the server, as opposed to a fork of it."""
        return os.getpid() == self._pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        """Stop the server. Its forks keep running."""
        if self._connection is not None and self._process is not None:
            self._connection.close()
            self._process.wait()


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """As ``subprocess.Popen``, by way of the server where the command is one for Python."""

    server: Server | None = None
    ends_whole = False
    is_forked = False
    """True in a process that the server has forked, and that may order others."""
    status: int | None = None
    """With which such a process ends, once that is known."""
    namespaces: Sequence[str] = ()
    """Paths of the namespaces that this process has entered since."""

    def _execute_child(self, *arguments: Any) -> None:
        # The one function of Popen that makes a process; its arguments are the same from Python 3.11 to 3.14.
        args, executable, preexec, _, pass_fds, cwd, env, _, _, shell = arguments[:10]
        pipes, (_, gid, gids, uid, umask, session, group) = arguments[10:16], arguments[16:]
        p2cread, _, _, c2pwrite, _, errwrite = pipes
        server, order = self.server, None
        plain = (executable, preexec, shell, gid, gids, uid, umask) == (None, None, False, None, None, None, -1)
        if server is not None and server.can() and plain and not isinstance(args, str | bytes):
            order = Order.of([os.fspath(word) for word in args])
        if server is None or order is None:
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        environ = dict(os.environ if env is None else env)
        order.update(environ=environ, cwd=os.fspath(cwd or Path.cwd()), session=session, group=group)
        order.update(numbers=list(pass_fds), ends_whole=self.ends_whole)
        order["starts_others"] = "launch" in order["words"][:3] if self.is_forked else order["words"][0] != "-c"
        order["starts_others"] &= not order["namespaces"]  # the others would not be in them
        order["namespaces"] = [*self.namespaces, *order["namespaces"]]
        standard = [at if given_at == -1 else given_at for at, given_at in enumerate((p2cread, c2pwrite, errwrite))]
        self.pid = server.start(order, [*standard, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


@contextlib.contextmanager
def starts() -> Iterator[None]:
    """Start Python processes quickly while this lasts."""
    real = subprocess.Popen
    with Server() as Popen.server:
        subprocess.Popen = Popen  # type: ignore[misc]
        try:
            yield
        finally:
            subprocess.Popen = real  # type: ignore[misc]


# -- in the process that forks others ----------------------------------------------------------------------


def serve(connection: int, last: list[Callable[[], None]]) -> None:
    """Fork a process for each order; in such a process, return once it has done its work."""
    last.append(_end)
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a fork would copy, at its end, each page on which the collector finds something
    _serve(connection)


def _serve(connection: int) -> None:
    with socket.socket(fileno=connection) as orders:
        while order := _next(orders):
            order_fields, files = order
            between = os.fork()
            if not between:
                _fork_again(orders, order_fields)
                break
            for file in files:
                os.close(file)
            os.waitpid(between, 0)
        else:
            os._exit(0)
    _become(order_fields, files)


def _next(orders: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    room = socket.CMSG_SPACE(64 * array.array("i").itemsize)
    size, messages, _, _ = orders.recvmsg(4, room)
    if not size:
        return None
    files = array.array("i")
    for _, _, data in messages:
        files.frombytes(data)
    data = b""
    while len(data) < int.from_bytes(size, "little"):
        data += orders.recv(1 << 20)
    return json.loads(data), list(files)


def _fork_again(orders: socket.socket, order: dict[str, Any]) -> None:
    """Return in a child whose parent ends at once: it is then a child of the process that ordered it."""
    between = os.getpid()
    ready, go = os.pipe()
    if os.fork():
        os._exit(0)
    os.close(go)
    os.read(ready, 1)  # ends just before the intermediate process does
    os.close(ready)
    while os.getppid() == between:
        os.sched_yield()
    orders.sendall(os.getpid().to_bytes(4, "little"))


def _become(order: dict[str, Any], files: Sequence[int]) -> None:
    """Be the process of an order."""
    numbers = [0, 1, 2, *order["numbers"]]
    if order["starts_others"]:
        here, there = socket.socketpair()
        if not os.fork():
            here.close()
            for file in files:
                os.close(file)
            os.setsid()  # it ends with the other end of the connection, whatever signals come
            _serve(there.detach())
            return
        there.close()
        files, numbers = [*files, here.detach()], [*numbers, 1 + max(numbers)]
    _take(files, numbers)
    if order["starts_others"]:
        os.set_inheritable(numbers[-1], False)
        Popen.server, Popen.is_forked = Server(socket.socket(fileno=numbers[-1])), True
        Popen.ends_whole = order["ends_whole"]
        subprocess.Popen = Popen  # type: ignore[misc]
    for path in order["namespaces"]:
        enter(path)
    if order["session"]:
        os.setsid()
    if order["group"] >= 0:
        os.setpgid(0, order["group"])
    os.environ.clear()
    os.environ.update(order["environ"])
    os.chdir(order["cwd"])
    if order["launcher"]:
        from flowmx.comm.launch import start

        ctypes.CDLL(None).prctl(start.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(order["launcher"]):
            os._exit(1)
    _configure(order)
    status: object = 0
    try:
        _run(order["words"])
    except SystemExit as end:
        status = end.code or 0
        raise
    except BaseException:
        status = None
        raise
    finally:
        if not order["ends_whole"] and isinstance(status, int):  # Python prints others
            Popen.status = status


def enter(path: str) -> None:
    """Enter a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(path).open() as namespace:
        if libc.setns(namespace.fileno(), 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


def _take(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Give open files these numbers; no others stay open."""
    import fcntl

    high = [fcntl.fcntl(file, fcntl.F_DUPFD, 1 + max(numbers)) for file in files]
    for source, target in zip(high, numbers, strict=True):
        os.dup2(source, target)
    descriptors = sorted(numbers)
    for low, end in zip(descriptors, [*descriptors[1:], 1 << 16], strict=True):
        os.closerange(low + 1, end)


def _configure(order: dict[str, Any]) -> None:
    import faulthandler
    import random

    import numpy as np

    random.seed()
    np.random.seed()
    environ = order["environ"]
    if order["unbuffered"] or environ.get("PYTHONUNBUFFERED"):
        raw = cast(BinaryIO, io.FileIO(1, "w", closefd=False))  # nothing holds back what is printed
        sys.stdout = io.TextIOWrapper(raw, write_through=True)
    if order["faulthandler"] or environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    sys.warnoptions[:] = [each for each in environ.get("PYTHONWARNINGS", "").split(",") if each] + order["warnings"]
    warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]


def _end() -> None:
    """Exit before the interpreter finalizes modules. This is the last exit function."""
    if Popen.status is None:
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (AttributeError, OSError, ValueError):
        return  # Python tells of it
    os._exit(Popen.status & 0xFF)


def _run(words: list[str]) -> None:
    """Handle the rest of the command line as the interpreter does."""
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    paths = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    kind, *rest = words
    first = {"-c": "", "-m": str(Path.cwd())}.get(kind, str(Path(kind).parent))
    sys.path[:] = [first, *paths, *sys.path[1:]]
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        sys.argv = ["-m", *rest[1:]]
        runpy._run_module_as_main(rest[0], alter_argv=True)  # type: ignore[attr-defined]
    else:
        sys.argv = words
        main.__dict__.update(__file__=kind)
        exec(compile(Path(kind).read_bytes(), kind, "exec"), main.__dict__)
