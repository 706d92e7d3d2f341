"""Requests to other nodes, recorded by their callers, for the flight recorder and the profiler."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic, perf_counter
from typing import Any, NamedTuple

__all__ = ["Exchange", "exchange", "last", "listeners", "under_way"]

_MAX_ENDED = 1024

Listener = Callable[[str, str, float, float, Mapping[str, Any]], None]


class Exchange(NamedTuple):
    """A request to another node.

    Attributes:
        peer: name of that node.
        operation: what is requested.
        facts: further values, such as ``keys`` and ``bytes``.
        since: time of the request, by :func:`time.monotonic`.
        seconds: duration; None until it ends.
    """

    peer: str
    operation: str
    facts: Mapping[str, Any]
    since: float
    seconds: float | None = None


listeners: list[Listener] = []
"""Called when a request ends, with peer, operation, start and end (:func:`time.perf_counter`), and facts."""

under_way: dict[int, Exchange] = {}
"""Requests that have not ended, oldest first."""

last: deque[Exchange] = deque(maxlen=_MAX_ENDED)
"""The last requests that have ended, oldest first."""

_numbers = itertools.count()


@contextmanager
def exchange(peer: str, operation: str, **facts: object) -> Iterator[None]:
    """Record a request that is under way while the context lasts.

    Args:
        peer: name of the node, such as ``"server 0"``.
        operation: what is requested.
        facts: further values, such as ``keys`` and ``bytes``.
    """
    number, start = next(_numbers), perf_counter()
    request = under_way[number] = Exchange(peer, operation, facts, monotonic())
    try:
        yield
    finally:
        del under_way[number]
        end = perf_counter()
        last.append(request._replace(seconds=end - start))
        for listener in listeners:
            listener(peer, operation, start, end, facts)
