"""Writes TensorBoard event files of scalars without TensorFlow: the profile, and training curves.

A file is a sequence of TFRecord records: the length, its masked CRC-32C, the content, its masked CRC-32C. The content
is an ``Event`` message of protocol buffers with the fields that scalars need.
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

from flowmx.profiler.aggregates import COLUMNS, KINDS, aggregate
from flowmx.profiler.records import Change, Record, Span

__all__ = ["EventFile", "Scalar", "crc32c", "scalars", "write_events"]

_POLYNOMIAL = 0x82F63B78


class Scalar(NamedTuple):
    """A value of a curve: ``tag`` is the curve's name, ``step`` the position, ``at`` the Unix time in seconds."""

    tag: str
    step: int
    value: float
    at: float


def scalars(records: Iterable[Record], spans: Iterable[Span], changes: Iterable[Change], offset: float) -> list[Scalar]:
    """Return curves of a profile: counters and memory over time, and a single value per table cell.

    Args:
        records: the recorded operations.
        spans: other timed activities.
        changes: the values of counters.
        offset: offset from their times to Unix time.
    """
    records, spans = list(records), list(spans)
    result: list[Scalar] = []
    counts: dict[str, int] = {}
    for change in changes:
        tag = f"{change.category}/{change.name}"
        counts[tag] = counts.get(tag, -1) + 1
        result.append(Scalar(tag, counts[tag], change.value, change.at + offset))
    now = max([record.end for record in records], default=0.0) + offset
    for kind in KINDS:
        for name, row in aggregate(records, spans, kind).items():
            result += [Scalar(f"{kind}/{name}/{column}", 0, row[column], now) for column in COLUMNS]
    return result


class EventFile:
    """A new event file in a folder, which is created if missing. TensorBoard may read it while it is written.

    Args:
        folder: the folder for ``tensorboard --logdir``, or a subfolder.

    Attributes:
        path: path of the file.
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
        """Append values and flush."""
        self._file.write(b"".join(_framed(_event(scalar)) for scalar in values))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def write_events(folder: str | os.PathLike[str], values: Iterable[Scalar]) -> Path:
    """Write an event file into a folder, which is created if missing; return its path."""
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
    """Return the Castagnoli checksum."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
