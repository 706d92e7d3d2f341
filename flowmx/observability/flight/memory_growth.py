"""Memory growth by source line: live arrays are counted, but only during an observation."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any
from weakref import ref

from flowmx.engine import Operation, Origin, describe
from flowmx.engine.runtime import engine
from flowmx.ndarray.core import Storage

__all__ = ["Growth"]

_MIN_ARRAYS = 4
"""Minimum number of arrays by which a line must have grown to be reported."""


class Growth:
    """Counts the arrays that operations allocate from now on until :meth:`stop`, by the user's line."""

    def __init__(self) -> None:
        # A plain list, since other threads append during a count.
        self._arrays: list[tuple[ref[Storage], Origin]] = []
        self._counts: list[Counter[Any]] = []
        self._bytes: Counter[Any] = Counter()
        self._places: dict[Any, Origin] = {}
        _open.append(self)
        engine.use_watch(_watch, "lines")

    def stop(self) -> None:
        """Stop counting."""
        if self in _open:
            _open.remove(self)
        if not _open:
            engine.use_watch(None, "lines")

    def add(self, storage: ref[Storage], origin: Origin) -> None:
        """Record the line of an operation that is about to allocate an array."""
        self._arrays.append((storage, origin))

    def count(self) -> None:
        """Count the arrays that are alive, by line."""
        counts: Counter[Any] = Counter()
        self._bytes.clear()
        arrays, self._arrays = self._arrays, []
        for reference, origin in arrays:
            storage = reference()
            if storage is None:
                continue
            self._arrays.append((reference, origin))
            key = origin[:2]
            counts[key] += 1
            self._bytes[key] += math.prod(storage.shape) * storage.dtype.itemsize
            self._places.setdefault(key, origin)
        self._counts.append(counts)

    def growing_lines(self) -> list[dict[str, Any]]:
        """Return the lines that had more arrays at each count than at the one before, the most bytes first."""
        last = self._counts[-1] if self._counts else Counter()
        rows: list[dict[str, Any]] = []
        for key, count in last.items():
            series = [counts[key] for counts in self._counts]
            half = series[: len(series) // 2 + 1]
            if all(a < b for a, b in pairwise(series)) and count - half[-1] >= _MIN_ARRAYS:
                place = self._places[key]
                rows.append({"line": describe(place), "arrays": count, "bytes": self._bytes[key], "counts": series})
        return sorted(rows, key=lambda row: -int(row["bytes"]))[:8]


_open: list[Growth] = []
"""Counters of the observations that are under way."""


def _watch(op: Operation) -> None:
    for variable in op.writes:
        if isinstance(variable, Storage) and variable.array is None and op.origin is not None:
            storage = ref(variable)
            for growth in _open:
                growth.add(storage, op.origin)
