"""Functions that are compiled when first used, in separate threads.

Compiling takes long and holds locks: flowmx's and those of imports. A signal handler that interrupts a computing thread
may wait for an operation that needs the same function, so no function is compiled on the stack of such a thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from flowmx import forks, process_hooks
from flowmx.devices.streams import thread_streams
from flowmx.engine.runtime import engine
from flowmx.ops.kernels.llvm import compiler
from flowmx.ops.registry.kernels import compiling

_log = logging.getLogger("flowmx.kernels")
_WAIT_TIMEOUT = 20.0
"""Seconds to wait for a compilation; after that, the fallback runs until the function is ready."""
_OPTIMIZATION_DELAY = 1.0
"""Seconds from baseline code until optimized code is compiled: a short program never needs it."""


class Program:
    """A function that is compiled when it is first requested.

    Inside an event loop, :meth:`get` returns None until the function is ready. Two threads wait for it even there: a
    device's own loop, which only launches work, and a thread that runs queued operations while it waits for them.

    Args:
        write: writes the assembly text for a processor with these features.
        is_optimized: compile optimized code at once, for a function that is timed.

    Attributes:
        compiled: the function, once it is ready.
        failed: whether its compilation failed.
    """

    __slots__ = ("_baseline", "_begun", "_is_optimized", "_lock", "_write", "compiled", "failed")

    def __init__(self, write: Callable[[frozenset[str]], str], is_optimized: bool = False) -> None:
        self._write = write
        self._is_optimized = is_optimized
        self.compiled: compiler.Compiled | None = None
        self.failed = False
        self._baseline: tuple[str, Path] | None = None
        self._begun = -1
        self._lock = forks.lock()

    def get(self) -> compiler.Compiled | None:
        """Return the function, or None if the fallback must run."""
        if self.compiled is not None or self.failed:
            return self.compiled
        on_a_loop = (
            asyncio._get_running_loop() is not None
            and not thread_streams.is_device_thread
            and engine.runner.local.turn is None
        )
        if on_a_loop:
            compiling.missed = True
            if self._begun == forks.generation():  # else only its parent began, before a fork
                return None
        thread = threading.Thread(target=self._compile, name="flowmx-compiler", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is about to end
            return None
        self._begun = forks.generation()
        if on_a_loop:
            return None
        thread.join(_WAIT_TIMEOUT)
        return self.compiled

    def _compile(self) -> None:
        with engine.ending.gate.working(), self._lock:
            if self.compiled is not None or self.failed or _ahead.is_over:
                return
            try:
                if compiler.available() and not engine.ending.gate.interrupted:
                    text = self._write(compiler.features())
                    if self._is_optimized:
                        self.compiled = compiler.compile(text)
                        return
                    self.compiled, path = compiler.compile_baseline(text)
                    if path is not None:
                        self._baseline = text, path
                        _ahead.call_later(self._improve)
            except Exception:  # LLVM may fail in any way; the fallback is correct
                _log.exception("compiling a fused loop failed; the fallback runs instead")
            self.failed = self.compiled is None

    def _improve(self) -> None:
        """Replace baseline code by optimized code."""
        with engine.ending.gate.working(), self._lock:
            baseline, self._baseline = self._baseline, None
            if baseline is not None and not (_ahead.is_over or engine.ending.gate.interrupted):
                try:
                    self.compiled = compiler.improve(*baseline)
                except Exception:  # LLVM may fail in any way; the fallback is correct
                    _log.exception("optimized recompilation of a fused loop failed; keeping the baseline code")


class _Ahead:
    """Background work: compilations ahead of the first use, and optimization after it.

    Attributes:
        is_over: whether the interpreter is ending, when LLVM must not be used any more.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], object]] = deque()
        self._threads: list[threading.Thread] = []

    def do(self, work: Sequence[Callable[[], object]]) -> None:
        """Call these functions in a thread, one after the other."""
        thread = threading.Thread(target=self._do, args=(work,), name="flowmx-compiler", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is about to end
            return
        self._threads = [thread, *[each for each in self._threads if each.is_alive()]]

    def _do(self, work: Sequence[Callable[[], object]]) -> None:
        for function in work:
            if not self.is_over:
                function()

    def call_later(self, work: Callable[[], object]) -> None:
        """Call a function later, when the program no longer waits for its first results."""
        with self._lock:
            self._waiting.append(work)
            if len(self._waiting) > 1:
                return
        self.do([self._do_waiting])

    def _do_waiting(self) -> None:
        self._ending.wait(_OPTIMIZATION_DELAY)
        while self._waiting and not self.is_over:
            self._waiting[0]()
            with self._lock:
                self._waiting.popleft()

    def end(self) -> None:
        """Start no more work, and wait for running work."""
        self.is_over = True
        self._ending.set()
        for thread in self._threads:
            thread.join(_WAIT_TIMEOUT)

    def forget(self) -> None:
        """Drop the queued functions, in the child of a fork: the parent calls them."""
        self._lock = threading.Lock()
        self._waiting.clear()


_ahead = _Ahead()
process_hooks.at_exit(_ahead.end)
process_hooks.at_fork(after_in_child=_ahead.forget)


def begin_compiling(programs: Sequence[Program]) -> None:
    """Start compiling functions in the background, in this order, before they are requested."""
    missing = [each for each in dict.fromkeys(programs) if each.compiled is None and not each.failed]
    if missing:
        _ahead.do([each._compile for each in missing])


def load_ahead() -> None:
    """Start loading the compiler in the background."""
    _ahead.do([_load])


def _load() -> None:
    with engine.ending.gate.working():
        compiler.load()
