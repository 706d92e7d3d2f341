"""A sample of a process's state, taken by :class:`flowmx.observability.dashboard.reader.Reader`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowmx.observability.dashboard.timeline import OpSpan

__all__ = ["Reading"]


class Reading(NamedTuple):
    """A sample of a process's state. Times are monotonic, in seconds.

    Attributes:
        at: time of the sample.
        executed: number of executed operations by actor.
        queued: number of queued operations by actor.
        launches: actors that only launch work.
        running: actor, name and start time of the running operations.
        ended: operations that have ended since the last reading.
        pending, pending_bytes: pending operations, and the bytes of their results.
        memory: used and total bytes by device (total 0: unknown).
        resident: resident bytes of the process.
        steps, samples: number of training steps and samples so far.
        lag: latency of the slowest event loop in seconds.
        exchanges: peer, bytes and seconds of requests to peers that have ended since the last reading.
        waiting: number of unanswered requests by peer.
        reports: registered reports, as :func:`flowmx.observability.flight.report_registry.reports` returns them.
        curves: generation, points and last value by training curve.
        about: further values to show.
    """

    at: float
    executed: Mapping[str, int] = {}
    queued: Mapping[str, int] = {}
    launches: Sequence[str] = ()
    running: Sequence[tuple[str, str, float]] = ()
    ended: Sequence[OpSpan] = ()
    pending: int = 0
    pending_bytes: int = 0
    memory: Mapping[str, tuple[int, int]] = {}
    resident: int = 0
    steps: int = 0
    samples: int = 0
    lag: float = 0.0
    exchanges: Sequence[tuple[str, int, float]] = ()
    waiting: Mapping[str, int] = {}
    reports: Mapping[str, Mapping[str, Any]] = {}
    curves: Mapping[str, tuple[int, Sequence[tuple[float, float]], float]] = {}
    about: Mapping[str, Any] = {}
