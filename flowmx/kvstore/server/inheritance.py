"""The values of an earlier job, from which a server's parts resume, out of the snapshots of its servers.

Where the two jobs differ in their number of servers, or in the order of their keys, a part of the new job is assembled
from pieces of the old job's parts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.kvstore.server.protocol import Part, Record
from flowmx.kvstore.server.snapshot import SavedRecord, SnapshotError
from flowmx.kvstore.server.store import KIND, States, Value
from flowmx.kvstore.shards import Key, Range
from flowmx.kvstore.spaces import format_key, local_key, space_of
from flowmx.kvstore.state_parts import join, merge_progress, merge_trees
from flowmx.ops.registry.operators import Array
from flowmx.optimizer import states_file

__all__ = ["Inheritance", "covers"]

log = logging.getLogger("flowmx.kvstore")


class Inheritance:
    """The records in the files of earlier jobs.

    Args:
        saved: all records in these files.
        optimizers: the description of the optimizer and its number, for each key space.
        complete: whether all files of these jobs are present; servers may also use separate folders, each on its
            machine's disk.
    """

    def __init__(
        self, saved: Iterable[SavedRecord] = (), optimizers: Mapping[str, tuple[Any, int]] | None = None,
        complete: bool = True,
    ) -> None:  # fmt: skip
        self._complete = complete
        self._kinds = {space: config["optimizer"] for space, (config, _) in (optimizers or {}).items() if config}
        self._by_key: dict[Key, dict[int, list[SavedRecord]]] = {}
        for piece in saved:
            self._by_key.setdefault(piece.record.part.key, {}).setdefault(piece.generation, []).append(piece)
        for generations in self._by_key.values():
            for generation, pieces in generations.items():
                generations[generation] = _newest(pieces)

    def check_optimizer(self, space: str, name: str) -> None:
        """Log a warning if an optimizer cannot use the saved states, because they are of another optimizer."""
        kind = self._kinds.get(space, name)
        if kind != name:
            log.warning("the snapshots have states of the optimizer %r; %r starts without them", kind, name)

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def claim(self, part: Part, span: Range | None) -> Record | None:
        """Return the initial state of a part, or None if the earlier jobs did not have the key.

        Args:
            part: the part.
            span: its elements, or None if the worker does not send them, so that only the same part is used.

        Raises:
            SnapshotError: the key had a different shape, or some of its elements are in no file.
        """
        generations = self._by_key.get(part.key)
        if generations is None:
            return None
        oldest = min(generations)
        for generation, pieces in sorted(generations.items(), reverse=True):
            if span is None:
                same = next((piece for piece in pieces if piece.record.part == part), None)
                if same is None:
                    continue
                return self._cut(part, [same], same.range or _whole_range(same))
            pieces = _with_ranges(pieces, span, complete=generation == oldest)
            placed = [piece for piece in pieces if piece.range is not None]
            exact = [piece for piece in placed if piece.range == span]
            if covers(piece.range for piece in placed if piece.range is not None) or (exact and not self._complete):
                _check_shape(part.key, placed, span)
                return self._cut(part, exact[:1] or [piece for piece in placed if _overlap(piece, span)], span)
        raise SnapshotError(
            f"the snapshots have only a part of key {format_key(part.key)}: files of some servers are missing. All "
            "servers need one folder that holds the files of all; to start over, use another folder"
        )

    def _cut(self, part: Part, pieces: Sequence[SavedRecord], span: Range) -> Record:
        """Make a record of a part from the pieces that have its elements."""
        pieces = sorted(pieces, key=lambda piece: piece.range or span)
        rounds = {piece.record.round for piece in pieces}
        if len(rounds) > 1:
            log.warning(
                "the parts of key %s were saved after %d to %d updates, and resume together",
                format_key(part.key), min(rounds), max(rounds),
            )  # fmt: skip
        values = [_within(piece.record.value.array, piece, span) for piece in pieces]
        array = np.concatenate(values).reshape(span.part_shape) if values else np.empty(span.part_shape, np.float32)
        states = _states(part.key, pieces, span, self._kinds.get(space_of(part.key), ""))
        return Record(part, 0, 1, min(rounds, default=0), {}, {}, {}, Value(array, states=states))


def covers(ranges: Iterable[Range]) -> bool:
    """Return whether ranges of one key cover all of its elements."""
    end, total = 0, -1
    for span in sorted(ranges):
        total = span.total
        if span.start > end:
            return False
        end = max(end, span.stop)
    return end == total


def _newest(pieces: Sequence[SavedRecord]) -> list[SavedRecord]:
    """Return the newest record of each part: the records of primary and backup may differ by a step."""
    best: dict[Part, SavedRecord] = {}
    for piece in pieces:
        part, best_so_far = piece.record.part, best.get(piece.record.part)
        if best_so_far is None:
            best[part] = piece
            continue
        newest = max(best_so_far, piece, key=lambda saved: (saved.record.term, saved.record.number))
        best[part] = newest._replace(range=newest.range or best_so_far.range or piece.range)
    return list(best.values())


def _with_ranges(pieces: Sequence[SavedRecord], span: Range, complete: bool) -> list[SavedRecord]:
    """Return pieces with their ranges; ranges that a file does not contain follow from the preceding pieces.

    Files of the first format have no ranges, nor have backups.

    Args:
        pieces: the pieces of one key.
        span: the range to assemble.
        complete: whether the pieces are all pieces of the key, so that their sizes add up to its size.
    """
    with_ranges = [piece for piece in pieces if piece.range is not None]
    if len(with_ranges) == len(pieces):
        return with_ranges
    placed, start = [], 0
    for number, piece in enumerate(sorted(pieces, key=lambda saved: saved.record.part.piece)):
        if piece.record.part.piece != number:
            return with_ranges
        stop = start + piece.record.value.array.size
        placed.append(piece._replace(range=Range(start, stop, span.shape)))
        start = stop
    if start != span.total:
        if with_ranges or not complete:
            return with_ranges
        # The shape of this range is rejected later.
        placed = [piece._replace(range=Range(0, start, (start,))) for piece in placed[:1]]
    return placed


def _whole_range(piece: SavedRecord) -> Range:
    """Return the range of a piece that is the whole key."""
    shape = piece.record.value.array.shape
    return Range(0, piece.record.value.array.size, shape)


def _check_shape(key: Key, pieces: Sequence[SavedRecord], span: Range) -> None:
    for piece in pieces:
        if piece.range is not None and piece.range.shape != span.shape:
            raise SnapshotError(
                f"key {format_key(key)} has the shape {list(piece.range.shape)} in the snapshots, expected "
                f"{list(span.shape)}: the snapshots are of another model. Use another folder"
            )


def _overlap(piece: SavedRecord, span: Range) -> bool:
    assert piece.range is not None
    empty = span.start == span.stop
    return empty or max(piece.range.start, span.start) < min(piece.range.stop, span.stop)


def _within(array: object, piece: SavedRecord, span: Range) -> Array:
    """Return the elements of a piece's array that are in a range."""
    begin = span.start if piece.range is None else piece.range.start
    end = span.stop if piece.range is None else piece.range.stop
    start, stop = max(begin, span.start), min(end, span.stop)
    return np.asarray(array).reshape(-1)[start - begin : max(start, stop) - begin]


def _states(whole: Key, pieces: Sequence[SavedRecord], span: Range, kind: str) -> States:
    """Return the optimizer's states of a part; empty where a piece has none."""
    key = local_key(whole)
    contents = [states_file.loads(piece.record.value.states) for piece in pieces if piece.record.value.states]
    if not contents or len(contents) != len(pieces):
        return States()
    progress: dict[str, object] = {"num_update": 0, "counts": []}
    for content in contents:
        progress = merge_progress(progress, content.progress)
    states: Mapping[Any, Any] = {}
    if all(key in content.states for content in contents):

        def cut(arrays: Sequence[object]) -> Any:
            sizes = [piece.record.value.array.size for piece in pieces]
            if join(arrays, sizes) is None:  # not one element per element of the weight
                return nd.from_numpy(np.array(arrays[0]))
            flat = np.concatenate([_within(array, piece, span) for array, piece in zip(arrays, pieces, strict=True)])
            return nd.from_numpy(flat.reshape(span.part_shape))

        states = {key: merge_trees([content.states[key] for content in contents], cut)}
    return States(states_file.dumps(states, {**progress, KIND: kind}, contents[0].optimizer))
