"""Agreement of a job's workers on a checkpoint: the newest one that all of them have.

The job's *position* is a value that all workers can report and read; the servers keep the greatest one. A worker
reports its newest checkpoint, encoded so that an older checkpoint has a greater position. Then every worker looks for
the oldest reported checkpoint, or its next older one, and reports that, until a round changes nothing. Positions in the
following training are greater than all of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowmx.kvstore.worker.session import Session

Checkpoint = tuple[int, int]

_LATEST = 2**40
_NONE: Checkpoint = (-1, 0)
"""Stands for no checkpoint; it is older than all others."""


async def newest_common(
    session: Session, checkpoints: Sequence[Checkpoint], fits: int, number: int
) -> Checkpoint | None:
    """Find the newest checkpoint that all workers have.

    Args:
        session: the session; this must run on its loop.
        checkpoints: the (epoch, batch) of this worker's checkpoints, the newest first.
        fits: the number of trainings that the program has begun.
        number: the number of this agreement within the program.

    Returns:
        The checkpoint, or None; if the job has already begun the training, the newest checkpoint of this worker.
    """
    name = f"agreement {number}"
    reached = await session.position()
    if session.node.is_past(f"{name}, reported 1") or (reached and reached[0] > fits):
        return checkpoints[0] if checkpoints else None
    oldest, turn = (_LATEST, 0), 0
    while True:
        turn += 1
        checkpoint = newest_until(checkpoints, oldest)
        await session.position(_position(checkpoint, fits, number))
        await session.node.barrier(f"{name}, reported {turn}")
        agreed = _checkpoint(await session.position(), number)
        await session.node.barrier(f"{name}, read {turn}")  # before any worker reports again
        if agreed == oldest:
            return None if agreed == _NONE else agreed
        oldest = agreed


def newest_until(checkpoints: Sequence[Checkpoint], latest: Checkpoint) -> Checkpoint:
    """Return the newest checkpoint that is not newer than `latest`."""
    return next(((epoch, batch) for epoch, batch in checkpoints if (epoch, batch) <= latest), _NONE)


def _position(checkpoint: Checkpoint, fits: int, number: int) -> list[int]:
    return [fits, 2 * number * _LATEST + _LATEST - checkpoint[0], _LATEST - checkpoint[1]]


def _checkpoint(position: Sequence[int], number: int) -> Checkpoint:
    return 2 * number * _LATEST + _LATEST - position[1], _LATEST - position[2]
