"""Folder of processes' sockets and reports, which only this user may enter."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from flowmx.comm.folder import path

__all__ = ["path", "report", "socket_path", "sweep"]

_REPORTS = 32
"""Reports that are kept; older ones go."""


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
