"""Files that spare work: what was made once, in the user's cache folder, under a digest of all that it follows from.

A file begins with a digest of what follows, so that a damaged one is found out and made anew. A folder that can not be
written costs only time.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from pathlib import Path

from flowmx import settings

digest = hashlib.sha256
_SIZE = digest().digest_size


def folder() -> Path:
    """The folder of cached files: FLOWMX_KERNEL_CACHE, else one in the user's cache folder."""
    named = settings.get().kernel_cache
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~").expanduser() / ".cache") / "flowmx" / "kernels"


def read(path: Path) -> bytes | None:
    """The content of a file of the cache, or None where there is no sound one."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    found, rest = content[:_SIZE], content[_SIZE:]
    return rest if found == digest(rest).digest() else None


def write(path: Path, content: bytes) -> None:
    """Put a file into the cache as a whole, or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, made = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(digest(content).digest() + content)
            Path(made).replace(path)
        except BaseException:
            Path(made).unlink()
            raise
    except OSError:
        pass  # read-only or full: it is made again next time


def stamp(path: Path | os.DirEntry[str]) -> tuple[str, int, int]:
    """A file's path, its size and the time of its last change: for digests of what follows from it."""
    about = path.stat()
    return os.fspath(path), about.st_size, about.st_mtime_ns


def processor() -> str:
    """The processor's model and features."""
    try:
        with Path("/proc/cpuinfo").open("rb", 0) as file:
            text = file.read(1 << 14).decode("utf-8", "replace")  # the first of many alike, which take long to tell
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.version()}"
    lines = text.partition("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.startswith(("model", "vendor", "stepping", "flags", "Features")))
