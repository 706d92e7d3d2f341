"""Ctrl-C while the main thread runs an operation: the operation ends first.

Python raises KeyboardInterrupt between any two bytecodes of the main thread, which often runs operations itself. An
interrupted operation would leave its arrays without content: a program that catches KeyboardInterrupt could not save
its parameters. So a signal that arrives within an operation is sent again, until it arrives between two operations.
Operations of user code are interrupted at once. A second Ctrl-C, half a second later, interrupts every operation.

Only Python's own handler is replaced. A handler that the program or an event loop has set stays.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["InterruptHandler"]

_signal: Any = signal  # the type of its handler is that of one function
_RESEND_INTERVAL = 0.0005
"""Seconds after which a delayed signal is sent again."""
_PATIENCE = 0.5
"""Seconds after which another signal interrupts the operation that delays the first one."""


class InterruptHandler:
    """A handler of SIGINT that delays the signal until the main thread runs no operation.

    Args:
        is_busy: returns whether the calling thread runs an operation that must not be interrupted.
    """

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._is_busy = is_busy
        self._default: Any = signal.default_int_handler
        self._is_delayed = False
        self._is_resent = False
        self._since = 0.0

    def install(self) -> None:
        """Replace Python's default handler, if this is the main thread: others may not set handlers.

        ``signal.default_int_handler`` is replaced too: asyncio and trio handle Ctrl-C themselves only if the handler is
        this one.
        """
        if threading.current_thread() is threading.main_thread():
            _signal.default_int_handler = self
            if signal.getsignal(signal.SIGINT) is self._default:
                signal.signal(signal.SIGINT, self)

    def uninstall(self) -> None:
        """Restore Python's default handler, if this is the main thread."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and _signal.default_int_handler is self:
            _signal.default_int_handler = self._default
            if _signal.getsignal(signal.SIGINT) is self:
                signal.signal(signal.SIGINT, self._default)

    def after_fork_in_child(self) -> None:
        """Forget a delayed signal, which the parent handles: the thread that sends it again exists only there."""
        self._is_delayed = self._is_resent = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, unless the thread is busy and this is the first signal since it was not."""
        is_resent, self._is_resent = self._is_resent, False
        is_impatient = self._is_delayed and not is_resent and time.monotonic() > self._since + _PATIENCE
        if self._is_busy() and not is_impatient:
            if not self._is_delayed:
                self._is_delayed, self._since = True, time.monotonic()
                # The interrupted code may hold the locks of the threading module, which this function does not need.
                _thread.start_new_thread(self._resend, (threading.get_ident(),))
            return
        self._is_delayed = False
        self._default(number, frame)

    def _resend(self, thread: int) -> None:
        while True:
            time.sleep(_RESEND_INTERVAL)
            if not self._is_delayed:
                return
            self._is_resent = True
            if hasattr(signal, "pthread_kill"):
                signal.pthread_kill(thread, signal.SIGINT)
            else:
                _thread.interrupt_main()
