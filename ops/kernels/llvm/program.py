"""Functions that are compiled at their first use, in threads of their own.

Compiling holds locks, ours and those of imports, and takes long. A thread that computes may be stopped in its middle by
a signal handler that waits for an operation, which wants the same function: nobody compiles on such a stack.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from flowmx.devices.streams import here
from flowmx.engine.runtime import engine
from flowmx.ops.kernels.llvm import compiler
from flowmx.ops.registry.operators import compiling

_log = logging.getLogger("flowmx.kernels")
_PATIENCE = 20.0
"""Seconds to wait for a compilation, after which the plain forward runs until it is there."""
_REST = 1.0
"""Seconds from plain code to the time when better code is made: a short program does without."""


class Program:
    """A function that is compiled when it is first asked for.

    A thread that asks from inside an event loop gets None until it is there, but for a device's own loop, which has
    nothing else to do than to launch, and for one that runs queued operations while it waits for them.

    Args:
        write: writes its text, for a processor with these features.

    Attributes:
        compiled: the function, once it is there.
        failed: whether it could not be compiled.
    """

    __slots__ = ("_begun", "_lock", "_plain", "_write", "compiled", "failed")

    def __init__(self, write: Callable[[frozenset[str]], str]) -> None:
        self._write = write
        self.compiled: compiler.Compiled | None = None
        self.failed = False
        self._plain: tuple[str, Path] | None = None
        self._begun = False
        self._lock = threading.Lock()

    def get(self) -> compiler.Compiled | None:
        """The function, or None where the plain forward is to run instead."""
        if self.compiled is not None or self.failed:
            return self.compiled
        on_a_loop = asyncio._get_running_loop() is not None and not here.is_devices and engine.runner.local.turn is None
        if on_a_loop:
            compiling.missed = True
            if self._begun:
                return None
        thread = threading.Thread(target=self._compile, name="flowmx-compiler", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is about to end
            return None
        self._begun = True
        if on_a_loop:
            return None
        thread.join(_PATIENCE)
        return self.compiled

    def _compile(self) -> None:
        with engine.ending.gate.working(), self._lock:
            if self.compiled is not None or self.failed or _ahead.is_over:
                return
            try:
                if compiler.available():
                    text = self._write(compiler.features())
                    self.compiled, path = compiler.compile_plainly(text)
                    if path is not None:
                        self._plain = text, path
                        _ahead.later(self._improve)
            except Exception:
                _log.exception("a fused loop could not be compiled; the plain one runs instead")
            self.failed = self.compiled is None

    def _improve(self) -> None:
        """Replace plain code by better one."""
        with engine.ending.gate.working(), self._lock:
            plain, self._plain = self._plain, None
            if plain is not None and not _ahead.is_over:
                try:
                    self.compiled = compiler.improve(*plain)
                except Exception:
                    _log.exception("a fused loop could not be compiled better; it stays as it is")


class _Ahead:
    """Work that is done before anybody asks for it, by a thread of its own.

    Attributes:
        is_over: True once the interpreter ends, when LLVM must be left alone.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], object]] = deque()
        self._threads: list[threading.Thread] = []

    def do(self, work: Sequence[Callable[[], object]]) -> None:
        """Call these functions, one after the other."""
        thread = threading.Thread(target=self._do, args=(work,), name="flowmx-compiler", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is about to end
            return
        self._threads = [thread, *[each for each in self._threads if each.is_alive()]]

    def _do(self, work: Sequence[Callable[[], object]]) -> None:
        for each in work:
            if not self.is_over:
                each()

    def later(self, work: Callable[[], object]) -> None:
        """Call a function in a while, when nobody waits for a first result any more."""
        with self._lock:
            self._waiting.append(work)
            if len(self._waiting) > 1:
                return
        self.do([self._do_waiting])

    def _do_waiting(self) -> None:
        self._ending.wait(_REST)
        while self._waiting and not self.is_over:
            self._waiting[0]()
            with self._lock:
                self._waiting.popleft()

    def end(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        self.is_over = True
        self._ending.set()
        for each in self._threads:
            each.join(_PATIENCE)

    def forget(self) -> None:
        """Forget what waits: in a fork, whose parent does it."""
        self._lock = threading.Lock()
        self._waiting.clear()


_ahead = _Ahead()
atexit.register(_ahead.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ahead.forget)


def begin_compiling(programs: Sequence[Program]) -> None:
    """Let functions that will be asked for be compiled meanwhile, in this order."""
    wanted = [each for each in dict.fromkeys(programs) if each.compiled is None and not each.failed]
    if wanted:
        _ahead.do([each._compile for each in wanted])


def load_ahead() -> None:
    """Let the compiler be loaded meanwhile."""
    _ahead.do([_load])


def _load() -> None:
    with engine.ending.gate.working():
        compiler.load()
