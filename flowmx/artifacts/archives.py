"""Unpack archives (zip and tar files, and single compressed files) into private temporary folders.

All entries are checked before the first one is written, because an archive may be hostile: names outside the folder,
links, devices, and files that are far larger than the archive are refused.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import shutil
import stat
import tarfile
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, TypeAlias, cast

from flowmx.errors import DataError

__all__ = ["ScratchFolder", "holds_arrays", "is_archive", "texts", "unpack"]

_MAX_FILES = 10_000
_MAX_RATIO = 200
"""Maximum ratio of the size of all files to the size of the archive. Code and weights rarely exceed 10."""
_ANY_RATIO = 1 << 26
"""Size of all files, in bytes, up to which the ratio is not checked."""
_CHUNK = 1 << 20
_OUTSIDE = re.compile(r"[a-zA-Z]:|.*\\")
"""Parts of a name that leave the folder on Windows."""


_DAMAGED = (
    zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError, NotImplementedError,
    RuntimeError, ValueError,
)  # fmt: skip
"""Errors of reading a damaged archive."""


class ScratchFolder:
    """A private temporary folder, which is removed together with this object, or at exit.

    Attributes:
        path: its path.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="flowmx-")).resolve()
        weakref.finalize(self, _remove, self.path, os.getpid())


class _Entry(NamedTuple):
    """An entry of an archive.

    Attributes:
        name: its path in the archive.
        size: the size of the unpacked file in bytes.
        is_folder: whether it is a folder.
        is_special: whether it is neither a file nor a folder.
        open: opens its content.
    """

    name: str
    size: int
    is_folder: bool
    is_special: bool
    open: Callable[[], IO[bytes]]


def is_archive(path: Path) -> bool:
    """Return whether a file is a zip or tar file, or a compressed file (gzip, bzip2, xz), by its content."""
    try:
        return path.is_file() and (zipfile.is_zipfile(path) or _compression(path) is not None or _is_tar(path))
    except (EOFError, zlib.error, lzma.LZMAError):  # a compressed file that is damaged
        return False


def _is_tar(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except (EOFError, zlib.error, lzma.LZMAError):  # a compressed file that is damaged
        return False


def _compression(path: Path) -> _Compressed | None:
    """Return the class that reads a compressed file; None for other files."""
    with path.open("rb") as file:
        start = file.read(6)
    return next((opener for magic, opener in _COMPRESSIONS.items() if start.startswith(magic)), None)


_Compressed: TypeAlias = type[gzip.GzipFile] | type[bz2.BZ2File] | type[lzma.LZMAFile]
_COMPRESSIONS: dict[bytes, _Compressed] = {
    b"\x1f\x8b": gzip.GzipFile, b"BZh": bz2.BZ2File, b"\xfd7zXZ": lzma.LZMAFile,
}  # fmt: skip
"""The classes that read compressed files, by their first bytes."""


def holds_arrays(path: Path) -> bool:
    """Return whether a file is a zip file of arrays: one of NumPy (``.npz``), or one of PyTorch."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (*_DAMAGED, OSError):
        return False
    return any(name.endswith("/data.pkl") for name in names) or all(name.endswith(".npy") for name in names)


def unpack(path: Path) -> ScratchFolder:
    """Unpack an archive into a new temporary folder.

    Raises:
        DataError: it is not an archive, is damaged, or has an entry that is refused; no folder is left.
        OSError: the file cannot be read, or the disk is full.
    """
    with _entries(path) as entries:
        targets = [_target(path, entry) for entry in entries]
        _check(path, entries, targets)
        folder = ScratchFolder()
        for entry, target in zip(entries, targets, strict=True):
            _extract(entry, folder.path / target)
    return folder


def texts(path: Path, wanted: Callable[[PurePosixPath], bool]) -> dict[str, str]:
    """Return the content of text files in an archive, by name; longer files are cut.

    Args:
        path: the archive.
        wanted: returns whether a name is that of a file to read.

    Raises:
        DataError: the archive is damaged or hostile.
    """
    contents = {}
    with _entries(path) as entries:
        for entry in entries:
            if not (entry.is_folder or entry.is_special) and wanted(PurePosixPath(entry.name)):
                with entry.open() as file:
                    contents[entry.name] = file.read(_CHUNK).decode("utf-8", "replace")
    return contents


@contextmanager
def _entries(path: Path) -> Iterator[list[_Entry]]:
    """Open an archive, and return its entries.

    Raises:
        DataError: it is not an archive, or is damaged.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                _refuse_size(path, len(archive.infolist()), 0)
                yield [_zip_entry(archive, info) for info in archive.infolist()]
        elif _is_tar(path):
            with tarfile.open(path) as tar:
                yield list(_tar_entries(path, tar))
        else:
            opener = _compression(path)
            if opener is None:
                raise tarfile.ReadError("neither a zip file nor a tar file")
            with opener(path) as file:
                yield [_compressed_entry(path, cast(IO[bytes], file))]
    except DataError:
        raise
    except _DAMAGED as error:
        raise DataError(f"{path} is damaged, or not an archive (a zip or tar file): {error}") from error


def _compressed_entry(path: Path, file: IO[bytes]) -> _Entry:
    """Return the entry of a compressed file, whose size is known only after unpacking it once."""
    size, limit = 0, _size_limit(path)
    while size <= limit and (chunk := file.read(_CHUNK)):
        size += len(chunk)
    _refuse_size(path, 1, size)
    file.seek(0)
    return _Entry(path.stem if path.suffix else "content", size, False, False, lambda: file)


def _zip_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Entry:
    is_special = stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR)
    return _Entry(info.filename, info.file_size, info.is_dir(), is_special, lambda: archive.open(info))


