"""The mark of a file that is being overwritten in place. It names the copy that has the content."""

from __future__ import annotations

import os
import re
from pathlib import Path

from flowmx import disk_cache

_WORD = b"\0flowmx saving "
_TOKEN = re.compile(re.escape(_WORD) + rb"([0-9a-f]{16})\n")
HALF = 32
MARK = 2 * HALF
"""The size of a mark. It has two equal halves, so that one stays intact if short content overwrites the other."""


def mark(token: str) -> bytes:
    """Return the mark for a token."""
    return (_WORD + token.encode() + b"\n") * 2


def token_of(head: bytes) -> str | None:
    """Return the token of the mark at the beginning of a file, or None without a mark."""
    match = _TOKEN.match(head) or _TOKEN.match(head[HALF:])
    return match[1].decode() if match else None


def copy_name(token: str) -> str:
    """Return the name of the copy for a token, in the file's folder or in the spare folder."""
    return f".flowmx-{token}.saved"


def spare_folder() -> Path:
    """Return the folder for copies of files whose own folder is not writable."""
    return disk_cache.folder() / "saving"


def first_bytes(descriptor: int) -> bytes:
    """Return the first bytes of an open file, which may be a mark."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, MARK)
