"""Zip archives in memory whose large entries are read and written without copies.

Reading or writing an entry with zipfile copies it several times, in calls that hold the interpreter lock. Freeing a
bytes object of hundreds of megabytes holds it, too.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import Any, cast

import numpy as np

from flowmx.ops.registry.operators import Array
from flowmx.serialization.reading import bytes_of

__all__ = ["Archive", "NewArchive", "read_entry"]

_CHUNK = 1 << 17
"""The number of bytes that are unpacked in one call."""
_LOCAL_HEADER = 30
"""The size of an entry's header without its name and extra field, whose lengths are the last fields."""


class _Readable(io.RawIOBase):
    """A readable file over bytes."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if start + offset < 0:
            raise ValueError(f"negative file position {start + offset}")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        part = self._data[self._at : self._at + len(view)]
        view[: len(part)] = part
        self._at += len(part)
        return len(part)


class Archive(zipfile.ZipFile):
    """An archive for reading.

    Args:
        data: its content.

    Raises:
        zipfile.BadZipFile: the data is not a zip archive.
    """

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = memoryview(data).cast("B")
        super().__init__(_Readable(self.data))


def read_entry(archive: Archive, entry: str | zipfile.ZipInfo) -> memoryview:
    """Return the content of an entry, as a view of the archive if it is not compressed.

    Raises:
        KeyError: there is no such entry.
        zipfile.BadZipFile, EOFError: the entry is damaged.
    """
    info = archive.getinfo(entry) if isinstance(entry, str) else entry
    if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
        return _stored_content(archive.data, info)
    view, length = np.empty(info.file_size, np.uint8).data, 0
    with cast(zipfile.ZipExtFile, archive.open(info)) as source:
        while length < len(view) and (count := source.readinto(view[length : length + _CHUNK])):
            length += count
        if length < len(view) or source.read(1):  # this read also checks the CRC
            raise EOFError(f"{info.filename} does not have the {info.file_size} bytes of its header")
    return view


def _stored_content(data: memoryview, info: zipfile.ZipInfo) -> memoryview:
    head = data[info.header_offset : info.header_offset + _LOCAL_HEADER]
    start = info.header_offset + _LOCAL_HEADER
    if len(head) == _LOCAL_HEADER:
        start += int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    content = data[start : start + info.file_size]
    if bytes(head[:4]) != b"PK\3\4" or len(content) != info.file_size or info.compress_size != info.file_size:
        raise EOFError(f"{info.filename} does not have the {info.file_size} bytes of its header")
    if zlib.crc32(content) != info.CRC:
        raise zipfile.BadZipFile(f"Bad CRC-32 for file {info.filename!r}")
    return content


class _Pieces(io.RawIOBase):
    """A writable file that stores pieces without copying. A piece may be replaced by one of equal length."""

    def __init__(self) -> None:
        self.pieces: dict[int, Any] = {}
        self._at = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        assert whence == io.SEEK_SET
        self._at = offset
        return offset

    def write(self, piece: Any, /) -> int:
        if len(piece):
            self.pieces[self._at] = piece
        self._at += len(piece)
        return len(piece)


class NewArchive(zipfile.ZipFile):
    """An archive for writing, without compression.

    Example:
        >>> with NewArchive() as archive:
        ...     archive.add("x", b"head", array)
        >>> replace_file(path, archive.pieces)
    """

    def __init__(self) -> None:
        self._file = _Pieces()
        super().__init__(self._file, "w")

    @property
    def pieces(self) -> list[Any]:
        """The content of the closed archive."""
        return list(self._file.pieces.values())

    def add(self, name: str, *parts: bytes | Array) -> None:
        """Add an entry of bytes and arrays in C order. Contiguous arrays are not copied."""
        views = [memoryview(part) if isinstance(part, bytes) else bytes_of(part) for part in parts]
        info = zipfile.ZipInfo(name)
        info.file_size = sum(map(len, views))
        with self.open(info, "w") as target:
            for view in views:
                target.write(view)
