"""A server's log messages about workers that had fewer batches than others."""

from __future__ import annotations

import logging

from flowmx.comm.node import Node
from flowmx.comm.view import Member
from flowmx.kvstore.server.callers import identity
from flowmx.kvstore.server.modes import Sync
from flowmx.kvstore.server.state_machine import Core
from flowmx.kvstore.wait_log import UNEVEN_ADVICE

__all__ = ["UnevenBatches"]

log = logging.getLogger("flowmx.kvstore")


class UnevenBatches:
    """Logs which workers of a synchronous job ended early: rounds proceed without their gradients.

    A worker that waits at a barrier, or has left the job, no longer counts, and its last push stays at an earlier round
    than the part. A worker that counts again continues from the current round, so :meth:`check` must run before that.

    Args:
        node: this server in its job.
        core: its state machine.
    """

    def __init__(self, node: Node, core: Core) -> None:
        self._node, self._core = node, core
        self._logged: set[tuple[str, int]] = set()

    def check(self, is_last: bool = True) -> None:
        """Log workers that have ended early: once while the others train, and once for each number of missed rounds.

        Args:
            is_last: whether no more rounds follow without the workers that have ended.
        """
        if not isinstance(self._core.state.mode, Sync):
            return
        members = {identity(member.id, member.incarnation): member for member in self._node.view.members}
        for worker, rounds in self._missed_rounds().items():
            message = worker, rounds if is_last else 0
            if worker in members and members[worker].state != "gone" and message not in self._logged:
                self._logged.add(message)
                self._log(members[worker], rounds, is_last)

    def _missed_rounds(self) -> dict[str, int]:
        """Return the number of rounds without each worker that does not count, of the part with the most."""
        state, missed = self._core.state, dict[str, int]()
        for slot in state.slots.values():
            for worker in slot.marks.keys() - slot.counted.keys() if slot.part.home in state.active else ():
                missed[worker] = max(missed.get(worker, 0), slot.round - slot.marks[worker])
        return {worker: rounds for worker, rounds in missed.items() if rounds}

    def _log(self, member: Member, rounds: int, is_last: bool) -> None:
        others = [other for other in self._node.view.workers if other.id != member.id and other.state == "alive"]
        names = ", ".join(sorted(other.name for other in others))
        state = "has left the job" if member.state == "left" else "waits for the others"
        if is_last:
            log.warning(
                "%s ended early: it had %d %s fewer than other workers, whose last updates lack its gradients; %s",
                member.name, rounds, "batch" if rounds == 1 else "batches", UNEVEN_ADVICE,
            )  # fmt: skip
        else:
            log.warning(
                "%s ended early: it %s, and %s trains without its gradients; %s",
                member.name, state, names or "no other worker", UNEVEN_ADVICE,
            )  # fmt: skip
