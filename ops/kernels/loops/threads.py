"""Running a compiled function on several threads: libgomp's, which oneDNN uses too.

One pool for both, so that they do not contend for the cores; its threads spin for a moment after their work,
so that handing over costs microseconds. Where libgomp is missing, the calling thread does everything.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from flowmx import settings
from flowmx.devices.threads import kernel_threads
from flowmx.ops.kernels.loops.compiler import Compiled

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


@lru_cache(maxsize=1)
def libgomp() -> Any:
    """GNU's OpenMP library, the one that oneDNN brings or loads; None where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    if (Path(sys.prefix) / "lib" / "libdnnl.so.3").exists():
        # Loading it loads the libgomp that it stands on, under the name that the next lines ask for.
        try:
            ctypes.CDLL(str(Path(sys.prefix) / "lib" / "libdnnl.so.3"))
        except OSError:
            pass
    try:
        return ctypes.CDLL("libgomp.so.1")
    except OSError:
        return None


@lru_cache(maxsize=1)
def _parallel() -> Any:
    library = libgomp()
    if library is None:
        return None
    pause = getattr(library, "omp_pause_resource_all", None)
    if pause is None:
        return None  # older than GCC 9: a fork would leave a pool without threads
    # The threads of a pool do not survive a fork: the forking thread lets its own go, and makes new ones when needed.
    os.register_at_fork(before=lambda: pause(_PAUSE_HARD))
    parallel = library.GOMP_parallel
    parallel.restype = None
    parallel.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint)
    return parallel
