"""The end of the program: the exception that ended it, and an orderly shutdown on SIGTERM.

On SIGTERM a program finishes its training step. Loops that write checkpoints use :func:`defer_shutdown` and call
:func:`shut_down` at a suitable point; other programs end before their next step. Components register functions with
:func:`delay_shutdown_while` that report unfinished work; without such work the program ends immediately. After
``FLOWMX_LEAVE_TIMEOUT`` seconds, or at a second signal, it is terminated.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import opcode
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from flowmx import settings
from flowmx.comm.exit_reason import TERMINATED, classify_exit

__all__ = [
    "defer_shutdown", "delay_shutdown_while", "end_as_failed", "ended_by", "fail", "install_sigterm_handler",
    "is_shutdown_deferred", "is_terminating", "record_exit_status", "shut_down",
]  # fmt: skip

log = logging.getLogger("flowmx")

RETURNS = {opcode.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in opcode.opmap}


class _Program:
    """The state of this program.

    Attributes:
        main: the outermost frame of the main thread.
        code: the last argument of ``sys.exit`` in the main thread.
        terminating: set once SIGTERM was received.
        failed: whether the program has to exit with a failure status.
        deferrals: number of loops that end the program themselves.
        unfinished: functions that return whether there is unfinished work.
    """

    def __init__(self) -> None:
        self.main: FrameType | None = None
        self.code: object = None
        self.terminating = threading.Event()
        self.failed = False
        self.deferrals = 0
        self.unfinished: list[Callable[[], bool]] = []


_program = _Program()


# -- exit reason -----------------------------------------------------------------------------------------------


def record_exit_status() -> None:
    """Record the argument of ``sys.exit``, which Python does not provide to exit handlers."""
    if _program.main is None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None and frame.f_back is not None:
            frame = frame.f_back
        _program.main = frame
        sys.exit = _recording_exit(sys.exit)  # type: ignore[assignment]


def _recording_exit(exit_: Callable[[Any], NoReturn]) -> Callable[[Any], NoReturn]:
    def exit(status: object = None, /) -> NoReturn:
        """Exit the interpreter by raising SystemExit(status)."""
        if threading.current_thread() is threading.main_thread():
            _program.code = status
        exit_(status)

    return exit


def ended_by() -> BaseException | None:
    """Return the exception that ended the program, or None after a normal end. For exit handlers.

    The status is None for a ``SystemExit`` that was not raised by ``sys.exit``.
    """
    main = _program.main
    if main is not None and main.f_lasti >= 0 and main.f_code.co_code[main.f_lasti] in RETURNS:
        return None
    error: BaseException | None = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error or SystemExit(_program.code)


def fail() -> None:
    """Make the program exit with status 1 instead of 0, because its job has failed without an exception."""
    _program.failed = True


def end_as_failed() -> None:
    """Exit with status 1 if :func:`fail` was called; the last exit handler."""
    if _program.failed and not classify_exit(error=ended_by()).failed:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(1)


# -- SIGTERM ---------------------------------------------------------------------------------------------------


def install_sigterm_handler() -> None:
    """Install the handler of SIGTERM, unless there is another one; do nothing outside the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        record_exit_status()
        signal.signal(signal.SIGTERM, _on_sigterm)


def delay_shutdown_while(is_unfinished: Callable[[], bool]) -> None:
    """Delay the shutdown on SIGTERM while a function returns True; its owner then calls :func:`shut_down`."""
    _program.unfinished.append(is_unfinished)


def is_terminating() -> bool:
    """Return whether SIGTERM was received."""
    return _program.terminating.is_set()


def is_shutdown_deferred() -> bool:
    """Return whether a loop shuts down the program itself."""
    return _program.deferrals > 0


@contextlib.contextmanager
def defer_shutdown() -> Iterator[None]:
    """Leave the shutdown on SIGTERM to the code in a ``with`` block, which must call :func:`shut_down` soon."""
    _program.deferrals += 1
    try:
        yield
    finally:
        _program.deferrals -= 1


def shut_down() -> NoReturn:
    """End the program by SystemExit with status 143, as SIGTERM requests."""
    log.warning("SIGTERM received: this program is shutting down")
    _program.code = TERMINATED
    raise SystemExit(TERMINATED)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    if is_terminating():
        shut_down()
    _program.terminating.set()
    if not is_shutdown_deferred() and not any(is_unfinished() for is_unfinished in _program.unfinished):
        shut_down()
    timeout = settings.get().leave_timeout
    log.warning("SIGTERM received: finishing the current step, for at most %g s", timeout)
    threading.Thread(target=_enforce_timeout, args=(timeout,), name="flowmx-end", daemon=True).start()


def _enforce_timeout(timeout: float) -> None:
    """Enforce the timeout: by a second signal, which the program may ignore, and then by terminating it."""
    never = threading.Event()
    never.wait(0.75 * timeout)
    _thread.interrupt_main(signal.SIGTERM)
    never.wait(0.25 * timeout)
    log.error("this program did not shut down within %g s of SIGTERM", timeout)
    os._exit(TERMINATED)
