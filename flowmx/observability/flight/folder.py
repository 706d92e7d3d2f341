"""Folder of processes' sockets and reports, accessible to this user only."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from flowmx.comm.runtime_folder import path

__all__ = ["path", "report", "socket_path", "sweep"]

_MAX_REPORTS = 32
"""Maximum number of reports; older ones are removed."""


def socket_path(process: int, make: bool = False) -> Path:
    """Return the path of a process's socket."""
    return path(make) / f"{process}.sock"


def report(process: int) -> Path:
    """Return the path of a process's report."""
    return path(make=True) / f"{process}.report.json"


def sweep() -> None:
    """Remove the sockets of processes that were killed, and all but the newest reports."""
    folder = path()
    for file in folder.glob("*.sock"):
        if file.stem.isdecimal() and not _is_alive(int(file.stem)) and not _has_listener(file):
            file.unlink(missing_ok=True)
    reports = sorted(folder.glob("*.report.json"), key=lambda file: file.stat().st_mtime)
    for file in reports[:-_MAX_REPORTS]:
        file.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it belongs to another user
    return True


def _has_listener(file: Path) -> bool:
    """Return whether a process listens on a socket. The folder may be shared with processes of other containers."""
    with contextlib.suppress(ConnectionRefusedError, FileNotFoundError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.fspath(file))
        return True
    return False
