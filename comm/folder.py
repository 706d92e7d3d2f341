"""Folder of processes' sockets, reports and secrets, which only this user may enter."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from flowmx import settings

__all__ = ["path"]


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
