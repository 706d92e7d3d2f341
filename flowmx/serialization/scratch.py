"""Temporary files that are renamed when they are complete."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

AnyPath: TypeAlias = str | os.PathLike[str]


class FolderError(OSError):
    """A file cannot be created in a folder."""

    def for_file(self, path: AnyPath) -> OSError:
        """Return the error with the path of the final file."""
        reason = f"{self.strerror}: the folder {str(Path(self.filename).parent)!r} is not writable"
        return OSError(self.errno, reason, os.fspath(path))


def write_scratch(scratch: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write and sync a new file. Remove it if that fails."""
    try:
        file = scratch.open("xb")
    except OSError as error:
        raise FolderError(error.errno, error.strerror, os.fspath(scratch)) from None
    try:
        with file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:  # cleanup, also when interrupted
        scratch.unlink(missing_ok=True)
        raise


def sync_directory(path: Path) -> None:
    """Make a rename in a directory durable, if the system supports it."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems refuse; the file itself is safe
    finally:
        os.close(descriptor)
