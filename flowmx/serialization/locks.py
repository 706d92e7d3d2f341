"""File locks between threads and processes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

_TIMEOUT = 60.0  # seconds


def exclusive(path: Path) -> AbstractContextManager[None]:
    """Exclude other writers of the same file, in this and other processes, until the context exits.

    Raises:
        TimeoutError: Another writer has held the lock for a minute.
    """
    deadline = time.monotonic() + _TIMEOUT
    while os.name == "posix":
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:
            break
        try:
            if _try_lock(descriptor) and path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
                return _release_at_exit(path, descriptor)
        except OSError:  # some network file systems have no locks
            os.close(descriptor)
            break
        os.close(descriptor)
        if time.monotonic() > deadline:
            reason = f"another process has been writing this file for {_TIMEOUT:.0f} s and holds the lock"
            raise TimeoutError(errno.ETIMEDOUT, reason, os.fspath(path))
        time.sleep(0.002)
    return nullcontext()


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold a lock file until the context or this process exits; other processes check :func:`is_held`.

    Raises:
        OSError: The file cannot be created.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(OSError):  # some network file systems have no locks
            if os.name == "posix":
                _try_lock(descriptor)
        if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
            break
        os.close(descriptor)  # another process removed it as stale before it was locked
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Return whether a process holds a lock file. Remove a stale lock file."""
    if os.name != "posix":
        return False
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        if not _try_lock(descriptor):
            return True
        path.unlink(missing_ok=True)
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return False


@contextmanager
def _release_at_exit(path: Path, descriptor: int) -> Iterator[None]:
    """Remove and unlock a locked file when the context exits."""
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        _unlock(descriptor)
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(descriptor: int) -> None:
    """Unlock a file, also for processes that have inherited the descriptor."""
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_UN)
