"""Thread counts of engine workers, BLAS, OpenMP and oneDNN, which share the same cores.

With one worker, its kernels may use every core; several workers divide the cores between them.
``FLOWMX_CPU_KERNEL_NTHREADS`` overrides this.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from flowmx import process_hooks
from flowmx.process_changes import temporary_change
from flowmx.settings import Settings

_PAUSE_HARD = 2

_SPIN_SETTINGS = {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "3000"}

_applied: int | None = None
_openmp: ctypes.PyDLL | None = None
"""The OpenMP library, if its kernels use fewer threads than there are cores."""


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def kernel_threads(config: Settings) -> int:
    """Return the number of threads that one kernel may use."""
    return config.cpu_kernel_nthreads or max(1, cores() // max(1, config.cpu_worker_nthreads))


def apply(config: Settings) -> None:
    """Set the thread counts of libraries in this process (once for each count)."""
    global _applied, _openmp
    count = kernel_threads(config)
    if count == _applied:
        return
    former, _applied = _applied, count
    if former is None and count == cores() and not config.cpu_kernel_nthreads:
        return  # the libraries' default, unless the environment (OMP_NUM_THREADS) sets another
    try:
        with spin_before_sleep():
            _openmp = ctypes.PyDLL("libgomp.so.1")  # short calls, which keep the interpreter's lock
    except OSError:
        pass  # without the library there are no OpenMP kernels
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return
    threadpool_limits(limits=count)


def apply_here() -> None:
    """Set the thread count for kernels of the calling thread; OpenMP stores it for each thread."""
    if _openmp is not None:
        _openmp.omp_set_num_threads(_applied)


@contextmanager
def spin_before_sleep() -> Iterator[None]:
    """Make the threads of an OpenMP library that is loaded inside spin for some microseconds before they sleep.

    Kernels run on several threads (of workers and of waiting callers), each of which has OpenMP threads. If there are
    more OpenMP threads than cores, libgomp's sleep almost at once, and each call has to wake them, which takes longer
    than a small product. If the environment sets the waiting policy, it stays.
    """
    if any(name in os.environ for name in _SPIN_SETTINGS):
        yield
        return
    with temporary_change(
        lambda: os.environ.update(_SPIN_SETTINGS), lambda: [os.environ.pop(name, None) for name in _SPIN_SETTINGS]
    ):
        yield


def _before_fork() -> None:
    """Release the OpenMP threads of the forking thread: the child has none, and would wait for them."""
    try:
        openmp = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        openmp.omp_pause_resource_all(_PAUSE_HARD)
    except (OSError, AttributeError):
        pass  # it is not loaded, or older than GCC 9


if sys.platform.startswith("linux"):
    process_hooks.at_fork(before=_before_fork)
