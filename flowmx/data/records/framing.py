"""Encoding and decoding of the RecordIO format. This module does no I/O.

A record is written as one or more parts, each at an offset that is a multiple of 4::

    magic (4 bytes)   0xced7230a, little-endian
    word  (4 bytes)   the part's flag in the upper 3 bits, its length in the lower 29
    content, and zeros up to a multiple of 4

The magic occurs only at the beginning of parts: a record is split wherever its content has the magic at a multiple of
4, and those 4 bytes are omitted. The flag marks a part as a whole record, or as its first, middle or last part.
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
    """A file is not a RecordIO file, or is damaged; the message has the offset."""


class Part(IntEnum):
    """The flag in a header: which part of a record follows."""

    WHOLE, FIRST, MIDDLE, LAST = range(4)


class Header(NamedTuple):
    """The header of a part of a record."""

    part: Part
    length: int

    @property
    def padded(self) -> int:
        """Length of the content in the file, padded to a multiple of 4."""
        return -(-self.length // 4) * 4


def encode(content: bytes | bytearray | memoryview) -> bytes:
    """Encode a record for a file.

    Raises:
        ValueError: the record is too long.
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
    """Iterate over the offsets of the magic number in the content, at multiples of 4."""
    offset = content.find(MAGIC)
    while offset >= 0:
        if offset % 4 == 0:
            yield offset
            offset = content.find(MAGIC, offset + 4)
        else:
            offset = content.find(MAGIC, offset + 1)


def read_head(raw: bytes | bytearray | memoryview, offset: int, path: str) -> Header:
    """Read a part's header.

    Args:
        raw: bytes of the file, from the header on.
        offset: the header's offset in the file, for the message.
        path: the file, for the message.

    Raises:
        RecordFormatError: there is no valid header.
    """
    if len(raw) < HEAD.size:
        if offset == 0 and bytes(raw[:4]) != MAGIC[: len(raw)]:
            raise RecordFormatError(f"RecordIO: {path!r} begins with {bytes(raw)!r}: it is not a RecordIO file")
        end = f"at offset {offset + len(raw)}" if raw else f"at offset {offset} or before"
        raise RecordFormatError(
            f"RecordIO: {path!r} ends {end}, inside the header of a record at {offset}: it is truncated"
        )
    magic, word = HEAD.unpack_from(raw)
    if magic != MAGIC:
        raise RecordFormatError(
            f"RecordIO: {path!r} has {bytes(magic).hex()} at offset {offset}, expected {MAGIC.hex()}, which "
            "begins every record: the file is damaged, or is not a RecordIO file, or no record begins at the offset"
        )
    flag = word >> _LENGTH_BITS
    if flag > Part.LAST:
        raise RecordFormatError(
            f"RecordIO: the record at offset {offset} of {path!r} has the flag {flag}, expected 0 to 3"
        )
    return Header(Part(flag), word & (LIMIT - 1))
