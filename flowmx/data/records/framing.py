"""The RecordIO format, as bytes (no files here).

A record is written as one or more parts, each at an offset that is a multiple of 4::

    magic (4 bytes)   0xced7230a, little-endian
    word  (4 bytes)   the part's flag in the upper 3 bits, its length in the lower 29
    content, and zeros up to a multiple of 4

The magic may begin only parts. Where it occurs in a record's content, at a multiple of 4, the record is cut there and
those 4 bytes are left out: a flag says whether a part is the whole record, its first, middle or last one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from flowmx.errors import MXNetError

MAGIC = struct.pack("<I", 0xCED7230A)
HEAD = struct.Struct("<4sI")
LIMIT = 1 << 29
"""Records are shorter than this."""
_LENGTH_BITS = 29


class RecordFormatError(MXNetError, ValueError):
    """A file is no RecordIO file, or damaged; the message says where."""


class Part(IntEnum):
    """The part of a record that follows a header."""

    WHOLE, FIRST, MIDDLE, LAST = range(4)


class Head(NamedTuple):
    """The header of a part of a record."""

    part: Part
    length: int

    @property
    def padded(self) -> int:
        """The bytes that the content takes in the file."""
        return -(-self.length // 4) * 4


def encode(content: bytes | bytearray | memoryview) -> bytes:
    """The bytes that stand for a record in a file.

    Raises:
        ValueError: it is too long.
    """
    content = bytes(content)
    if len(content) >= LIMIT:
        raise ValueError(f"RecordIO: the record has {len(content)} bytes, expected less than {LIMIT} (2^29)")
    cuts = list(_magics(content))
    if not cuts:
        return _part(Part.WHOLE, content)
    starts, stops = [0, *(cut + 4 for cut in cuts)], [*cuts, len(content)]
    flags = [Part.FIRST, *[Part.MIDDLE] * (len(cuts) - 1), Part.LAST]
    return b"".join(
        _part(flag, content[start:stop]) for flag, start, stop in zip(flags, starts, stops, strict=True)
    )  # fmt: skip


def _part(flag: Part, content: bytes) -> bytes:
    return HEAD.pack(MAGIC, flag << _LENGTH_BITS | len(content)) + content + bytes(-len(content) % 4)


def _magics(content: bytes) -> Iterator[int]:
    """Offsets of the magic number in the content, at multiples of 4."""
    at = content.find(MAGIC)
    while at >= 0:
        if at % 4 == 0:
            yield at
            at = content.find(MAGIC, at + 4)
        else:
            at = content.find(MAGIC, at + 1)


def head(raw: bytes | bytearray | memoryview, offset: int, path: str) -> Head:
    """Read a part's head.

    Args:
        raw: bytes of the file.
        offset: where in the file the head is, for the message.
        path: the file, for the message.

    Raises:
        RecordFormatError: there is none.
    """
    if len(raw) < HEAD.size:
        end = f"at offset {offset + len(raw)}" if raw else f"at offset {offset} or before"
        raise RecordFormatError(
            f"RecordIO: {path!r} ends {end}, inside the head of a record at {offset}: it was cut off"
        )
    magic, word = HEAD.unpack_from(raw)
    if magic != MAGIC:
        raise RecordFormatError(
            f"RecordIO: at offset {offset} of {path!r} stands {bytes(magic).hex()}, expected {MAGIC.hex()}, which "
            "begins every record: the file is damaged there, or is no RecordIO file, or the offset is no record's"
        )
    flag = word >> _LENGTH_BITS
    if flag > Part.LAST:
        raise RecordFormatError(
            f"RecordIO: the record at offset {offset} of {path!r} has the flag {flag}, expected 0 to 3"
        )
    return Head(Part(flag), word & (LIMIT - 1))
