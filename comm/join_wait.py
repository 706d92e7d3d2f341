"""The wait of a node for its place in a job: why it waits, and what to do about it."""

from __future__ import annotations

import logging

from flowmx.comm.errors import Refused
from flowmx.comm.node_errors import SchedulerGone

__all__ = ["JoinWait"]

_log = logging.getLogger("flowmx.comm")
_PATIENCE = 3.0
"""Seconds after which the log says why a node waits; a restarted node waits shorter than that."""


class JoinWait:
    """The wait of one node.

    Args:
        role: ``"worker"`` or ``"server"``.
        scheduler: the address of the scheduler.
        limit: seconds that the node waits.
    """

    def __init__(self, role: str, scheduler: str, limit: float) -> None:
        self._role, self._scheduler, self._limit = role, scheduler, limit
        self._is_logged = self._was_full = False

    def record(self, problem: Exception, seconds: float) -> None:
        """Record why the node has no place yet; the log says it once.

        Args:
            problem: the refusal of the scheduler, or why it could not be reached.
            seconds: how long the node has waited.
        """
        self._was_full = self._was_full or _is_full(problem)
        if seconds >= _PATIENCE and not self._is_logged:
            self._is_logged = True
            reason = f"{problem}: {self._advice()}" if _is_full(problem) else f"{problem}"
            _log.warning(
                "this %s waits up to %g s to join the job of the scheduler at %s: %s",
                self._role, self._limit, self._scheduler, reason,
            )  # fmt: skip

    def error(self, problem: Exception, seconds: float) -> Exception:
        """Return the error of a node that has waited too long.

        Args:
            problem: the last reason.
            seconds: the limit in its message.
        """
        if _is_full(problem):
            return Refused(f"{problem}: {self._advice()}", "full")
        if isinstance(problem, Refused):
            return problem
        if self._was_full:
            return SchedulerGone(
                f"the job of the scheduler at {self._scheduler} has ended, and it had no place for this {self._role}: "
                f"{self._advice()}"
            )
        return SchedulerGone(
            f"the scheduler at {self._scheduler} could not be reached for {seconds:g} s: {problem}. Start it (flowmx "
            "scheduler), or correct its address (FLOWMX_SCHEDULER, or DMLC_PS_ROOT_URI)"
        )

    def _advice(self) -> str:
        return (
            f"the job is complete without this process; to train with more {self._role}s, start all its processes with "
            f"a larger number (flowmx launch --{self._role}s, or FLOWMX_NUM_{self._role.upper()}S)"
        )


def _is_full(problem: Exception) -> bool:
    return isinstance(problem, Refused) and problem.kind == "full"
