"""Files that are replaced as a whole."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from io import BufferedWriter
from pathlib import Path

from flowmx.errors import raised_as_mxnet


@raised_as_mxnet(OSError)
def replace_file(path: str | os.PathLike[str], chunks: Iterable[bytes | memoryview]) -> None:
    """Write `chunks` to `path`: after a crash the file holds its old content or the new, never a part.

    Raises:
        OSError: The file cannot be written; `path` is then as it was.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    scratch = target.with_name(f".flowmx-{secrets.token_hex(8)}.tmp")
    try:
        with _opened(scratch, path) as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(target)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    _sync_directory(target.parent)


def _opened(scratch: Path, path: str | os.PathLike[str]) -> BufferedWriter:
    """A new file in the place of another, which is what an error names."""
    try:
        return scratch.open("xb")
    except OSError as error:
        why = f"{error.strerror}: the folder {str(scratch.parent)!r} can not be written to"
        raise OSError(error.errno, why, os.fspath(path)) from None


def _sync_directory(path: Path) -> None:
    """Make a rename in a directory durable, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems refuse; the file itself is safe
    finally:
        os.close(descriptor)
