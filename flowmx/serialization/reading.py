"""Reading a binary file field by field, with errors that name the position and the expected content."""

from __future__ import annotations

import errno
import math
import os
import stat
import struct
import sys
from collections.abc import Callable
from typing import BinaryIO, ClassVar, Protocol, TypeVar, cast

import numpy as np

from flowmx.errors import MXNetError
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array
from flowmx.serialization.atomic import read_from
from flowmx.shape_limits import ShapeError, read_shape

_T = TypeVar("_T")


_LARGE = 1 << 18
"""The number of bytes from which a copy releases the interpreter lock."""


class FileFormatError(MXNetError, ValueError):
    """A file does not conform to its format.

    Attributes:
        source: The name of the file.
        offset: The position of the unexpected bytes.
        expected: The expected content.
        actual: The actual content.
    """

    def __init__(self, source: str, offset: int, expected: str, actual: str) -> None:
        super().__init__(source, offset, expected, actual)
        self.source = source
        self.offset = offset
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return f"{self.source}, byte {self.offset}: expected {self.expected}, found {self.actual}"


class Source(Protocol):
    """A source of bytes: an open file or memory."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read bytes into a buffer and return their number, which is less than its size at the end."""


class Memory:
    """A source over bytes in memory."""

    def __init__(self, data: memoryview) -> None:
        self._remaining = data

    def readinto(self, buffer: memoryview, /) -> int:
        """Read bytes into a buffer and return their number, which is less than its size at the end."""
        count = min(len(buffer), len(self._remaining))
        if count < _LARGE:
            buffer[:count] = self._remaining[:count]
        else:  # NumPy releases the interpreter lock
            np.copyto(np.frombuffer(buffer, np.uint8, count), np.frombuffer(self._remaining, np.uint8, count))
        self._remaining = self._remaining[count:]
        return count


class Reader:
    """A sequential reader of fields. It never allocates more than the rest of the file can fill.

    Attributes:
        offset: The number of bytes that have been read.
    """

    Error: ClassVar[type[FileFormatError]] = FileFormatError
    """The class of the exceptions."""

    def __init__(self, source: Source, size: int, name: str) -> None:
        self._source = source
        self._size = size
        self._name = name
        self.offset = 0

    @property
    def remaining(self) -> int:
        """The number of remaining bytes."""
        return self._size - self.offset

    def error(self, expected: str, actual: object, offset: int | None = None) -> FileFormatError:
        """Return the exception for unexpected content here, or at `offset`."""
        return self.Error(self._name, self.offset if offset is None else offset, expected, str(actual))

    def need(self, count: int, what: str) -> None:
        """Raise an error if fewer bytes remain."""
        if count > self.remaining:
            raise self.error(f"{count} bytes of {what}", f"the end of the file after {self.remaining}")

    def fill(self, buffer: memoryview, what: str) -> None:
        """Read bytes until a buffer is full."""
        position = 0
        while position < len(buffer):
            count = self._source.readinto(buffer[position:])
            if not count:  # another process truncated the open file
                raise self.error(f"{len(buffer)} bytes of {what}", f"the end of the file after {position}")
            position += count
        self.offset += position

    def read(self, count: int, what: str) -> bytes:
        """Read a number of bytes."""
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

    def array(self, dtype: DType, shape: tuple[int, ...], what: str) -> Array:
        """Read an array's little-endian elements in C order."""
        self.check_size(dtype, shape, what)
        self.need(math.prod(shape) * dtype.itemsize, f"{what} (shape {shape}, {dtype})")
        array = np.empty(shape, np.uint8 if dtype == np.bool_ else dtype)
        self.fill(bytes_of(array), what)
        if dtype == np.bool_:  # NumPy's bools must be 0 or 1
            return np.minimum(array, 1, out=array).view(np.bool_)
        return array if sys.byteorder == "little" else array.byteswap(inplace=True)

    def check_size(self, dtype: DType, shape: tuple[int, ...], what: str) -> None:
        """Raise an error if a shape is invalid or too large."""
        try:
            read_shape(shape, dtype.itemsize)
        except ShapeError as error:
            raise self.error(f"{what} of a size that can be addressed", f"a shape that {error}") from None


def read_source(path: str | os.PathLike[str], read: Callable[[Source, int, str], _T]) -> _T:
    """Return the result of `read`, called with the source of a file's bytes, their number and the file's name.

    Raises:
        OSError: The file cannot be read, or is a device.
    """
    name = os.fspath(path)

    def from_file(file: BinaryIO) -> _T:
        if (size := file_size(file.fileno(), path)) is not None:
            return read(cast(Source, file), size, name)
        return read(*in_memory(file.read(), name))  # the size of a pipe is unknown

    return read_from(path, from_file)


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file or pipe.

    Raises:
        OSError: The file cannot be read, or is a device.
    """

    def content(file: BinaryIO) -> bytes:
        file_size(file.fileno(), path)
        return file.read()

    return read_from(path, content)


def read_large(path: str | os.PathLike[str]) -> memoryview:
    """Return the content of a file or pipe in a NumPy array.

    Freeing a bytes object of hundreds of megabytes holds the interpreter lock as long as copying it.

    Raises:
        OSError: The file cannot be read, or is a device.
    """

    def content(file: BinaryIO) -> memoryview:
        size = file_size(file.fileno(), path)
        if not size:  # a pipe
            return memoryview(file.read())
        buffer, position = np.empty(size, np.uint8), 0
        while position < size and (count := cast(Source, file).readinto(buffer.data[position:])):
            position += count
        return buffer.data[:position]

    return read_from(path, content)


def file_size(descriptor: int, path: str | os.PathLike[str]) -> int | None:
    """Return the size of an open file, or None for a pipe.

    Raises:
        OSError: it is a device, which may be endless.
    """
    status = os.fstat(descriptor)
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        raise OSError(errno.EINVAL, "is a device, expected a file or a pipe", os.fspath(path))
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def in_memory(data: bytes | bytearray | memoryview, name: str) -> tuple[Source, int, str]:
    """Return a source over bytes, their number, and their name in errors."""
    view = memoryview(data)
    view = view.cast("B") if view.c_contiguous else memoryview(bytes(view))
    return Memory(view), len(view), name


def bytes_of(array: Array) -> memoryview:
    """Return the bytes of an array in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def little_endian(array: Array) -> memoryview:
    """Return the little-endian bytes of an array in C order."""
    return bytes_of(array if sys.byteorder == "little" else array.byteswap())
