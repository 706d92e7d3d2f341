"""Reading records of a file at any offset, by whichever thread or process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flowmx.data.records.framing import HEAD, MAGIC, Part, RecordFormatError, head
from flowmx.data.records.index import read_index
from flowmx.data.sharding import byte_share, share
from flowmx.errors import raised_as_mxnet

CHUNK = 1 << 18
"""Bytes that a sequential reader asks the system for at a time: they stay in the cache of a core."""
_SEARCHED = 1 << 16

if hasattr(os, "pread"):

    def _read_at(descriptor: int, size: int, offset: int) -> bytes:
        return os.pread(descriptor, size, offset)

else:  # pragma: no cover - Windows
    import threading

    _lock = threading.RLock()

    def _read_at(descriptor: int, size: int, offset: int) -> bytes:
        with _lock:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, size)


class Source:
    """A file of records, read by offset: it has no position, so threads and forked processes may share it.

    Args:
        path: the file.

    Raises:
        OSError: it can not be opened.
    """

    @raised_as_mxnet(OSError)
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file: Any = Path(self.path).open("rb", buffering=0)  # noqa: SIM115 - closed by close()
        self._descriptor: int = self._file.fileno()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def size(self) -> int:
        """The file's size, now."""
        return os.fstat(self._descriptor).st_size

    def bytes_at(self, offset: int, size: int) -> bytes:
        """Read so many bytes at an offset, fewer only at the end of the file."""
        if size > CHUNK:  # the system is asked for no more than is there: a damaged length costs no memory
            size = min(size, max(self.size() - offset, 0))
        found = _read_at(self._descriptor, size, offset)
        if len(found) in (0, size):
            return found
        parts = [found]
        while found and sum(map(len, parts)) < size:  # the system may give less than was asked for
            found = _read_at(self._descriptor, size - sum(map(len, parts)), offset + sum(map(len, parts)))
            parts.append(found)
        return b"".join(parts)

    def record(self, offset: int, size: int = 1 << 16) -> tuple[bytes, int]:
        """The record at an offset, and the offset behind it.

        Args:
            offset: where its head is.
            size: the bytes that it takes in the file, where that is known; else an estimate.

        Raises:
            RecordFormatError: there is none, or it is damaged.
        """
        return Window(self, offset, self.bytes_at(offset, size)).take(offset)

    def offsets(self, start: int = 0, stop: int | None = None) -> Iterator[int]:
        """Offsets of the records in a range of the file, found by following the headers.

        Raises:
            RecordFormatError: something else stands where a record was expected.
        """
        stop = self.size() if stop is None else stop
        at = start
        while at < stop:
            found = head(self.bytes_at(at, HEAD.size), at, self.path)
            if found.part in (Part.WHOLE, Part.FIRST):
                yield at
            at += HEAD.size + found.padded

    def next_head(self, offset: int) -> int:
        """The offset of the first record at or after an offset; the file's size where there is none.

        It is found by its magic, as MXNet finds where a part of a file begins.
        """
        at = -(-offset // 4) * 4
        while True:
            raw = self.bytes_at(at, _SEARCHED + HEAD.size)
            if len(raw) < HEAD.size:
                return self.size()
            for place in _places(raw):
                if place % 4 == 0 and raw[place + 7] >> 5 in (Part.WHOLE, Part.FIRST):
                    return at + place
            at += _SEARCHED

    def part(self, part_index: int, num_parts: int) -> tuple[int, int]:
        """The range of the file whose records one of several workers reads: shares of the bytes, as MXNet cuts them.

        Raises:
            ValueError: there is no such part.
        """
        start, stop = byte_share(self.size(), part_index, num_parts)
        return self._edge(start), self._edge(stop)

    def _edge(self, offset: int) -> int:
        return offset if offset in (0, self.size()) else self.next_head(offset)


def _places(raw: bytes) -> Iterator[int]:
    at = raw.find(MAGIC)
    while 0 <= at <= len(raw) - HEAD.size:
        yield at
        at = raw.find(MAGIC, at + 1)


class Window:
    """Bytes of a source that were read ahead.

    Args:
        source: where more is read from.
        start: the offset of the bytes.
        raw: the bytes.
    """

    __slots__ = ("raw", "source", "start")

    def __init__(self, source: Source, start: int = 0, raw: bytes = b"") -> None:
        self.source = source
        self.start = start
        self.raw = raw

    def take(self, offset: int) -> tuple[bytes, int]:
        """As :meth:`Source.record`, from the bytes already read as far as they reach."""
        raw, at = self.raw, offset - self.start
        # The common case in few steps: a whole record, all of it at hand.
        if 0 <= at <= len(raw) - 8 and raw[at : at + 4] == MAGIC:
            word = int.from_bytes(raw[at + 4 : at + 8], "little")
            stop = at + 8 + word
            if word >> 29 == 0 and stop <= len(raw):
                return raw[at + 8 : stop], offset + 8 + (word + 3 & -4)
        return self._parts(offset)

    def _parts(self, offset: int) -> tuple[bytes, int]:
        """A record of any number of parts, some of whose bytes may still have to be read."""
        content: list[bytes] = []
        at = offset
        while True:
            found = head(self._bytes(at, HEAD.size), at, self.source.path)
            self._check_order(found.part, bool(content), at, offset)
            content.append(self._bytes(at + HEAD.size, found.length))
            if len(content[-1]) < found.length:
                raise RecordFormatError(
                    f"RecordIO: {self.source.path!r} ends at offset {self.source.size()}, inside the record at "
                    f"{offset}, of which {found.length} bytes were to follow offset {at + HEAD.size}: it was cut off"
                )
            at += HEAD.size + found.padded
            if found.part in (Part.WHOLE, Part.LAST):
                return content[0] if len(content) == 1 else MAGIC.join(content), at

    def _check_order(self, part: Part, inside: bool, at: int, offset: int) -> None:
        if inside != (part in (Part.MIDDLE, Part.LAST)):
            expected = f"the rest of the record at {offset}" if inside else "the beginning of a record"
            raise RecordFormatError(
                f"RecordIO: at offset {at} of {self.source.path!r} stands the {part.name.lower()} part of a record, "
                f"expected {expected}: the file is damaged, or the offset is no record's"
            )

    def _bytes(self, offset: int, size: int) -> bytes:
        at = offset - self.start
        if at >= 0 and at + size <= len(self.raw):
            return self.raw[at : at + size]
        return self.source.bytes_at(offset, size)


class Records:
    """Some records of a file, read by number from any thread.

    Without an index the heads of all records of the part are read first; with one they need not be.

    Args:
        path: the file.
        index: its index.
        part_index: the index of this worker's share, from 0.
        num_parts: the number of shares: of the file's bytes, or of the records where there is an index (as MXNet
            cuts them).

    Raises:
        OSError: a file can not be read.
        RecordFormatError: the file is damaged.
        ValueError: there is no such part, or the index is damaged.
    """

    def __init__(
        self, path: str | os.PathLike[str], index: str | os.PathLike[str] | None, part_index: int, num_parts: int
    ) -> None:
        self.source = Source(path)
        if index:
            offsets = np.array(sorted(offset for _, offset in read_index(index)), np.int64)
            edges = np.append(offsets, self.source.size())
            own = share(len(offsets), part_index, num_parts, "shorter last")
            self.offsets, self._sizes = offsets[own], np.diff(edges)[own]
        else:
            start, stop = self.source.part(part_index, num_parts)
            self.offsets = np.fromiter(self.source.offsets(start, stop), np.int64)
            self._sizes = np.diff(np.append(self.offsets, stop))

    def __len__(self) -> int:
        return len(self.offsets)

    def read(self, row: int) -> bytes:
        """The content of a record.

        Raises:
            RecordFormatError: it is damaged, or the index does not fit the file.
        """
        size = int(self._sizes[row])
        return self.source.record(int(self.offsets[row]), size if 0 < size < 1 << 30 else CHUNK)[0]
