"""TensorBoard's event files of scalars, written here without TensorFlow: the profile, and curves of a training.

A file is a row of records as TFRecord frames them: the length, its masked CRC-32C, the bytes, theirs. The bytes are an
``Event`` message of protocol buffers, of which only what scalars need is written.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from flowmx.profiler.records import Change, Record, Span
from flowmx.profiler.tables import COLUMNS, KINDS, aggregated

__all__ = ["EventFile", "Scalar", "crc32c", "scalars", "write_events"]

_POLYNOMIAL = 0x82F63B78


class Scalar(NamedTuple):
    """A value of a curve: ``tag`` names the curve, ``step`` is where it stands there, ``at`` when, in Unix seconds."""

    tag: str
    step: int
    value: float
    at: float


def scalars(records: Iterable[Record], spans: Iterable[Span], changes: Iterable[Change], offset: float) -> list[Scalar]:
    """The curves of what was recorded: of counters and memory over time, and one value each of every table's cells.

    Args:
        records: the operations that were recorded.
        spans: what else took time.
        changes: the values of counters.
        offset: what to add to their times, for Unix time.
    """
    records, spans = list(records), list(spans)
    found: list[Scalar] = []
    counts: dict[str, int] = {}
    for change in changes:
        tag = f"{change.category}/{change.name}"
        counts[tag] = counts.get(tag, -1) + 1
        found.append(Scalar(tag, counts[tag], change.value, change.at + offset))
    now = max([each.end for each in records], default=0.0) + offset
    for kind in KINDS:
        for name, row in aggregated(records, spans, kind).items():
            found += [Scalar(f"{kind}/{name}/{column}", 0, row[column], now) for column in COLUMNS]
    return found


class EventFile:
    """A new event file in a folder, which is made where there is none. TensorBoard may read while it is written.

    Args:
        folder: what ``tensorboard --logdir`` is given, or a folder in that.

    Attributes:
        path: of the file.
    """

    _numbers = itertools.count()

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}.{next(self._numbers)}.flowmx"
        self.path = Path(folder) / name
        self._file = self.path.open("xb")
        self._file.write(_framed(_double(1, now) + _text(3, "brain.Event:2")))

    def write(self, values: Iterable[Scalar]) -> None:
        """Append values, and hand them to the system."""
        self._file.write(b"".join(_framed(_event(each)) for each in values))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def write_events(folder: str | os.PathLike[str], values: Iterable[Scalar]) -> Path:
    """Write an event file into a folder, made where there is none; returns its path."""
    file = EventFile(folder)
    try:
        file.write(values)
    finally:
        file.close()
    return file.path


# -- protocol buffers --------------------------------------------------------------------------------------


def _event(scalar: Scalar) -> bytes:
    value = _text(1, scalar.tag) + _key(2, 5) + struct.pack("<f", scalar.value)
    return _double(1, scalar.at) + _key(2, 0) + _varint(scalar.step) + _bytes(5, _bytes(1, value))


def _key(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _varint(number: int) -> bytes:
    return bytes(_groups(number))


def _groups(number: int) -> Iterator[int]:
    while number > 0x7F:
        yield number & 0x7F | 0x80
        number >>= 7
    yield number


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def _bytes(field: int, content: bytes) -> bytes:
    return _key(field, 2) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())


# -- TFRecord ----------------------------------------------------------------------------------------------


def _framed(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + _masked(length) + content + _masked(content)


def _masked(content: bytes) -> bytes:
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _entry(index: int) -> int:
    for _ in range(8):
        index = index >> 1 ^ (_POLYNOMIAL if index & 1 else 0)
    return index


_TABLE = [_entry(index) for index in range(256)]


def crc32c(content: bytes) -> int:
    """The Castagnoli checksum."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
