"""Growth of memory by line: arrays that stay, counted only during an observation."""

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

_LEAST = 4
"""Arrays by which a line must have grown to be named."""


class Growth:
    """The arrays that operations make from now on, by the user's line, until :meth:`stop`."""

    def __init__(self) -> None:
        # A plain list, since threads append while another counts.
        self._made: list[tuple[ref[Storage], Origin]] = []
        self._counts: list[Counter[Any]] = []
        self._bytes: Counter[Any] = Counter()
        self._places: dict[Any, Origin] = {}
        _open.append(self)
        engine.use_watch(_watch, "lines")

    def stop(self) -> None:
        """Stop looking at operations."""
        if self in _open:
            _open.remove(self)
        if not _open:
            engine.use_watch(None, "lines")

    def note(self, storage: ref[Storage], origin: Origin) -> None:
        """Note the line of an operation that is about to make arrays."""
        self._made.append((storage, origin))

    def count(self) -> None:
        """Count the current arrays, by line."""
        counts: Counter[Any] = Counter()
        self._bytes.clear()
        made, self._made = self._made, []
        for each, origin in made:
            storage = each()
            if storage is None:
                continue
            self._made.append((each, origin))
            key = origin[:2]
            counts[key] += 1
            self._bytes[key] += math.prod(storage.shape) * storage.dtype.itemsize
            self._places.setdefault(key, origin)
        self._counts.append(counts)

    def found(self) -> list[dict[str, Any]]:
        """The lines whose arrays were more at each count, the most bytes first."""
        last = self._counts[-1] if self._counts else Counter()
        found: list[dict[str, Any]] = []
        for key, count in last.items():
            row = [counts[key] for counts in self._counts]
            half = row[: len(row) // 2 + 1]
            if all(a < b for a, b in pairwise(row)) and count - half[-1] >= _LEAST:
                place = self._places[key]
                found.append({"line": describe(place), "arrays": count, "bytes": self._bytes[key], "counts": row})
        return sorted(found, key=lambda each: -int(each["bytes"]))[:8]


_open: list[Growth] = []
"""Those that count now: several may look at this process at one time."""


def _watch(op: Operation) -> None:
    for variable in op.writes:
        if isinstance(variable, Storage) and variable.array is None and op.origin is not None:
            storage = ref(variable)
            for each in _open:
                each.note(storage, op.origin)
