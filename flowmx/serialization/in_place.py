"""Overwriting an existing file such that it keeps its inode and no crash leaves it half-written.

1. The new content is written to a copy in the same folder, ``.flowmx-<token>.saved``, and synced.
2. A mark with the token overwrites the first bytes of the file.
3. The content is written after the mark, and finally over the mark.
4. The copy is removed.

A reader that finds a mark reads the copy. If writing fails after step 2, the copy is renamed to the name of the file.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from flowmx.serialization.locks import exclusive
from flowmx.serialization.marks import HALF, MARK, copy_name, first_bytes, mark, spare_folder, token_of
from flowmx.serialization.scratch import AnyPath, FolderError, sync_directory, write_scratch

_BLOCK = 1 << 20
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Target(NamedTuple):
    """A file that is overwritten in place.

    Attributes:
        descriptor: The open file.
        name: Its resolved path; None if it was unlinked.
    """

    descriptor: int
    name: Path | None

    def status(self) -> os.stat_result:
        """Return its stat result."""
        return os.fstat(self.descriptor)

    def is_at(self, path: Path) -> bool:
        """Return whether a path leads to it."""
        return path.exists() and os.path.samestat(path.stat(), self.status())

    @property
    def folders(self) -> list[Path]:
        """The folders that may contain its copy, the preferred one first."""
        return ([] if self.name is None else [self.name.parent]) + [spare_folder()]


def rewrite(path: AnyPath, chunks: Iterable[bytes | memoryview]) -> None:
    """Overwrite an existing file."""
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        target, real = _Target(descriptor, None), Path(os.path.realpath(path))
        if target.is_at(real):
            target = target._replace(name=real)
        token, status = secrets.token_hex(8), target.status()
        copy = _write_copy(target, token, path, chunks)
        try:
            lock = exclusive(copy.with_name(f".flowmx-{status.st_dev}-{status.st_ino}.lock"))
        except BaseException:  # cleanup, also when interrupted
            copy.unlink()
            raise
        with lock:
            if target.name is None or target.is_at(target.name):
                _overwrite(target, token, copy)
            else:  # another file took the name while this writer waited
                copy.replace(target.name)
    finally:
        os.close(descriptor)


def _write_copy(target: _Target, token: str, path: AnyPath, chunks: Iterable[bytes | memoryview]) -> Path:
    """Write the new content to a copy in the folder of a file, or in the spare folder if that is not writable."""
    for folder in target.folders:
        if folder == spare_folder():
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        copy = folder / copy_name(token)
        try:
            write_scratch(copy, chunks)
        except FolderError as error:
            if error.errno in _NOT_WRITABLE and folder != target.folders[-1]:
                continue
            raise error.for_file(path) from None
        sync_directory(folder)
        return copy
    raise AssertionError("no folder")


def _overwrite(target: _Target, token: str, copy: Path) -> None:
    """Write the content of a copy into a file and remove the copy."""
    with copy.open("rb", 0) as content:
        head, status = first_bytes(target.descriptor), target.status()
        size = os.fstat(content.fileno()).st_size
        try:
            _write_at(target.descriptor, mark(token), 0)
            _reserve(target.descriptor, size)
        except BaseException:  # cleanup, also when interrupted
            os.ftruncate(target.descriptor, status.st_size)
            _write_at(target.descriptor, head, 0)
            copy.unlink()
            raise
        try:
            _write_content(target.descriptor, content, size)
        except BaseException as error:  # an interrupt must not leave half a file
            if not _replace_target(copy, target, status) or not isinstance(error, OSError):
                raise
        else:
            _touch(target, status)
            copy.unlink()
    interrupted = token_of(head)  # remove the copy of an earlier, interrupted writer
    if interrupted is not None:
        for folder in target.folders:
            with suppress(OSError):
                (folder / copy_name(interrupted)).unlink(missing_ok=True)


def _write_content(descriptor: int, content: BinaryIO, size: int) -> None:
    """Write all content into a file that begins with a mark; the mark is overwritten last."""
    head = content.read(MARK)
    position, buffer = len(head), memoryview(bytearray(_BLOCK))
    while count := content.readinto(buffer):  # type: ignore[attr-defined]
        _write_at(descriptor, buffer[:count], position)
        position += count
    os.ftruncate(descriptor, size if size >= HALF else MARK)
    os.fsync(descriptor)
    _write_at(descriptor, head, 0)
    os.ftruncate(descriptor, size)
    os.fsync(descriptor)


def _write_at(descriptor: int, data: bytes | memoryview, position: int) -> None:
    view = memoryview(data)
    os.lseek(descriptor, position, os.SEEK_SET)
    while view:
        view = view[os.write(descriptor, view) :]


def _reserve(descriptor: int, size: int) -> None:
    """Reserve disk space for a size, if the system supports it.

    Raises:
        OSError: The disk is full.
    """
    current = os.fstat(descriptor).st_size
    if size <= current or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, current, size - current)
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise


def _replace_target(copy: Path, target: _Target, status: os.stat_result) -> bool:
    """Rename a copy to the name of a file that could not be overwritten. Return whether that succeeded.

    If not, the mark in the file names the copy.
    """
    if target.name is None or status.st_nlink > 1:
        return False
    try:
        copy.chmod(stat.S_IMODE(status.st_mode))
        with suppress(OSError):
            os.chown(copy, status.st_uid, status.st_gid)
        copy.replace(target.name)
    except OSError:
        return False
    return True


def _touch(target: _Target, status: os.stat_result) -> None:
    """Set a modification time later than the previous one, so that readers detect the change."""
    modified = max(time.time_ns(), status.st_mtime_ns + 1)
    with suppress(OSError):
        os.utime(target.descriptor, ns=(status.st_atime_ns, modified))
