"""Functions that are compiled at their first use, away from event loops."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from flowmx.ops.kernels.loops import compiler

_log = logging.getLogger("flowmx.kernels")


class Program:
    """A function that is compiled when it is first asked for.

    A thread that asks from inside an event loop gets None until a thread in the background has compiled it.

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
        if asyncio._get_running_loop() is not None:
            if not self._begun:
                self._begun = True
                threading.Thread(target=self._compile, name="flowmx-compiler", daemon=True).start()
            return None
        self._compile()
        return self.compiled

    def _compile(self) -> None:
        with self._lock:
            if self.compiled is not None or self.failed:
                return
            try:
                if compiler.available():
                    self.compiled = compiler.compile(self._write(compiler.features()))
            except Exception:
                _log.exception("a fused loop could not be compiled; the plain one runs instead")
            self.failed = self.compiled is None
