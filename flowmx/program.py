"""The end of this program: the exception that ended it, and SIGTERM, which asks it to end in order.

SIGTERM lets a program finish its step: training loops that write checkpoints call :func:`hold`, and end at a place of
their own choice by :func:`leave`; other programs end where their next step would begin. Whoever has something to finish
says so by :func:`finish_first`; where nobody does, the program ends at once. After ``FLOWMX_LEAVE_TIMEOUT`` seconds, or
at a second signal, it ends wherever it is.
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
from flowmx.comm.verdict import TERMINATED, Evidence, judge

__all__ = [
    "asked_to_end", "end_as_failed", "ended_by", "fail", "finish_first", "heed_sigterm", "held", "hold", "leave",
    "watch",
]  # fmt: skip

log = logging.getLogger("flowmx")

RETURNS = {opcode.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in opcode.opmap}


class _Program:
    """The state of this program.

    Attributes:
        main: the outermost frame of the main thread.
        code: what ``sys.exit`` was last given there.
        asked: set once SIGTERM has come.
        failed: whether the program is to end as failed, whatever its own status is.
        holds: how many loops end the program by themselves.
        unfinished: functions that tell whether something is to be finished first.
    """

    def __init__(self) -> None:
        self.main: FrameType | None = None
        self.code: object = None
        self.asked = threading.Event()
        self.failed = False
        self.holds = 0
        self.unfinished: list[Callable[[], bool]] = []


_program = _Program()


# -- how it ended ----------------------------------------------------------------------------------------------


def watch() -> None:
    """Note from now on with what ``sys.exit`` ends the program; Python itself tells nobody at the exit."""
    if _program.main is None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None and frame.f_back is not None:
            frame = frame.f_back
        _program.main = frame
        sys.exit = _exit_noted(sys.exit)  # type: ignore[assignment]


def _exit_noted(exit_: Callable[[Any], NoReturn]) -> Callable[[Any], NoReturn]:
    def exit(status: Any = None, /) -> NoReturn:
        """Exit the interpreter by raising SystemExit(status)."""
        if threading.current_thread() is threading.main_thread():
            _program.code = status
        exit_(status)

    return exit


def ended_by() -> BaseException | None:
    """The exception that ended the program; None where it came to its end. For exit handlers.

    A ``SystemExit`` that was raised by other means than ``sys.exit`` has status None here.
    """
    main = _program.main
    if main is not None and main.f_lasti >= 0 and main.f_code.co_code[main.f_lasti] in RETURNS:
        return None
    error: BaseException | None = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error or SystemExit(_program.code)


def fail() -> None:
    """Have the program end with status 1 where it would end with 0: its job has failed, though no exception says so."""
    _program.failed = True


def end_as_failed() -> None:
    """End the program with status 1 where :func:`fail` was called; the last of all exit handlers."""
    if _program.failed and not judge(Evidence(error=ended_by())).failed:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(1)


# -- SIGTERM ---------------------------------------------------------------------------------------------------


def heed_sigterm() -> None:
    """Let SIGTERM end the program in order, if nothing else is arranged; does nothing outside the main thread."""
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        watch()
        signal.signal(signal.SIGTERM, _on_sigterm)


def finish_first(unfinished: Callable[[], bool]) -> None:
    """Have SIGTERM wait for :func:`leave` while a function returns True."""
    _program.unfinished.append(unfinished)


def asked_to_end() -> bool:
    """True once SIGTERM has come."""
    return _program.asked.is_set()


def held() -> bool:
    """True while a loop ends the program by itself."""
    return _program.holds > 0


@contextlib.contextmanager
def hold() -> Iterator[None]:
    """Have the program end where the code in this context calls :func:`leave`, which it does soon and often."""
    _program.holds += 1
    try:
        yield
    finally:
        _program.holds -= 1


def leave() -> NoReturn:
    """End the program as SIGTERM asked for: by SystemExit with status 143."""
    log.warning("asked to end by SIGTERM: this program ends in order")
    _program.code = TERMINATED
    raise SystemExit(TERMINATED)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    if asked_to_end():
        leave()
    _program.asked.set()
    if not held() and not any(unfinished() for unfinished in _program.unfinished):
        leave()
    timeout = settings.get().leave_timeout
    log.warning("asked to end by SIGTERM: the step under way is finished first, for at most %g s", timeout)
    threading.Thread(target=_insist, args=(timeout,), name="flowmx-end", daemon=True).start()


def _insist(timeout: float) -> None:
    """End the program in time: by a second signal to it, which it may be deaf to, and then by force."""
    never = threading.Event()
    never.wait(0.75 * timeout)
    _thread.interrupt_main(signal.SIGTERM)
    never.wait(0.25 * timeout)
    log.error("this program could not end in order within %g s of SIGTERM", timeout)
    os._exit(TERMINATED)
