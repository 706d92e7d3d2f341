"""The memory limit for all compiled graphs of a process, ``FLOWMX_GRAPH_CACHE``.

A block or a module has a :class:`GraphCache` with one graph for each combination of shapes. Nothing is dropped while
all caches together are within the limit. Beyond it, the largest cache drops a random eighth of its graphs, so a program
that cycles through slightly more shapes than fit still hits most of them. Each cache always keeps its most recently
used graphs.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from random import Random
from typing import Any, Protocol
from weakref import WeakSet

from flowmx import forks, settings

ALWAYS = 16
"""The number of most recently used graphs that each cache always keeps."""
_VALUE_BYTES = 8 << 10
"""Bytes that a compiled graph takes per value, without arrays: nodes, steps, and machine code."""

_log = logging.getLogger("flowmx.graph")
_random = Random()
_lock = forks.lock()
tick: Callable[[], int] = itertools.count(1).__next__
"""Return a number larger than all earlier ones, for :attr:`CachedGraph.used`."""


class CachedGraph(Protocol):
    """A graph in a cache.

    Attributes:
        used: the value of :data:`tick` at its last use.
    """

    used: int

    @property
    def held_bytes(self) -> int:
        """Approximate bytes that the graph holds, without memory that it shares with others."""


def bytes_of(values: int) -> int:
    """Return the approximate bytes of a compiled graph with that many values, without its arrays."""
    return values * _VALUE_BYTES


class GraphCache:
    """The compiled graphs of one owner, by input shapes and types.

    Args:
        name: the owner's name, for messages.

    Attributes:
        graphs: the graphs; after a lookup, the caller sets :attr:`CachedGraph.used`.
        dropped: the number of graphs dropped so far.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.graphs: dict[Any, Any] = {}
        self.dropped = 0
        with _lock:  # another thread may iterate over the caches
            _caches.add(self)

    def add(self, key: object, graph: CachedGraph) -> None:
        """Add a graph, and drop others if all graphs of the process exceed the memory limit."""
        graph.used = tick()
        self.graphs[key] = graph
        make_room()

    @property
    def held_bytes(self) -> int:
        """Bytes that the graphs hold."""
        return sum(graph.held_bytes for graph in list(self.graphs.values()))

    def drop_some(self) -> int:
        """Drop some of the graphs that were not used recently; return their number."""
        old = sorted(self.graphs.items(), key=lambda row: row[1].used)[:-ALWAYS]
        chosen = _random.sample(old, -(-len(old) // 8))
        for key, _ in chosen:
            self.graphs.pop(key, None)
        is_first, self.dropped = not self.dropped, self.dropped + len(chosen)
        if is_first:  # the doctor reports the later ones
            _log.warning("%s", self.warning())
        return len(chosen)

    def warning(self) -> str:
        """Return a warning with the cause and the remedy."""
        return (
            f"compiled graphs of {self.name} are dropped ({self.dropped} so far) and compiled again when their shapes "
            f"come back, because all graphs together take more than {settings.get().graph_cache} MiB: raise "
            "FLOWMX_GRAPH_CACHE, or give inputs fewer shapes (pad lengths, or sort them into buckets)"
        )


_caches: WeakSet[GraphCache] = WeakSet()


def caches() -> list[GraphCache]:
    """Return all caches of the process."""
    with _lock:
        return list(_caches)


def make_room() -> None:
    """Drop graphs until the rest is within the limit, or no cache has more than ``ALWAYS``."""
    limit = settings.get().graph_cache << 20
    sizes = {cache: cache.held_bytes for cache in caches()}
    while sum(sizes.values()) > limit:
        candidates = [cache for cache in sizes if len(cache.graphs) > ALWAYS]
        if not candidates:
            return
        largest = max(candidates, key=sizes.__getitem__)
        with _lock:
            if not any(cache.dropped for cache in sizes):
                _register_report()
            largest.drop_some()
        sizes[largest] = largest.held_bytes


def _register_report() -> None:
    from flowmx.observability import flight  # imported on first use

    flight.describe("graphs", report)


def report() -> dict[str, Any]:
    """Return the flight recorder's section on compiled graphs."""
    every = caches()
    return {
        "graphs": sum(len(cache.graphs) for cache in every), "bytes": sum(cache.held_bytes for cache in every),
        "limit": settings.get().graph_cache << 20, "dropped": sum(cache.dropped for cache in every),
        "warnings": [cache.warning() for cache in every if cache.dropped], "kind": "dropped graphs",
    }  # fmt: skip
