"""A sample of a process's state, as :class:`flowmx.observability.dashboard.reader.Reader` takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowmx.observability.dashboard.timeline import Ended

__all__ = ["Reading"]


class Reading(NamedTuple):
    """A sample of a process's state; times are seconds of one clock.

    Attributes:
        at: when.
        executed: operations that each actor has run so far.
        queued: operations that wait for each actor.
        launches: the actors that only launch work.
        running: actor, name and beginning of operations that run.
        ended: operations that have ended since the last reading.
        pending, pending_bytes: operations, and bytes of their results, that are not done.
        memory: of each device, bytes in use and in all (0: not known).
        resident: bytes of the process.
        steps, samples: of the training so far.
        lag: seconds that the slowest event loop takes to answer.
        exchanges: peer, bytes and seconds of requests to peers that have ended since the last reading.
        waiting: requests to each peer that have no answer.
        said: what parts of the program say, as :func:`flowmx.observability.flight.facts.said` gives it.
        curves: of each training curve its generation, points and last value.
        about: what else is shown as it is.
    """

    at: float
    executed: Mapping[str, int] = {}
    queued: Mapping[str, int] = {}
    launches: Sequence[str] = ()
    running: Sequence[tuple[str, str, float]] = ()
    ended: Sequence[Ended] = ()
    pending: int = 0
    pending_bytes: int = 0
    memory: Mapping[str, tuple[int, int]] = {}
    resident: int = 0
    steps: int = 0
    samples: int = 0
    lag: float = 0.0
    exchanges: Sequence[tuple[str, int, float]] = ()
    waiting: Mapping[str, int] = {}
    said: Mapping[str, Mapping[str, Any]] = {}
    curves: Mapping[str, tuple[int, Sequence[tuple[float, float]], float]] = {}
    about: Mapping[str, Any] = {}
