"""Files of records: `MXRecordIO`, and `MXIndexedRecordIO` with an index file."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from flowmx.data.records.framing import encode
from flowmx.data.records.index import read_index
from flowmx.data.records.reader import CHUNK, Source, Window
from flowmx.errors import MXNetError, raised_as_mxnet
from flowmx.keywords import ChecksKeywords
from flowmx.overrides import is_replaced

_MODES = {"r": False, "w": True}


class MXRecordIO(ChecksKeywords):
    """A file of records, read or written sequentially.

    A pickled file is opened again at its beginning if it was open. After a fork the child continues at the parent's
    position. Only one process may write to a file.

    Args:
        uri: the file.
        flag: ``"r"`` to read, ``"w"`` to overwrite it.

    Raises:
        ValueError: the flag is unknown.
        OSError: the file cannot be opened.

    Example:
        >>> with mx.recordio.MXRecordIO("numbers.rec", "w") as record:
        ...     for i in range(5):
        ...         record.write(b"record %d" % i)
        >>> with mx.recordio.MXRecordIO("numbers.rec", "r") as record:
        ...     record.read()
        b'record 0'
    """

    is_open = False

    def __init__(self, uri: str | os.PathLike[str], flag: str) -> None:
        if flag not in _MODES:
            raise ValueError(f"{type(self).__name__}: flag is {flag!r}, expected 'r' or 'w'")
        self.uri = os.fspath(uri)
        self.flag = flag
        self.writable = _MODES[flag]
        self.open()

    def open(self) -> None:
        """Open the file, at its beginning; a writable file becomes empty."""
        self.pid = os.getpid()
        self._position = 0
        if self.writable:
            self._out = Appender(self.uri)
        else:
            self._source = Source(self.uri)
            self._window = Window(self._source)
        self.is_open = True

    def close(self) -> None:
        """Close the file; does nothing if it is already closed."""
        if not self.is_open:
            return
        self.is_open = False
        (self._out if self.writable else self._source).close()

    def reset(self) -> None:
        """Go back to the first record; a writable file becomes empty."""
        self.close()
        self.open()

    def write(self, buf: bytes | bytearray | memoryview) -> None:
        """Write a record.

        Raises:
            MXNetError: the file is open for reading, or closed.
            RuntimeError: another process has opened it.
            TypeError: ``buf`` is not bytes.
            ValueError: ``buf`` is too long.
        """
        self._expect(writable=True)
        if not isinstance(buf, bytes | bytearray | memoryview):
            raise TypeError(f"MXRecordIO.write: buf is {type(buf).__name__}, expected bytes")
        if self.pid != os.getpid():
            raise RuntimeError(
                f"MXRecordIO.write: {self.uri!r} was opened by process {self.pid}, this is {os.getpid()}: open a "
                "separate file in each process"
            )
        raw = encode(buf)
        self._out.append(raw)
        self._position += len(raw)

    def read(self) -> bytes | None:
        """Read the next record; None at the end.

        Raises:
            MXNetError: the file is open for writing, or closed.
            RecordFormatError: the file is damaged; the message has the offset.
        """
        self._expect(writable=False)
        window, offset = self._window, self._position
        if not window.start <= offset <= window.start + len(window.raw) - CHUNK // 8:
            # The window is nearly used up: read ahead, so that most records are contiguous.
            window.start, window.raw = offset, self._source.bytes_at(offset, CHUNK)
            if not window.raw:
                return None
        elif offset == window.start + len(window.raw):
            return None
        content, self._position = window.take(offset)
        return content

    def tell(self) -> int:
        """Return the offset of the next record."""
        return self._position

    def _expect(self, writable: bool) -> None:
        if self.writable != writable or not self.is_open:
            action = "write" if writable else "read"
            state = f"opened with flag {self.flag!r}" if self.is_open else "closed"
            raise MXNetError(f"{type(self).__name__}: {self.uri!r} is {state}, and cannot be used to {action}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self.close()

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> dict[str, object]:
        """Return the state without open files; a writable file is closed, because opening it again empties it."""
        if self.writable:
            self.close()
        return {name: value for name, value in self.__dict__.items() if name not in _NOT_PICKLED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        was_open = state.get("is_open", False)
        self.is_open = False
        if was_open:
            self.open()


_NOT_PICKLED = ("_out", "_source", "_window", "_index")
"""Attributes that are not pickled."""


class Appender:
    """A new file with a large buffer; the child of a fork does not write its parent's pending bytes.

    Args:
        path: the file.
    """

    @raised_as_mxnet(OSError)
    def __init__(self, path: str) -> None:
        self._pid = os.getpid()
        self._file = Path(path).open("wb", buffering=0)  # noqa: SIM115 - closed by close()
        self._pending: list[bytes] = []
        self._size = 0

    def append(self, raw: bytes) -> None:
        """Append bytes; they may be written later."""
        self._pending.append(raw)
        self._size += len(raw)
        if self._size >= _BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write all pending bytes."""
        rest = memoryview(b"".join(self._pending))
        self._pending, self._size = [], 0
        while rest:
            rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        """Write the pending bytes, and close the file."""
        try:
            if self._pid == os.getpid():
                self.flush()
        finally:
            self._file.close()


