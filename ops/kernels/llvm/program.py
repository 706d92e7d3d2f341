"""Functions that are compiled at their first use, in threads of their own.

Compiling holds locks, ours and those of imports, and takes long. A thread that computes may be stopped in its middle by
a signal handler that waits for an operation, which wants the same function: nobody compiles on such a stack.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from flowmx.devices.streams import here
from flowmx.engine.runtime import engine
from flowmx.ops.kernels.llvm import compiler

_log = logging.getLogger("flowmx.kernels")
_PATIENCE = 20.0
"""Seconds to wait for a compilation, after which the plain forward runs until it is there."""


class Program:
    """A function that is compiled when it is first asked for.

    A thread that asks from inside an event loop gets None until it is there, but for a device's own loop, which has
    nothing else to do than to launch.

    Args:
        write: writes its text, for a processor with these features.
    """

    __slots__ = ("_begun", "_lock", "_write", "compiled", "failed")

    def __init__(self, write: Callable[[frozenset[str]], str]) -> None:
        self._write = write
        self.compiled: compiler.Compiled | None = None
        self.failed = False
        self._begun = False
        self._lock = threading.Lock()

    def get(self) -> compiler.Compiled | None:
        """The function, or None where the plain forward is to run instead."""
        if self.compiled is not None or self.failed:
            return self.compiled
        on_a_loop = asyncio._get_running_loop() is not None and not here.is_devices
        if on_a_loop and self._begun:
            return None
        compiling = threading.Thread(target=self._compile, name="flowmx-compiler", daemon=True)
        try:
            compiling.start()
        except RuntimeError:  # the interpreter is about to end
            return None
        self._begun = True
        if not on_a_loop:
            compiling.join(_PATIENCE)
        return self.compiled

    def _compile(self) -> None:
        with engine.ending.gate.working(), self._lock:
            if self.compiled is not None or self.failed:
                return
            try:
                if compiler.available():
                    self.compiled = compiler.compile(self._write(compiler.features()))
            except Exception:
                _log.exception("a fused loop could not be compiled; the plain one runs instead")
            self.failed = self.compiled is None
