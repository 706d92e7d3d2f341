"""Running a compiled function on several threads: libgomp's, which oneDNN uses too.

One pool for both, so that they do not contend for the cores; its threads spin for a moment after their work,
so that handing over costs microseconds. Where libgomp is missing, the calling thread does everything.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import lru_cache
from typing import Any

from flowmx import settings
from flowmx.devices.threads import kernel_threads
from flowmx.ops.kernels.loops.compiler import Compiled

_LIBRARY = "libgomp.so.1"
_PAUSE_HARD = 2

_known: tuple[Any, int] = (None, 1)


def count() -> int:
    """How many threads one call may use."""
    global _known
    config = settings.get()
    if _known[0] is not config:
        _known = (config, kernel_threads(config))
    return _known[1]


def run(function: Compiled, words: bytes, threads: int) -> None:
    """Call a compiled function, which takes its tasks from the words' counter, on so many threads."""
    if threads > 1:
        parallel = _parallel()
        if parallel is not None:
            parallel(function.address, words, threads, 0)
            return
    function.call(words)


def available() -> bool:
    """Whether there is a pool of threads (loads libgomp)."""
    return _parallel() is not None


@lru_cache(maxsize=1)
def _parallel() -> Any:
    """The function that runs another on several threads, or None."""
    if not sys.platform.startswith("linux"):
        return None
    from flowmx.ops.kernels.onednn.library import library

    library()  # where it is, it brings the libgomp that it stands on
    try:
        found = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    if not hasattr(found, "omp_pause_resource_all"):
        return None  # older than GCC 9: see _before_fork
    parallel = found.GOMP_parallel
    parallel.restype = None
    parallel.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint)
    return parallel


def _before_fork() -> None:
    """Let the forking thread's pool go, whoever made it: its threads would be missing in the child."""
    try:
        loaded = ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        loaded.omp_pause_resource_all(_PAUSE_HARD)
    except (OSError, AttributeError):
        pass  # nobody uses it, or it is too old for this


if sys.platform.startswith("linux"):
    os.register_at_fork(before=_before_fork)
