"""The heap of a process that serves strangers: what was freed goes back to the system."""

from __future__ import annotations

import ctypes
import os

__all__ = ["LARGE", "give_back"]

LARGE = 64 << 10
"""Bytes from which a piece of memory is the system's own, and goes back to it as soon as it is freed."""
_TOP = 128 << 10
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_OWN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def give_back() -> bool:
    """Have glibc give large pieces of memory back when they are freed; call it where the process is one's own.

    By default glibc takes the first megabyte that is freed for a sign that more will be wanted, and keeps all pieces up
    to that size in its heap from then on, between small ones that live for long: after bodies of 200 senders a service
    kept a hundred megabytes of nothing.

    Returns:
        whether it was done: not where there is no glibc, or where the environment says how its heap is to be.
    """
    if any(name in os.environ for name in _OWN):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library, another system
        return False
    return bool(mallopt(_MMAP_THRESHOLD, LARGE)) and bool(mallopt(_TRIM_THRESHOLD, _TOP))
