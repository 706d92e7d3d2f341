"""The only module that decides how a node ended. It does no I/O.

A node sees its own end as the exception that ends its program. Its launcher sees an exit status or a signal. A program
ends cleanly if it returns, or leaves the job with status 0. Everything else is a failure: it ends the job under the
policy ``stop``, and frees the node's place under ``elastic``.

==========================================  ==========================================================
observation                                 how the node ended
==========================================  ==========================================================
``sys.exit()``, ``sys.exit(0)``, the end    finished
an exception, ``sys.exit("text")``          failed: status 1
``sys.exit(3)``, ``os._exit(3)``            failed: that status
SIGTERM, handled by a clean shutdown        failed: status 143, as in a shell
SIGINT, SIGKILL and all other signals       failed: 128 plus the signal's number
status 0, but no leave message              failed: status 1, since its last pushes may be missing
==========================================  ==========================================================
"""

from __future__ import annotations

import asyncio
import signal
from typing import NamedTuple

__all__ = ["TERMINATED", "ExitReason", "ProgramFailed", "classify_exit", "describe", "shell_status"]

TERMINATED = 128 + signal.SIGTERM
"""The exit status of a program that SIGTERM has shut down cleanly."""


class ProgramFailed(Exception):
    """A program's failure whose reason is already known, and is the error's text."""


class ExitReason(NamedTuple):
    """The reason for a node's end.

    Attributes:
        why: the reason of a failure, or empty.
        status: the exit status, as in a shell.
    """

    why: str = ""
    status: int = 0

    @property
    def failed(self) -> bool:
        """True for a failure."""
        return self.status != 0


def classify_exit(
    *, status: int | None = None, error: BaseException | None = None, left: bool | None = None
) -> ExitReason:
    """Decide how a node ended, by the table of this module. None stands for an unknown fact.

    Args:
        status: the exit status of its process, negative for a signal.
        error: the exception that ended its program.
        left: False if its process ended while the node was still a member of the job.
    """
    if error is not None:
        return _classify_error(error)
    if status:
        return ExitReason(describe(status), shell_status(status))
    if left is False:
        return ExitReason("exit status 0 without leaving the job: its last pushes may be missing", 1)
    return ExitReason()


def _classify_error(error: BaseException) -> ExitReason:
    if isinstance(error, SystemExit):
        code = error.code
        if code is None or isinstance(code, int):
            return classify_exit(status=code)
        return ExitReason(f"exit status 1: {code}"[:1000], 1)
    if isinstance(error, KeyboardInterrupt):
        return classify_exit(status=-signal.SIGINT)
    if isinstance(error, asyncio.CancelledError):
        return ExitReason("its task was cancelled", 1)
    if isinstance(error, ProgramFailed):
        return ExitReason(str(error), 1)
    return ExitReason(f"{type(error).__name__}: {error}"[:1000], 1)


def shell_status(status: int) -> int:
    """Convert the exit status of a process, negative for a signal, into that of a shell."""
    return status if status >= 0 else 128 - status


def describe(status: int) -> str:
    """Describe an exit status as text; a negative one is the signal that killed the process."""
    if status == TERMINATED:
        return f"terminated by SIGTERM (exit status {status})"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
