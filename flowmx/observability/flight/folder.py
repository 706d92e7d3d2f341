"""Folder of processes' sockets and reports, which only this user may enter."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import tempfile
from pathlib import Path

from flowmx import settings

__all__ = ["path", "report", "socket_path", "sweep"]

_REPORTS = 32
"""Reports that are kept; older ones go."""


def path(make: bool = False) -> Path:
    """The folder: ``flowmx`` in FLOWMX_RUNTIME_FOLDER (or XDG_RUNTIME_DIR), else one among the temporary files.

    Args:
        make: make it where it is not there.

    Raises:
        PermissionError: it is there and belongs to somebody else, or others may enter it.
    """
    given = settings.get().runtime_folder
    user = os.getuid() if hasattr(os, "getuid") else 0
    found = Path(given) / "flowmx" if given else Path(tempfile.gettempdir()) / f"flowmx-{user}"
    if make:
        found.mkdir(mode=0o700, parents=True, exist_ok=True)
    if found.exists() and hasattr(os, "getuid"):
        about = found.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != user or about.st_mode & 0o077:
            raise PermissionError(
                f"{found} must be a folder of this user that nobody else may enter (mode 700): "
                "remove it, or set FLOWMX_RUNTIME_FOLDER to another"
            )
    return found


def socket_path(process: int, make: bool = False) -> Path:
    """The socket of a process."""
    return path(make) / f"{process}.sock"


def report(process: int) -> Path:
    """The report of a process."""
    return path(make=True) / f"{process}.report.json"


def sweep() -> None:
    """Remove the sockets of processes that were killed, and all but the newest reports."""
    found = path()
    for each in found.glob("*.sock"):
        if each.stem.isdecimal() and not _lives(int(each.stem)) and not _is_heard(each):
            each.unlink(missing_ok=True)
    reports = sorted(found.glob("*.report.json"), key=lambda each: each.stat().st_mtime)
    for each in reports[:-_REPORTS]:
        each.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is somebody else's
    return True


def _is_heard(at: Path) -> bool:
    """Tell whether a process listens on a socket: the folder may be shared with processes not visible from here."""
    with contextlib.suppress(ConnectionRefusedError, FileNotFoundError), socket.socket(socket.AF_UNIX) as line:
        line.connect(os.fspath(at))
        return True
    return False
