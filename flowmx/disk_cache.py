"""The cache of computed files in the user's cache folder, keyed by a digest of their inputs.

A file begins with the digest of its content, so that damaged files are detected and recomputed. If the folder is not
writable, files are recomputed every time.
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
    """Return the folder of cached files: FLOWMX_KERNEL_CACHE, or a folder in the user's cache folder."""
    configured = settings.get().kernel_cache
    if configured:
        return Path(configured)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~").expanduser() / ".cache") / "flowmx" / "kernels"


def read(path: Path) -> bytes | None:
    """Return the content of a cached file, or None if it is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    checksum, payload = content[:_SIZE], content[_SIZE:]
    return payload if checksum == digest(payload).digest() else None


def write(path: Path, content: bytes) -> None:
    """Write a file to the cache atomically."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(digest(content).digest() + content)
            Path(temporary).replace(path)
        except BaseException:  # cleanup, also when interrupted
            Path(temporary).unlink()
            raise
    except OSError:
        pass  # read-only or full: the file is recomputed next time


def stamp(path: Path | os.DirEntry[str]) -> tuple[str, int, int]:
    """Return a file's path, size and modification time, for digests of files computed from it."""
    status = path.stat()
    return os.fspath(path), status.st_size, status.st_mtime_ns


def processor() -> str:
    """Return the processor's model and features."""
    try:
        with Path("/proc/cpuinfo").open("rb", 0) as file:
            text = file.read(1 << 14).decode("utf-8", "replace")  # only the first entry: the file is slow to read
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.version()}"
    lines = text.partition("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.startswith(("model", "vendor", "stepping", "flags", "Features")))
