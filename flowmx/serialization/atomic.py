"""Atomic writing of files: after a crash they have either their old or their new content.

A new file is written under a temporary name and renamed. An existing file keeps its inode, because other programs may
have it open and hard links may lead to it: `in_place` overwrites it. flowmx reads files with `read_from`, which also
recovers the content of a file whose writing was interrupted.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, TypeVar

from flowmx.errors import raised_as_mxnet
from flowmx.process_hooks import fold_uncaught
from flowmx.serialization.in_place import rewrite
from flowmx.serialization.marks import MARK, copy_name, first_bytes, spare_folder, token_of
from flowmx.serialization.scratch import AnyPath, FolderError, sync_directory, write_scratch
from flowmx.suggestions import note_similar_files

_T = TypeVar("_T")
_TRIES = 100


@raised_as_mxnet(OSError)
def replace_file(path: AnyPath, chunks: Iterable[bytes | memoryview]) -> None:
    """Write `chunks` to `path` atomically: after a crash the file has either its old or its new content.

    An existing file keeps its inode: its links, permissions and owner, and handles that are open. Pipes and devices are
    written directly.

    Raises:
        OSError: The file cannot be written; it is unchanged.
    """
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        _create(Path(os.path.realpath(path)), path, chunks)  # a link stays a link
        return
    if stat.S_ISREG(status.st_mode):
        rewrite(path, chunks)
        return
    with Path(path).open("wb") as file:
        file.writelines(chunks)


@raised_as_mxnet(OSError)
def supersede_file(path: AnyPath, chunks: Iterable[bytes | memoryview]) -> None:
    """Write `chunks` to a new file that takes the name of an existing one, whose maps keep the old content.

    Pipes and devices are written directly.

    Raises:
        OSError: The file cannot be written; it is unchanged.
    """
    if Path(path).exists() and not Path(path).is_file():
        with Path(path).open("wb") as file:
            file.writelines(chunks)
    else:
        _create(Path(os.path.realpath(path)), path, chunks)


def _create(target: Path, path: AnyPath, chunks: Iterable[bytes | memoryview]) -> None:
    """Write a new file."""
    scratch = target.with_name(f".flowmx-{secrets.token_hex(8)}.tmp")
    try:
        write_scratch(scratch, chunks)
    except FolderError as error:
        raise error.for_file(path) from None
    try:
        scratch.replace(target)
    except BaseException:  # cleanup, also when interrupted
        scratch.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def _opened(path: AnyPath) -> BufferedReader:
    try:
        return Path(path).open("rb")
    except FileNotFoundError as error:
        note_similar_files(error)
        fold_uncaught()
        raise


def read_from(path: AnyPath, read: Callable[[BinaryIO], _T]) -> _T:
    """Return the result of `read` for a file, even if it is being written or its writing was interrupted.

    `read` is called with the open file, and again if the file changed meanwhile.

    Raises:
        OSError: The file cannot be read, or its writing was interrupted and the copy of its content is missing.
    """
    for _ in range(_TRIES):
        with _opened(path) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return read(file)
            version = _version(file)
            token = token_of(file.peek(MARK)[:MARK])
            copy = file if token is None else _open_copy(path, token)
            if copy is None:
                continue  # the writer has finished meanwhile, or the copy is missing
            with copy:
                try:
                    result = read(copy)
                except Exception:  # any reader of damaged content may fail in any way
                    if copy is not file or _is_unchanged(file, version):
                        raise
                    continue
                if copy is not file or _is_unchanged(file, version):
                    return result
    raise OSError(
        errno.EIO, "the writing of this file was interrupted, and the copy of its content "
        f"({copy_name('*')} in the same folder) is missing: restore it, or save the file again", os.fspath(path),
    )  # fmt: skip


def _version(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_mtime_ns, status.st_size


def _is_unchanged(file: BinaryIO, version: tuple[int, int]) -> bool:
    """Return whether no writer has changed a file since it had this version."""
    return _version(file) == version and token_of(first_bytes(file.fileno())) is None


def _open_copy(path: AnyPath, token: str) -> BinaryIO | None:
    for folder in (Path(os.path.realpath(path)).parent, spare_folder()):
        with suppress(FileNotFoundError):
            return (folder / copy_name(token)).open("rb")
    return None


def remove_scratch_files(folder: Path) -> None:
    """Remove temporary files of killed writers from a folder, except copies that marks refer to."""
    files = [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
    needed = set()
    for path in files:
        if not path.name.startswith(".flowmx-"):
            with path.open("rb") as file:
                needed.add(copy_name(token_of(file.read(MARK)) or ""))
    for path in files:
        if path.name.startswith(".flowmx-") and path.name not in needed:
            path.unlink(missing_ok=True)
