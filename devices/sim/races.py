"""The race checker: every use of memory must come after conflicting ones, by stream order or by waiting for tokens.

The result does not depend on the actual timing, since it uses *vector clocks*. Each stream counts its launches. For
every other stream, it stores the last launch that it is certain to come after: by its own waits, and by those of the
work it has waited for. A use of memory by launch ``n`` of a stream comes before a use on another stream only if that
stream's clock for the first is at least ``n``.

An operation of the host is complete before any operation that the scheduler orders after it. Uses by the host are
therefore only checked against earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowmx.devices.streams import HOST, Launch, Stream, Token
from flowmx.errors import RaceError

Clock = dict[Stream, int]


class Uses:
    """The last uses of a block of memory: the last write and, by stream, later reads."""

    __slots__ = ("reads", "write")

    def __init__(self) -> None:
        self.write: tuple[Stream, int, str] | None = None
        self.reads: dict[Stream, tuple[int, str]] = {}


class RaceChecker:
    """The race checker: the vector clocks of all streams."""

    def __init__(self) -> None:
        self._clocks: dict[Stream, Clock] = {}

    def clear(self) -> None:
        """Forget all clocks."""
        self._clocks.clear()

    def join(self, stream: Stream, token: Token) -> None:
        """Merge a token's clock into the clock of a stream that waits for it."""
        merge(self._clocks.setdefault(stream, {}), clock_of(token))

    def begin(self, stream: Stream) -> Clock:
        """Return the clock of a stream's next launch."""
        clock = self._clocks.setdefault(stream, {})
        clock[stream] = stream.serial + 1
        return clock

    def use(
        self, uses: Uses, clock: Mapping[Stream, int], stream: Stream, is_write: bool, operation: str, memory: str
    ) -> None:
        """Record that a launch uses memory.

        Args:
            uses: the last uses of the memory.
            clock: the launch's clock.
            stream: its stream.
            is_write: whether it writes.
            operation: a description of the operation.
            memory: a description of the memory.

        Raises:
            RaceError: it conflicts with an earlier use that is not certain to come before it.
        """
        before = [] if uses.write is None else [(*uses.write, "writes")]
        if is_write:
            before += [(reader, count, name, "reads") for reader, (count, name) in uses.reads.items()]
        serial = clock.get(stream, 0)
        if is_write:
            uses.write, uses.reads = (stream, serial, operation), {}
        else:
            uses.reads[stream] = (serial, operation)
        for other, count, name, verb in before:
            if other is not HOST and other is not stream and clock.get(other, 0) < count:
                raise RaceError(
                    f"{operation} on {stream.name} {'writes' if is_write else 'reads'} {memory}, which {name} on "
                    f"{other.name} {verb}, without synchronization: {stream.name} has waited for "
                    f"{clock.get(other, 0)} of {other.name}'s launches, and this one is number {count}"
                )


def clock_of(token: Token) -> Clock:
    """Return the vector clock of a token: the work that is certain to be done when the token is."""
    if token.stream is HOST:
        merged: Clock = dict(token.event or {})
        for source in token.sources:
            merge(merged, clock_of(source))
        return merged
    clock: Clock = token.event.clock if token.event is not None else {}
    return clock


def merge(clock: Clock, other: Mapping[Stream, int]) -> None:
    """Merge another clock into a clock."""
    for stream, count in other.items():
        if clock.get(stream, 0) < count:
            clock[stream] = count


def label(launch: Launch) -> str:
    """Describe an operation."""
    return f"operation {launch.op.name!r} (#{launch.op.serial})"
