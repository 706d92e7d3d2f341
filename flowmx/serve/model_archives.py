"""Model archives of Multi Model Server, ``.mar`` files: zip files with a model, its handler, and a manifest.

An archive is unpacked into a private temporary folder. All entries are checked before the first one is written, because
an archive may be hostile: names outside the folder, links, and files that are far larger than the archive are refused.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from flowmx.errors import DataError

__all__ = ["SUFFIX", "ScratchFolder", "is_archive", "unpack"]

SUFFIX = ".mar"
_MAX_FILES = 10_000
_MAX_RATIO = 200
"""Maximum ratio of the size of all files to the size of the archive. Code and weights rarely exceed 10."""
_ANY_RATIO = 1 << 26
"""Size of all files, in bytes, up to which the ratio is not checked."""
_CHUNK = 1 << 20


class ScratchFolder:
    """A private temporary folder, which is removed together with this object, or at exit.

    Attributes:
        path: its path.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="flowmx-mar-")).resolve()
        weakref.finalize(self, _remove, self.path, os.getpid())


def is_archive(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is that of an archive, which may be missing, and not of a folder."""
    return Path(path).suffix == SUFFIX and not Path(path).is_dir()


def unpack(path: Path) -> ScratchFolder:
    """Unpack an archive into a new temporary folder.

    Raises:
        DataError: it is not a zip file, is damaged, or has an entry that is refused; no folder is left.
        OSError: the file cannot be read, or the disk is full.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            targets = [_target(path, entry) for entry in entries]
            _check(path, entries, targets)
            folder = ScratchFolder()
            for entry, target in zip(entries, targets, strict=True):
                _extract(archive, entry, folder.path / target)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise DataError(f"{path} is damaged, or not a model archive (a zip file): {error}") from error
    return folder


def _target(path: Path, entry: zipfile.ZipInfo) -> PurePosixPath:
    """Return the relative path of an entry.

    Raises:
        DataError: it is outside the folder, or the entry is neither a file nor a folder.
    """
    name, kind = entry.filename, stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise DataError(f"{path}: entry {name[:200]!r} is a link or a device, expected a file or a folder")
    parts = name.rstrip("/").split("/")
    if any(part in ("", ".", "..") or not part.isprintable() or "\\" in part or ":" in part for part in parts):
        raise DataError(f"{path}: entry {name[:200]!r} is outside the archive's folder, expected a path such as a/b.py")
    return PurePosixPath(*parts)


def _check(path: Path, entries: Sequence[zipfile.ZipInfo], targets: Sequence[PurePosixPath]) -> None:
    """Check all entries together.

    Raises:
        DataError: two entries have the same path, there are too many, or they are far larger than the archive.
        OSError: the disk has no space for them.
    """
    files = [target for entry, target in zip(entries, targets, strict=True) if not entry.is_dir()]
    names = {str(file).casefold() for file in files}
    if len(names) < len(files) or names & {str(parent).casefold() for target in targets for parent in target.parents}:
        raise DataError(f"{path}: several entries have the same path")
    if len(entries) > _MAX_FILES:
        raise DataError(f"{path} has {len(entries)} entries, expected at most {_MAX_FILES}")
    total, packed = sum(entry.file_size for entry in entries), path.stat().st_size
    if total > max(_ANY_RATIO, _MAX_RATIO * packed):
        raise DataError(
            f"{path} has {packed} bytes and unpacks to {total}, expected at most {_MAX_RATIO} times as many: unpack it "
            "and serve the folder if you trust it"
        )
    scratch = tempfile.gettempdir()
    free = shutil.disk_usage(scratch).free
    if total > free:
        raise OSError(f"{path} unpacks to {total} bytes, and {scratch} has {free} bytes left: set TMPDIR")


def _extract(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> None:
    if entry.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as source, target.open("xb") as file:
        shutil.copyfileobj(source, file, _CHUNK)


def _remove(path: Path, process: int) -> None:
    """Remove a folder, but not in the child of a fork, whose parent still uses it."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)
