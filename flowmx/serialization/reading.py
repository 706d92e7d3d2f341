"""Reading a binary file field by field, with errors that say where it stops making sense."""

from __future__ import annotations

import errno
import math
import os
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from flowmx.errors import MXNetError

Array: TypeAlias = npt.NDArray[Any]


class FileFormatError(MXNetError, ValueError):
    """A file does not hold what its format demands.

    Attributes:
        source: The file's name.
        offset: Where the unexpected bytes start.
        expected: What should stand there.
        found: What stands there.
    """

    def __init__(self, source: str, offset: int, expected: str, found: str) -> None:
        super().__init__(source, offset, expected, found)
        self.source = source
        self.offset = offset
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return f"{self.source}, byte {self.offset}: expected {self.expected}, found {self.found}"


class Source(Protocol):
    """A source of bytes: an open file, or memory."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill a buffer as far as there are bytes; return how many there were."""


class Memory:
    """Bytes that are read in order."""

    def __init__(self, data: memoryview) -> None:
        self._rest = data

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill a buffer as far as there are bytes; return how many there were."""
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


class Reader:
    """Reads fields in order, and allocates nothing that the rest of the file could not fill.

    Attributes:
        offset: How much has been read.
    """

    Error: ClassVar[type[FileFormatError]] = FileFormatError
    """The exception that is raised."""

    def __init__(self, source: Source, size: int, name: str) -> None:
        self._source = source
        self._size = size
        self._name = name
        self.offset = 0

    @property
    def left(self) -> int:
        """The number of bytes still to be read."""
        return self._size - self.offset

    def error(self, expected: str, found: object, offset: int | None = None) -> FileFormatError:
        """The error that something else stands here, or at `offset`."""
        return self.Error(self._name, self.offset if offset is None else offset, expected, str(found))

    def need(self, count: int, what: str) -> None:
        """Raise where fewer bytes are left."""
        if count > self.left:
            raise self.error(f"{count} bytes of {what}", f"the end of the file after {self.left}")

    def fill(self, buffer: memoryview, what: str) -> None:
        """Read as many bytes as the buffer takes."""
        done = 0
        while done < len(buffer):
            count = self._source.readinto(buffer[done:])
            if not count:  # another process made the file shorter after it was opened
                raise self.error(f"{len(buffer)} bytes of {what}", f"the end of the file after {done}")
            done += count
        self.offset += done

    def read(self, count: int, what: str) -> bytes:
        """Read so many bytes."""
        self.need(count, what)
        buffer = bytearray(count)
        self.fill(memoryview(buffer), what)
        return bytes(buffer)

    def numbers(self, layout: str, what: str) -> tuple[int, ...]:
        """Read little-endian numbers in a layout of :mod:`struct`."""
        return struct.unpack(f"<{layout}", self.read(struct.calcsize(f"<{layout}"), what))

    def number(self, layout: str, what: str) -> int:
        """Read one number."""
        return self.numbers(layout, what)[0]

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...], what: str) -> Array:
        """Read an array's little-endian elements in C order."""
        self.check_size(dtype, shape, what)
        self.need(math.prod(shape) * dtype.itemsize, f"{what} (shape {shape}, {dtype})")
        array = np.empty(shape, np.uint8 if dtype == np.bool_ else dtype)
        self.fill(bytes_of(array), what)
        if dtype == np.bool_:  # NumPy misbehaves on a bool that is neither 0 nor 1
            return np.minimum(array, 1, out=array).view(np.bool_)
        return array if sys.byteorder == "little" else array.byteswap(inplace=True)

    def check_size(self, dtype: np.dtype[Any], shape: tuple[int, ...], what: str) -> None:
        """Raise where no machine has the memory."""
        # NumPy refuses even an empty array whose other dims overflow.
        if math.prod(dim for dim in shape if dim) * dtype.itemsize >= 1 << 63:
            raise self.error(f"{what} of a size that can be addressed", f"shape {shape}")


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[tuple[Source, int, str]]:
    """A file to read from, its size and its name.

    Raises:
        OSError: it can not be read, or is a device.
    """
    with Path(path).open("rb") as file:
        if (size := _size(file.fileno(), path)) is not None:
            yield file, size, os.fspath(path)
        else:  # a pipe cannot tell its size
            yield in_memory(file.read(), os.fspath(path))


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """The content of a file or pipe.

    Raises:
        OSError: it can not be read, or is a device.
    """
    with Path(path).open("rb") as file:
        _size(file.fileno(), path)
        return file.read()


def _size(descriptor: int, path: str | os.PathLike[str]) -> int | None:
    """The size of a file; None of a pipe.

    Raises:
        OSError: it is a device, which may give bytes for ever.
    """
    status = os.fstat(descriptor)
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        raise OSError(errno.EINVAL, "is a device, expected a file or a pipe", os.fspath(path))
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def in_memory(data: bytes | bytearray | memoryview, name: str) -> tuple[Source, int, str]:
    """Bytes to read from, their number and what errors call them."""
    view = memoryview(data)
    view = view.cast("B") if view.c_contiguous else memoryview(bytes(view))
    return Memory(view), len(view), name


def bytes_of(array: Array) -> memoryview:
    """The memory of an array in C order."""
    return array.reshape(-1).view(np.uint8).data


def little_endian(array: Array) -> memoryview:
    """The bytes of an array in C order, as files hold them."""
    return bytes_of(array if sys.byteorder == "little" else array.byteswap())
