"""Files of records: `MXRecordIO`, and `MXIndexedRecordIO` with an index beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flowmx.data.records.framing import encode
from flowmx.data.records.index import read_index
from flowmx.data.records.reader import CHUNK, Source, Window
from flowmx.errors import MXNetError, raised_as_mxnet

_MODES = {"r": False, "w": True}


class MXRecordIO:
    """A file of records, read or written one after the other.

    It may be pickled, which keeps whether it is open, but not where; after a fork the child reads on from where the
    parent stood. A file that is written may be written by one process only.

    Args:
        uri: the file.
        flag: ``"r"`` to read, ``"w"`` to write it anew.

    Raises:
        ValueError: an unknown flag.
        OSError: the file can not be opened.

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
        """Open the file, at its beginning; one that is written becomes empty."""
        self.pid = os.getpid()
        self._at = 0
        if self.writable:
            self._out = Appender(self.uri)
        else:
            self._source = Source(self.uri)
            self._window = Window(self._source)
        self.is_open = True

    def close(self) -> None:
        """Close the file; a second time nothing happens."""
        if not self.is_open:
            return
        self.is_open = False
        (self._out if self.writable else self._source).close()

    def reset(self) -> None:
        """Go back to the first record; a file that is written becomes empty."""
        self.close()
        self.open()

    def write(self, buf: bytes | bytearray | memoryview) -> None:
        """Write a record.

        Raises:
            MXNetError: the file is read, or closed.
            RuntimeError: another process has opened it.
            TypeError: ``buf`` is no bytes.
            ValueError: it is too long.
        """
        self._expect(writable=True)
        if not isinstance(buf, bytes | bytearray | memoryview):
            raise TypeError(f"MXRecordIO.write: buf is {type(buf).__name__}, expected bytes")
        if self.pid != os.getpid():
            raise RuntimeError(
                f"MXRecordIO.write: {self.uri!r} was opened by process {self.pid}, this is {os.getpid()}: open a "
                "file of its own in each process"
            )
        raw = encode(buf)
        self._out.append(raw)
        self._at += len(raw)

    def read(self) -> bytes | None:
        """The next record; None at the end.

        Raises:
            MXNetError: the file is written, or closed.
            RecordFormatError: it is damaged; the message says at which offset.
        """
        self._expect(writable=False)
        window, at = self._window, self._at
        if not window.start <= at <= window.start + len(window.raw) - CHUNK // 8:
            # Little is left of what was read: read on, so that most records lie in one piece.
            window.start, window.raw = at, self._source.bytes_at(at, CHUNK)
            if not window.raw:
                return None
        elif at == window.start + len(window.raw):
            return None
        content, self._at = window.take(at)
        return content

    def tell(self) -> int:
        """The offset of the next record."""
        return self._at

    def _expect(self, writable: bool) -> None:
        if self.writable != writable or not self.is_open:
            wanted = "write" if writable else "read"
            state = f"opened with flag {self.flag!r}" if self.is_open else "closed"
            raise MXNetError(f"{type(self).__name__}: {self.uri!r} is {state}, and can not be used to {wanted}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self.close()

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what is open; one that is written is closed first, since to open it again would empty it."""
        if self.writable:
            self.close()
        return {name: value for name, value in self.__dict__.items() if name not in _OPEN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        was_open = state.get("is_open", False)
        self.is_open = False
        if was_open:
            self.open()


_OPEN = ("_out", "_source", "_window", "_index")
"""Attributes that are not pickled."""


class Appender:
    """A file that is written anew, in big pieces; the child of a fork does not write what its parent has yet to write.

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
        """Write at the end, now or later."""
        self._pending.append(raw)
        self._size += len(raw)
        if self._size >= _PIECE:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the system."""
        rest = memoryview(b"".join(self._pending))
        self._pending, self._size = [], 0
        while rest:
            rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        """Write what is left, and close the file."""
        try:
            if self._pid == os.getpid():
                self.flush()
        finally:
            self._file.close()


_PIECE = 1 << 20


class MXIndexedRecordIO(MXRecordIO):
    """A file of records with an index, a text file of keys and offsets: records are read in any order.

    Args:
        idx_path: the index.
        uri: the file of records.
        flag: ``"r"`` to read, ``"w"`` to write both anew.
        key_type: makes a key of its text.

    Attributes:
        idx: the offset of each key.
        keys: the keys, in the order of the index.

    Raises:
        ValueError: an unknown flag, or a line of the index that is no key and offset.
        OSError: a file can not be opened.

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
        key_type: Callable[[str], Any] = int,
    ) -> None:
        self.idx_path = os.fspath(idx_path)
        self.key_type = key_type
        self.idx: dict[Any, int] = {}
        self.keys: list[Any] = []
        super().__init__(uri, flag)

    def open(self) -> None:
        super().open()
        if self.writable:
            self.idx, self.keys = {}, []
            self._index = Appender(self.idx_path)
        else:
            try:
                pairs = read_index(self.idx_path, self.key_type)
            except BaseException:
                super().close()
                raise
            self.keys = [key for key, _ in pairs]
            self.idx = dict(pairs)
            edges = sorted({*self.idx.values(), self._source.size()})
            self._sizes = dict(zip(edges, (b - a for a, b in pairwise(edges)), strict=False))

    def close(self) -> None:
        if self.is_open and self.writable:
            self._index.close()
        super().close()

    def seek(self, idx: Any) -> None:
        """Let :meth:`read` go on at a key's record.

        Raises:
            MXNetError: the file is written, or closed.
            KeyError: there is no such key.
        """
        self._expect(writable=False)
        self._at = self._offset(idx)

    def read_idx(self, idx: Any) -> bytes:
        """A key's record.

        Raises:
            MXNetError: the file is written, or closed.
            KeyError: there is no such key.
            RecordFormatError: no sound record is where the index says.
        """
        self._expect(writable=False)
        at = self._offset(idx)
        content, self._at = self._source.record(at, self._sizes.get(at, CHUNK))
        return content

    def write_idx(self, idx: Any, buf: bytes | bytearray | memoryview) -> None:
        """Write a record under a key; the exceptions are those of :meth:`write`."""
        key = self.key_type(idx)
        at = self.tell()
        self.write(buf)
        self._index.append(f"{key}\t{at}\n".encode())
        self.idx[key] = at
        self.keys.append(key)

    def _offset(self, key: Any) -> int:
        try:
            return self.idx[key]
        except KeyError:
            known = f"{len(self.keys)} keys" + (f", from {self.keys[0]!r} to {self.keys[-1]!r}" if self.keys else "")
            raise KeyError(f"{key!r} is no key of {self.idx_path!r}, which has {known}") from None
