"""Which checkpoint the workers of a job go on from: the newest that all of them have.

The job's *position* is a value that all workers can report and read; the greatest reported counts. A worker reports its
newest place, encoded so that an older place is a greater value; all then look for the oldest place that was
reported, or for the next older one that they have, and report that, until a round changes nothing. Positions of the
training that follows are greater than all of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowmx.kvstore.worker.session import Session

Place = tuple[int, int]

_LATEST = 2**40
_NONE: Place = (-1, 0)
"""The place of a worker without checkpoints, before all others."""


async def newest_common(session: Session, places: Sequence[Place], fits: int, number: int) -> Place | None:
    """The newest place that all workers have.

    Args:
        session: the job, on whose loop this runs.
        places: those that this worker has, the newest first.
        fits: how many trainings the program has begun.
        number: which of the program's agreements this is.

    Returns:
        It, or None; where the job has begun the training already, the newest place of this worker.
    """
    name = f"agreement {number}"
    reached = await session.position()
    if session.node.is_past(f"{name}, told 1") or (reached and reached[0] > fits):
        return places[0] if places else None
    oldest, turn = (_LATEST, 0), 0
    while True:
        turn += 1
        own = newest_until(places, oldest)
        await session.position(_position(own, fits, number))
        await session.node.barrier(f"{name}, told {turn}")
        found = _place(await session.position(), number)
        await session.node.barrier(f"{name}, read {turn}")  # before anyone tells more
        if found == oldest:
            return None if found == _NONE else found
        oldest = found


def newest_until(places: Sequence[Place], latest: Place) -> Place:
    """The newest of places that is not after another one."""
    return next((tuple(place) for place in places if tuple(place) <= latest), _NONE)  # type: ignore[return-value]


def _position(place: Place, fits: int, number: int) -> list[int]:
    return [fits, 2 * number * _LATEST + _LATEST - place[0], _LATEST - place[1]]


def _place(position: Sequence[int], number: int) -> Place:
    return 2 * number * _LATEST + _LATEST - position[1], _LATEST - position[2]
