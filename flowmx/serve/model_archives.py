"""Model archives of Multi Model Server, ``.mar`` files: zip files with a model, its handler, and a manifest."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["SUFFIX", "is_archive"]

SUFFIX = ".mar"


def is_archive(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is that of an archive, which may be missing, and not of a folder."""
    return Path(path).suffix == SUFFIX and not Path(path).is_dir()