_BUFFER_BYTES = 1 << 20


if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    Key = _TypeVar("Key", default=int)
else:
    Key = TypeVar("Key")


class MXIndexedRecordIO(MXRecordIO, Generic[Key]):
    """A file of records with an index (a text file of keys and offsets), to read records in any order.

    Args:
        idx_path: the index.
        uri: the file of records.
        flag: ``"r"`` to read, ``"w"`` to overwrite both files.
        key_type: converts the text of a key to the key.

    Attributes:
        idx: the offset of each key.
        keys: the keys, in the order of the index.

    Raises:
        ValueError: the flag is unknown, or a line of the index is not a key and an offset.
        OSError: a file cannot be opened.

    Example:
        >>> with mx.recordio.MXIndexedRecordIO("numbers.idx", "numbers.rec", "w") as record:
        ...     for i in range(5):
        ...         record.write_idx(i, b"record %d" % i)
        >>> mx.recordio.MXIndexedRecordIO("numbers.idx", "numbers.rec", "r").read_idx(3)
        b'record 3'
    """

    def __init__(
        self,
        idx_path: str | os.PathLike[str],
        uri: str | os.PathLike[str],
        flag: str,
        key_type: Callable[[str], Key] = int,  # type: ignore[assignment]  # the default of the type variable
    ) -> None:
        self.idx_path = os.fspath(idx_path)
        self.key_type = key_type
        self.idx: dict[Key, int] = {}
        self.keys: list[Key] = []
        super().__init__(uri, flag)

    def open(self) -> None:
        super().open()
        if self.writable:
            self.idx, self.keys = {}, []
            self._index = Appender(self.idx_path)
        else:
            try:
                pairs = read_index(self.idx_path, self.key_type)
            except BaseException:  # cleanup, also when interrupted
                super().close()
                raise
            self.keys = [key for key, _ in pairs]
            self.idx = dict(pairs)
            offsets = sorted({*self.idx.values(), self._source.size()})
            self._sizes = dict(zip(offsets, (b - a for a, b in pairwise(offsets)), strict=False))

    def close(self) -> None:
        if self.is_open and self.writable:
            self._index.close()
        super().close()

    def seek(self, idx: object) -> None:
        """Set the position of :meth:`read` to a key's record.

        Raises:
            MXNetError: the file is open for writing, or closed.
            KeyError: the key is unknown.
        """
        self._expect(writable=False)
        self._position = self._offset(idx)

    def read_idx(self, idx: object) -> bytes:
        """Read a key's record.

        Raises:
            MXNetError: the file is open for writing, or closed.
            KeyError: the key is unknown.
            RecordFormatError: there is no valid record at the key's offset.
        """
        self._expect(writable=False)
        if is_replaced(self, "seek", _seek) or is_replaced(self, "read", _read):
            self.seek(idx)
            return self.read()  # type: ignore[return-value]
        offset = self._offset(idx)
        content, self._position = self._source.record(offset, self._sizes.get(offset, CHUNK))
        return content

    def write_idx(self, idx: Any, buf: bytes | bytearray | memoryview) -> None:
        """Write a record under a key; raises the exceptions of :meth:`write`."""
        key = self.key_type(idx)
        offset = self.tell()
        self.write(buf)
        self._index.append(f"{key}\t{offset}\n".encode())
        self.idx[key] = offset
        self.keys.append(key)

    def _offset(self, key: object) -> int:
        try:
            return self.idx[cast("Key", key)]
        except KeyError:
            summary = f"{len(self.keys)} keys" + (f", from {self.keys[0]!r} to {self.keys[-1]!r}" if self.keys else "")
            raise KeyError(f"{key!r} is not a key of {self.idx_path!r}, which has {summary}") from None


_seek, _read = MXIndexedRecordIO.seek, MXRecordIO.read
