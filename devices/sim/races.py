"""The race checker: every use of memory must come after the conflicting ones, by stream order and waited tokens.

Luck plays no part in it: it does not look at what happened to run first but at *vector clocks*. Each stream counts its
launches and knows, of every other stream, up to which launch it is certain to come after: what it has waited for, and
what that had waited for. A use of memory by launch ``n`` of a stream comes before a use on another one only where that
one's clock for the stream is at least ``n``.

What the host does is complete before anything that the scheduler orders after it, so uses by the host are only checked
against those before them.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowmx.devices.streams import HOST, Launch, Stream, Token
from flowmx.errors import RaceError

Clock = dict[Stream, int]


class Uses:
    """The last uses of one piece of memory: the last write, and by stream the reads since."""

    __slots__ = ("reads", "write")

    def __init__(self) -> None:
        self.write: tuple[Stream, int, str] | None = None
        self.reads: dict[Stream, tuple[int, str]] = {}


class RaceChecker:
    """The race checker: the vector clocks of all streams."""

    def __init__(self) -> None:
        self._clocks: dict[Stream, Clock] = {}

    def clear(self) -> None:
        """Begin anew."""
        self._clocks.clear()

    def join(self, stream: Stream, token: Token) -> None:
        """Join a token's clock into that of a stream which has waited for it."""
        merge(self._clocks.setdefault(stream, {}), clock_of(token))

    def begin(self, stream: Stream) -> Clock:
        """The clock of a stream's next launch."""
        clock = self._clocks.setdefault(stream, {})
        clock[stream] = stream.serial + 1
        return clock

    def use(self, uses: Uses, clock: Mapping[Stream, int], stream: Stream, is_write: bool, who: str, what: str) -> None:
        """Note that the launch with this clock uses some memory.

        Args:
            uses: what is known of the memory.
            clock: the launch's.
            stream: its stream.
            is_write: whether it writes there.
            who: the operation, in words.
            what: the memory, in words.

        Raises:
            RaceError: an earlier use conflicts with it and is not certain to come before.
        """
        before = [] if uses.write is None else [(*uses.write, "writes")]
        if is_write:
            before += [(reader, count, name, "reads") for reader, (count, name) in uses.reads.items()]
        serial = clock.get(stream, 0)
        if is_write:
            uses.write, uses.reads = (stream, serial, who), {}
        else:
            uses.reads[stream] = (serial, who)
        for other, count, name, verb in before:
            if other is not HOST and other is not stream and clock.get(other, 0) < count:
                raise RaceError(
                    f"{who} on {stream.name} {'writes' if is_write else 'reads'} {what}, which {name} on {other.name} "
                    f"{verb}, and nothing makes it come after: {stream.name} has waited for {clock.get(other, 0)} of "
                    f"{other.name}'s launches, and this one is number {count}"
                )


def clock_of(token: Token) -> Clock:
    """The vector clock of a token: the work that is certain to be done once it is."""
    if token.stream is HOST:
        merged: Clock = dict(token.event or {})
        for each in token.sources:
            merge(merged, clock_of(each))
        return merged
    clock: Clock = token.event.clock if token.event is not None else {}
    return clock


def merge(clock: Clock, other: Mapping[Stream, int]) -> None:
    """Merge another clock into this one."""
    for stream, count in other.items():
        if clock.get(stream, 0) < count:
            clock[stream] = count


def label(launch: Launch) -> str:
    """An operation in words."""
    return f"operation {launch.op.name!r} (#{launch.op.serial})"