def _tar_entries(path: Path, archive: tarfile.TarFile) -> Iterator[_Entry]:
    """Yield the entries of a tar file, up to the limits: finding them decompresses the whole file."""
    total, limit = 0, _size_limit(path)
    for number, info in enumerate(archive):
        total += info.size
        if number >= _MAX_FILES or total > limit:
            _refuse_size(path, number + 1, total)
        name = info.name.removeprefix("./")
        if name not in ("", "."):

            def content(info: tarfile.TarInfo = info) -> IO[bytes]:
                file = archive.extractfile(info)
                if file is None:
                    raise tarfile.ReadError(f"entry {info.name!r} has no content")
                return file

            yield _Entry(name, info.size, info.isdir(), not (info.isfile() or info.isdir()), content)


def _target(path: Path, entry: _Entry) -> PurePosixPath:
    """Return the relative path of an entry.

    Raises:
        DataError: it is outside the folder, or the entry is neither a file nor a folder.
    """
    name = entry.name
    if entry.is_special:
        raise DataError(f"{path}: entry {name[:200]!r} is a link or a device, expected a file or a folder")
    parts = name.rstrip("/").split("/")
    if any(part in ("", ".", "..") or not part.isprintable() or _OUTSIDE.match(part) for part in parts):
        raise DataError(f"{path}: entry {name[:200]!r} is outside the archive's folder, expected a path such as a/b.py")
    return PurePosixPath(*parts)


def _size_limit(path: Path) -> int:
    return max(_ANY_RATIO, _MAX_RATIO * path.stat().st_size)


def _refuse_size(path: Path, count: int, total: int) -> None:
    """Raise DataError if an archive has too many entries, or unpacks to too many bytes."""
    if count > _MAX_FILES:
        raise DataError(f"{path} has {count} entries, expected at most {_MAX_FILES}")
    if total > _size_limit(path):
        raise DataError(
            f"{path} has {path.stat().st_size} bytes and unpacks to {total}, expected at most {_MAX_RATIO} times as "
            "many: unpack it and use the folder if you trust it"
        )


def _check(path: Path, entries: Sequence[_Entry], targets: Sequence[PurePosixPath]) -> None:
    """Check all entries together.

    Raises:
        DataError: two entries have the same path, there are too many, or they are far larger than the archive.
        OSError: the disk has no space for them.
    """
    files = [target for entry, target in zip(entries, targets, strict=True) if not entry.is_folder]
    names = {str(file).casefold() for file in files}
    if len(names) < len(files) or names & {str(parent).casefold() for target in targets for parent in target.parents}:
        raise DataError(f"{path}: several entries have the same path")
    total = sum(entry.size for entry in entries)
    _refuse_size(path, len(entries), total)
    scratch = tempfile.gettempdir()
    free = shutil.disk_usage(scratch).free
    if total > free:
        raise OSError(f"{path} unpacks to {total} bytes, and {scratch} has {free} bytes left: set TMPDIR")


def _extract(entry: _Entry, target: Path) -> None:
    if entry.is_folder:
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with entry.open() as source, target.open("xb") as file:
        shutil.copyfileobj(source, file, _CHUNK)


def _remove(path: Path, process: int) -> None:
    """Remove a folder, but not in the child of a fork, whose parent still uses it."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)
