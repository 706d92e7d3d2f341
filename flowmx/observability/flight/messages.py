"""Requests to other nodes, noted by their callers: the flight recorder keeps them, the profiler shows them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic, perf_counter
from typing import Any, NamedTuple

__all__ = ["Exchange", "exchange", "last", "listeners", "under_way"]

_KEPT = 1024

Listener = Callable[[str, str, float, float, Mapping[str, Any]], None]


class Exchange(NamedTuple):
    """A request that has not been answered, or was; ``since`` is in seconds of :func:`time.monotonic`."""

    peer: str
    operation: str
    facts: Mapping[str, Any]
    since: float
    seconds: float | None = None


listeners: list[Listener] = []
"""Called for each request that has ended, with: peer, operation, start and end (:func:`time.perf_counter`), facts."""

under_way: dict[int, Exchange] = {}
"""Requests that have no answer yet, oldest first."""

last: deque[Exchange] = deque(maxlen=_KEPT)
"""The last requests that have ended."""

_numbers = itertools.count()


@contextmanager
def exchange(peer: str, operation: str, **facts: Any) -> Iterator[None]:
    """Say that a request is under way while the context lasts.

    Args:
        peer: who is asked, such as ``"server 0"``.
        operation: for what.
        facts: what else is known, such as ``keys`` and ``bytes``.
    """
    number, start = next(_numbers), perf_counter()
    made = under_way[number] = Exchange(peer, operation, facts, monotonic())
    try:
        yield
    finally:
        del under_way[number]
        end = perf_counter()
        last.append(made._replace(seconds=end - start))
        for listener in listeners:
            listener(peer, operation, start, end, facts)
