"""Checks the answers that a job's workers received: no push is lost or applied twice, and all agree on one order.

This module does no I/O.

A ledger is a list of records (mappings) that :mod:`tests.chaos.worker` writes. Their kinds are ``pushed`` (a push
begins), ``pulled`` and ``final`` (the content of an array: for each block the number of pushes of every writer),
``ready``, ``barrier``, ``lag``, ``failed`` and ``ended``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["check"]

Record = Mapping[str, Any]


class Observation(NamedTuple):
    """A worker's observation of one block.

    Attributes:
        writer: the observer.
        number: the number of this writer's pushes that had been acknowledged by then.
        start: the time of the request.
        end: the time of the answer.
        counts: the number of pushes in the block, by writer.
    """

    writer: int
    number: int
    start: float
    end: float
    counts: tuple[int, ...]

    @property
    def observer(self) -> str:
        """The writer and its progress, for messages."""
        return f"writer {self.writer} after its push {self.number}"


def check(records: Iterable[Record], mode: str, bound: int = 0) -> list[str]:
    """Return the violations that the ledgers prove; the list is empty if there are no violations.

    Args:
        records: the records of all ledgers.
        mode: ``"sync"``, ``"async"`` or ``"stale"``.
        bound: the maximal staleness in mode ``"stale"``.
    """
    entries = list(records)
    problems = [f"{record['key']}: {text}" for record in entries for text in record.get("errors", ())]
    problems += [
        f"the lag was {r['lag']}, above {bound}" for r in entries if mode == "stale" and r.get("lag", 0) > bound
    ]
    pushed = _pushed(entries)
    starts = {record["writer"]: record["starts"] for record in entries if record["kind"] == "ready"}
    for (key, block), observations in _observations(entries).items():
        texts = itertools.chain(
            _find_premature(observations, pushed.get(key, {})),
            _find_lost(observations),
            _find_contradictions(observations),
            _find_wrong_rounds(observations, {writer: start[key][block] for writer, start in starts.items()})
            if mode == "sync"
            else (),
        )
        problems += [f"{key}, block {block}: {text}" for text in texts]
    return problems


def _pushed(records: Sequence[Record]) -> dict[str, dict[int, list[tuple[int, float]]]]:
    """Return the number and the start time of each push, by key and writer."""
    pushes: dict[str, dict[int, list[tuple[int, float]]]] = {}
    for record in records:
        if record["kind"] == "pushed":
            pushes.setdefault(record["key"], {}).setdefault(record["writer"], []).append(
                (record["number"], record["time"])
            )
    return pushes


def _observations(records: Sequence[Record]) -> dict[tuple[str, int], list[Observation]]:
    observations: dict[tuple[str, int], list[Observation]] = {}
    for record in records:
        if record["kind"] in ("pulled", "final"):
            for block, counts in enumerate(record["counts"]):
                observation = Observation(
                    record["writer"], record["number"], record["start"], record["time"], tuple(counts)
                )
                observations.setdefault((record["key"], block), []).append(observation)
    return observations


def _find_premature(
    observations: Sequence[Observation], pushed: Mapping[int, Sequence[tuple[int, float]]]
) -> Iterator[str]:
    """Find observations of pushes that had not begun."""
    for observation in observations:
        for writer, count in enumerate(observation.counts):
            begun = max((number for number, time in pushed.get(writer, ()) if time <= observation.end), default=0)
            if count > begun:
                yield f"{observation.observer} saw {count} pushes of writer {writer}, which had made {begun}"


def _find_lost(observations: Sequence[Observation]) -> Iterator[str]:
    """Find acknowledged pushes that a later observation does not contain."""
    for earlier, later in itertools.product(observations, observations):
        if (earlier.end <= later.start or earlier is later) and later.counts[earlier.writer] < earlier.number:
            yield (
                f"push {earlier.number} of writer {earlier.writer} was acknowledged, and then {later.observer} saw "
                f"{later.counts[earlier.writer]} of its pushes"
            )


def _find_contradictions(observations: Sequence[Observation]) -> Iterator[str]:
    """Find pairs of observations that no order of the pushes explains, or whose later one has fewer pushes."""
    for one, other in itertools.combinations(observations, 2):
        pairs = list(zip(one.counts, other.counts, strict=True))
        more, less = any(a > b for a, b in pairs), any(a < b for a, b in pairs)
        backwards = (more and one.end <= other.start) or (less and other.end <= one.start)
        if (more and less) or backwards:
            yield f"{one.observer} saw {one.counts}, and {other.observer} saw {other.counts}: no order explains both"


def _find_wrong_rounds(observations: Sequence[Observation], starts: Mapping[int, int]) -> Iterator[str]:
    """Find synchronous rounds that do not contain exactly the expected pushes.

    Push n of a writer belongs to round start + n. After its push n, a writer sees all of this round.
    """
    totals = {writer: max((observation.counts[writer] for observation in observations), default=0) for writer in starts}
    for observation in observations:
        counts = observation.counts
        current = max((starts[writer] + counts[writer] for writer in starts if counts[writer]), default=0)
        expected = starts[observation.writer] + observation.number
        if current > expected and observation.number and _pushed_later(observation, observations):
            yield f"{observation.observer} saw round {current}, expected {expected}"
        for writer, start in starts.items():
            due = min(current - start, totals[writer])
            if counts[writer] < due:
                yield (
                    f"{observation.observer} saw round {current} with {counts[writer]} pushes of writer {writer}, "
                    f"expected {due}"
                )


def _pushed_later(observation: Observation, observations: Sequence[Observation]) -> bool:
    """Return whether the observer pushed again afterwards, so that no round can have passed without it."""
    return any(other.writer == observation.writer and other.number > observation.number for other in observations)
