"""Reading of records at any offset of a file, from any thread or process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flowmx import forks
from flowmx.data.records.framing import HEAD, MAGIC, Part, RecordFormatError, read_head
from flowmx.data.records.index import read_index
from flowmx.data.sharding import byte_share, share
from flowmx.errors import raised_as_mxnet

CHUNK = 1 << 18
"""Bytes per read of a sequential reader; they fit into a core's cache."""
_SEARCH_BYTES = 1 << 16

if hasattr(os, "pread"):

    def _read_at(descriptor: int, size: int, offset: int) -> bytes:
        return os.pread(descriptor, size, offset)

else:  # pragma: no cover - Windows
    _lock = forks.lock()

    def _read_at(descriptor: int, size: int, offset: int) -> bytes:
        with _lock:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, size)


class Source:
    """A file of records, read by offset: it has no position, so threads and forked processes can share it.

    Args:
        path: the file.

    Raises:
        OSError: the file cannot be opened.
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
        """Return the file's current size."""
        return os.fstat(self._descriptor).st_size

    def bytes_at(self, offset: int, size: int) -> bytes:
        """Read bytes at an offset; return fewer than ``size`` only at the end of the file."""
        if size > CHUNK:  # a damaged length must not allocate more memory than the file needs
            size = min(size, max(self.size() - offset, 0))
        raw = _read_at(self._descriptor, size, offset)
        if len(raw) in (0, size):
            return raw
        parts = [raw]
        while raw and sum(map(len, parts)) < size:  # the system may return fewer bytes than requested
            raw = _read_at(self._descriptor, size - sum(map(len, parts)), offset + sum(map(len, parts)))
            parts.append(raw)
        return b"".join(parts)

    def record(self, offset: int, size: int = 1 << 16) -> tuple[bytes, int]:
        """Read the record at an offset; return it and the offset after it.

        Args:
            offset: the offset of the record's header.
            size: the record's size in the file, or an estimate.

        Raises:
            RecordFormatError: there is no record, or it is damaged.
        """
        return Window(self, offset, self.bytes_at(offset, size)).take(offset)

    def offsets(self, start: int = 0, stop: int | None = None) -> Iterator[int]:
        """Iterate over the offsets of the records in a range of the file, from header to header.

        Raises:
            RecordFormatError: there is no valid header at an expected offset.
        """
        stop = self.size() if stop is None else stop
        offset = start
        while offset < stop:
            header = read_head(self.bytes_at(offset, HEAD.size), offset, self.path)
            if header.part in (Part.WHOLE, Part.FIRST):
                yield offset
            offset += HEAD.size + header.padded

    def next_head(self, offset: int) -> int:
        """Return the offset of the first record at or after an offset, or else the file's size.

        Search for the magic number, as MXNet does to find the beginning of a part of a file.
        """
        position = -(-offset // 4) * 4
        while True:
            raw = self.bytes_at(position, _SEARCH_BYTES + HEAD.size)
            if len(raw) < HEAD.size:
                return self.size()
            for index in _find_magic(raw):
                if index % 4 == 0 and raw[index + 7] >> 5 in (Part.WHOLE, Part.FIRST):
                    return position + index
            position += _SEARCH_BYTES

    def part(self, part_index: int, num_parts: int) -> tuple[int, int]:
        """Return the range of bytes for one of several workers, as in MXNet.

        Raises:
            ValueError: the part does not exist.
        """
        start, stop = byte_share(self.size(), part_index, num_parts)
        return self._part_boundary(start), self._part_boundary(stop)

    def _part_boundary(self, offset: int) -> int:
        return offset if offset in (0, self.size()) else self.next_head(offset)


def _find_magic(raw: bytes) -> Iterator[int]:
    index = raw.find(MAGIC)
    while 0 <= index <= len(raw) - HEAD.size:
        yield index
        index = raw.find(MAGIC, index + 1)


class Window:
    """Bytes of a source that were read ahead.

    Args:
        source: the source of further bytes.
        start: the offset of the bytes.
        raw: the bytes.
    """

    __slots__ = ("raw", "source", "start")

    def __init__(self, source: Source, start: int = 0, raw: bytes = b"") -> None:
        self.source = source
        self.start = start
        self.raw = raw

    def take(self, offset: int) -> tuple[bytes, int]:
        """Return the same as :meth:`Source.record`, reading only bytes outside the window."""
        raw, at = self.raw, offset - self.start
        # The fast path: a whole record inside the window.
        if 0 <= at <= len(raw) - 8 and raw[at : at + 4] == MAGIC:
            word = int.from_bytes(raw[at + 4 : at + 8], "little")
            stop = at + 8 + word
            if word >> 29 == 0 and stop <= len(raw):
                return raw[at + 8 : stop], offset + 8 + (word + 3 & -4)
        return self._parts(offset)

    def _parts(self, offset: int) -> tuple[bytes, int]:
        """Read a record of any number of parts, some of which may be outside the window."""
        content: list[bytes] = []
        part_offset = offset
        while True:
            header = read_head(self._bytes(part_offset, HEAD.size), part_offset, self.source.path)
            self._check_order(header.part, bool(content), part_offset, offset)
            content.append(self._bytes(part_offset + HEAD.size, header.length))
            if len(content[-1]) < header.length:
                raise RecordFormatError(
                    f"RecordIO: {self.source.path!r} ends at offset {self.source.size()}, inside the record at "
                    f"{offset}, which has {header.length} bytes after offset {part_offset + HEAD.size}: it is truncated"
                )
            part_offset += HEAD.size + header.padded
            if header.part in (Part.WHOLE, Part.LAST):
                return content[0] if len(content) == 1 else MAGIC.join(content), part_offset

    def _check_order(self, part: Part, is_inside: bool, part_offset: int, offset: int) -> None:
        if is_inside != (part in (Part.MIDDLE, Part.LAST)):
            expected = f"the rest of the record at {offset}" if is_inside else "the beginning of a record"
            raise RecordFormatError(
                f"RecordIO: {self.source.path!r} has the {part.name.lower()} part of a record at offset {part_offset}, "
                f"expected {expected}: the file is damaged, or no record begins at the offset"
            )

    def _bytes(self, offset: int, size: int) -> bytes:
        at = offset - self.start
        if at >= 0 and at + size <= len(self.raw):
            return self.raw[at : at + size]
        return self.source.bytes_at(offset, size)


class Records:
    """The records in a part of a file, read by number from any thread.

    Without an index, the constructor reads the headers of all records in the part.

    Args:
        path: the file.
        index: its index.
        part_index: the index of this worker's share, from 0.
        num_parts: the number of shares: of the records if there is an index, else of the file's bytes (as in MXNet).

    Raises:
        OSError: a file cannot be read.
        RecordFormatError: the file is damaged.
        ValueError: the part does not exist, or the index is damaged.
    """

    def __init__(
        self, path: str | os.PathLike[str], index: str | os.PathLike[str] | None, part_index: int, num_parts: int
    ) -> None:
        self.source = Source(path)
        if index:
            offsets = np.array(sorted(offset for _, offset in read_index(index)), np.int64)
            edges = np.append(offsets, self.source.size())
            part = share(len(offsets), part_index, num_parts, "shorter last")
            self.offsets, self._sizes = offsets[part], np.diff(edges)[part]
        else:
            start, stop = self.source.part(part_index, num_parts)
            self.offsets = np.fromiter(self.source.offsets(start, stop), np.int64)
            self._sizes = np.diff(np.append(self.offsets, stop))

    def __len__(self) -> int:
        return len(self.offsets)

    def read(self, row: int) -> bytes:
        """Read the content of a record.

        Raises:
            RecordFormatError: the record is damaged, or the index does not match the file.
        """
        size = int(self._sizes[row])
        return self.source.record(int(self.offsets[row]), size if 0 < size < 1 << 30 else CHUNK)[0]
