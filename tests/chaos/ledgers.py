"""Compares the answers that the workers of a job got: nothing lost, nothing twice, one order for all. Pure.

Each record of a ledger is a mapping, as :mod:`tests.chaos.worker` writes them: ``pushed`` (a push begins), ``pulled``
and ``final`` (what an array had: for each block the pushes of every writer), ``ready``, ``failed``, ``ended``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["check"]

Record = Mapping[str, Any]


class Look(NamedTuple):
    """A worker's observation of one block.

    Attributes:
        writer: who looked.
        number: the number of its own pushes that had been acknowledged by then.
        since: when it asked.
        at: when the answer came.
        counts: by writer, the pushes in the block.
    """

    writer: int
    number: int
    since: float
    at: float
    counts: tuple[int, ...]

    @property
    def who(self) -> str:
        return f"writer {self.writer} after its push {self.number}"


def check(records: Iterable[Record], mode: str, bound: int = 0) -> list[str]:
    """The violations that the ledgers prove; an empty list where there are none.

    Args:
        records: of all ledgers.
        mode: ``"sync"``, ``"async"`` or ``"stale"``.
        bound: of the last.
    """
    found = list(records)
    problems = [f"{record['key']}: {text}" for record in found for text in record.get("odd", ())]
    problems += [f"the lag was {r['lag']}, above {bound}" for r in found if mode == "stale" and r.get("lag", 0) > bound]
    pushed = _pushed(found)
    starts = {record["writer"]: record["starts"] for record in found if record["kind"] == "ready"}
    for (key, block), looks in _looks(found).items():
        texts = itertools.chain(
            _invented(looks, pushed.get(key, {})),
            _lost(looks),
            _disordered(looks),
            _rounds(looks, {who: start[key][block] for who, start in starts.items()}) if mode == "sync" else (),
        )
        problems += [f"{key}, block {block}: {text}" for text in texts]
    return problems


def _pushed(records: Sequence[Record]) -> dict[str, dict[int, list[tuple[int, float]]]]:
    """By key and writer, the numbers of its pushes and when each began."""
    found: dict[str, dict[int, list[tuple[int, float]]]] = {}
    for record in records:
        if record["kind"] == "pushed":
            found.setdefault(record["key"], {}).setdefault(record["writer"], []).append(
                (record["number"], record["at"])
            )
    return found


def _looks(records: Sequence[Record]) -> dict[tuple[str, int], list[Look]]:
    found: dict[tuple[str, int], list[Look]] = {}
    for record in records:
        if record["kind"] in ("pulled", "final"):
            for block, counts in enumerate(record["counts"]):
                look = Look(record["writer"], record["number"], record["since"], record["at"], tuple(counts))
                found.setdefault((record["key"], block), []).append(look)
    return found


def _invented(looks: Sequence[Look], pushed: Mapping[int, Sequence[tuple[int, float]]]) -> Iterator[str]:
    """Observations of pushes that had not been made yet."""
    for look in looks:
        for writer, count in enumerate(look.counts):
            most = max((number for number, at in pushed.get(writer, ()) if at <= look.at), default=0)
            if count > most:
                yield f"{look.who} saw {count} pushes of writer {writer}, which had made {most}"


def _lost(looks: Sequence[Look]) -> Iterator[str]:
    """Pushes that were acknowledged, and that a later observation lacks."""
    for own, look in itertools.product(looks, looks):
        if (own.at <= look.since or own is look) and look.counts[own.writer] < own.number:
            yield (
                f"push {own.number} of writer {own.writer} was acknowledged, and then {look.who} saw "
                f"{look.counts[own.writer]} of its pushes"
            )


def _disordered(looks: Sequence[Look]) -> Iterator[str]:
    """Two looks of which each had what the other had not, or the later less than the earlier."""
    for one, other in itertools.combinations(looks, 2):
        pairs = list(zip(one.counts, other.counts, strict=True))
        more, less = any(a > b for a, b in pairs), any(a < b for a, b in pairs)
        backwards = (more and one.at <= other.since) or (less and other.at <= one.since)
        if (more and less) or backwards:
            yield f"{one.who} saw {one.counts}, and {other.who} saw {other.counts}: there is no one order"


def _rounds(looks: Sequence[Look], starts: Mapping[int, int]) -> Iterator[str]:
    """Synchronous rounds that had not exactly those pushes that count.

    Push n of a writer belongs to round start + n. What a writer sees after its push n is this round, all of it.
    """
    most = {who: max((look.counts[who] for look in looks), default=0) for who in starts}
    for look in looks:
        now = max(starts[who] + look.counts[who] for who in starts if look.counts[who]) if any(look.counts) else 0
        mine = starts[look.writer] + look.number
        if now > mine and look.number and _counted(look, looks):
            yield f"{look.who} saw round {now}, expected {mine}"
        for who, start in starts.items():
            due = min(now - start, most[who])
            if look.counts[who] < due:
                yield f"{look.who} saw round {now} with {look.counts[who]} pushes of writer {who}, expected {due}"


def _counted(look: Look, looks: Sequence[Look]) -> bool:
    """True where the observer pushed more afterwards, so that no round can have passed without it."""
    return any(other.writer == look.writer and other.number > look.number for other in looks)
