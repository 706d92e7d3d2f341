"""The one place that decides how a node ended, from what is known of its end. Pure.

A node sees its own end as an exception that leaves its program, its launcher as an exit status or a signal. Only a
program that came to its end, or left by its own word, is missed by nobody; everything else is a failure, which ends a
job under the policy ``stop``, and under ``elastic`` frees the node's place.

==========================================  ==========================================================
what is known                               how the node ended
==========================================  ==========================================================
``sys.exit()``, ``sys.exit(0)``, the end    finished
an exception, ``sys.exit("text")``          failed: status 1
``sys.exit(3)``, ``os._exit(3)``            failed: that status
SIGTERM, heeded in order                    failed: status 143, as a shell has it
SIGINT, SIGKILL and all other signals       failed: 128 and the signal's number
status 0, but it never said goodbye         failed: status 1, since what it had pushed last may be missing
==========================================  ==========================================================
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["TERMINATED", "Evidence", "ProgramFailed", "Verdict", "describe", "judge", "shell_status"]

TERMINATED = 128 + signal.SIGTERM
"""The exit status of a program that SIGTERM has ended in order."""


class ProgramFailed(Exception):
    """A program's failure that was judged already, with the reason as its text."""


@dataclass(frozen=True)
class Evidence:
    """Facts about a node's end; None stands for what is not known.

    Args:
        status: the exit status of its process, negative for a signal.
        error: the exception that left its program.
        left: False where the process ended while its node still was a member of the job.
    """

    status: int | None = None
    error: BaseException | None = None
    left: bool | None = None


class Verdict(NamedTuple):
    """The judgement of a node's end.

    Attributes:
        why: the reason of a failure; empty where there is none.
        status: as a shell has it.
    """

    why: str = ""
    status: int = 0

    @property
    def failed(self) -> bool:
        """True for a failure."""
        return self.status != 0


def judge(evidence: Evidence) -> Verdict:
    """Decide how a node ended, by the table of this module."""
    if evidence.error is not None:
        return _of_error(evidence.error)
    if evidence.status:
        return Verdict(describe(evidence.status), shell_status(evidence.status))
    if evidence.left is False:
        return Verdict("exit status 0, without leaving the job: what it pushed last may be missing", 1)
    return Verdict()


def _of_error(error: BaseException) -> Verdict:
    if isinstance(error, SystemExit):
        code = error.code
        if code is None or isinstance(code, int):
            return judge(Evidence(status=code))
        return Verdict(f"exit status 1: {code}"[:1000], 1)
    if isinstance(error, KeyboardInterrupt):
        return judge(Evidence(status=-signal.SIGINT))
    if isinstance(error, asyncio.CancelledError):
        return Verdict("its task was cancelled", 1)
    if isinstance(error, ProgramFailed):
        return Verdict(str(error), 1)
    return Verdict(f"{type(error).__name__}: {error}"[:1000], 1)


def shell_status(status: int) -> int:
    """A process's exit status as a shell has it, where a negative one is a signal."""
    return status if status >= 0 else 128 - status


def describe(status: int) -> str:
    """Describe an exit status as text; a negative one is the signal that killed the process."""
    if status == TERMINATED:
        return f"asked to end by SIGTERM (exit status {status})"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
