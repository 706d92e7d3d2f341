"""The heap of a long-running service: freed memory is returned to the system."""

from __future__ import annotations

import ctypes
import os

__all__ = ["LARGE", "return_freed_memory"]

LARGE = 64 << 10
"""Allocations of at least this many bytes use separate mappings, which are returned to the system when freed."""
_TRIM_BYTES = 128 << 10
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
_USER_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def return_freed_memory() -> bool:
    """Make glibc return large freed allocations to the system; called once in the process of a service.

    By default, when glibc frees its first large mapping, it raises its threshold and keeps allocations up to that size
    in its heap, between small long-lived ones. After the bodies of 200 clients a service held 100 MB of free memory.

    Returns:
        True on success; False without glibc, or if the environment configures its heap.
    """
    if any(name in os.environ for name in _USER_SETTINGS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library or system
        return False
    return bool(mallopt(_MMAP_THRESHOLD, LARGE)) and bool(mallopt(_TRIM_THRESHOLD, _TRIM_BYTES))
