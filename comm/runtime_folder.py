"""The folder for the sockets, reports and secrets of processes; only this user may enter it."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from flowmx import settings

__all__ = ["path"]


def path(make: bool = False) -> Path:
    """Return the folder: ``flowmx`` in FLOWMX_RUNTIME_FOLDER (or XDG_RUNTIME_DIR), or one in the temporary folder.

    Args:
        make: whether to create it if it does not exist.

    Raises:
        PermissionError: it exists and belongs to another user, or others may enter it.
    """
    configured = settings.get().runtime_folder
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(configured) / "flowmx" if configured else Path(tempfile.gettempdir()) / f"flowmx-{user}"
    if make:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.exists() and hasattr(os, "getuid"):
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != user or status.st_mode & 0o077:
            raise PermissionError(
                f"{folder} must be a folder that only this user may enter (mode 700): "
                "remove it, or set FLOWMX_RUNTIME_FOLDER to another"
            )
    return folder
