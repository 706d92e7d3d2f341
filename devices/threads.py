"""The one owner of thread counts: engine workers, BLAS, OpenMP and oneDNN share the same cores.

A worker's kernel may use every core as long as it is the only worker; with more workers each gets its
part. ``FLOWMX_CPU_KERNEL_NTHREADS`` overrules that.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from flowmx.settings import Settings

_PAUSE_HARD = 2

_WAITS = {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "3000"}

_applied: int | None = None
_openmp: ctypes.CDLL | None = None
"""OpenMP's library, where its kernels are to use fewer threads than there are cores."""


def cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def kernel_threads(config: Settings) -> int:
    """The number of threads that one kernel may use."""
    return config.cpu_kernel_nthreads or max(1, cores() // max(1, config.cpu_worker_nthreads))


def apply(config: Settings) -> None:
    """Give the libraries in this process their thread counts (once for each count)."""
    global _applied, _openmp
    count = kernel_threads(config)
    if count == _applied:
        return
    before, _applied = _applied, count
    if before is None and count == cores() and not config.cpu_kernel_nthreads:
        return  # what the libraries do by themselves, where the environment (OMP_NUM_THREADS) says nothing else
    try:
        _openmp = ctypes.CDLL("libgomp.so.1")
    except OSError:
        pass  # there are no kernels of OpenMP's either
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return
    threadpool_limits(limits=count)


def apply_here() -> None:
    """Give the kernels of the calling thread their thread count, which OpenMP keeps for each thread."""
    if _openmp is not None:
        _openmp.omp_set_num_threads(_applied)


@contextmanager
def looking_before_sleep() -> Iterator[None]:
    """Load OpenMP's library inside: its threads then look for the next call for some microseconds before they sleep.

    Kernels run on several threads (a worker's, and those that lend themselves), each with OpenMP threads of its own.
    Where all these are more than there are cores, libgomp's fall asleep almost at once, and each call wakes them, which
    takes longer than a small product. Nothing is changed where the environment says how they are to wait.
    """
    if any(name in os.environ for name in _WAITS):
        yield
        return
    os.environ.update(_WAITS)
    try:
        yield
    finally:
        for name in _WAITS:
            os.environ.pop(name, None)


def _before_fork() -> None:
    """Let the OpenMP threads of the forking thread go: the child would wait for them, and has none."""
    try:
        openmp = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        openmp.omp_pause_resource_all(_PAUSE_HARD)
    except (OSError, AttributeError):
        pass  # nobody has loaded it, or it is older than GCC 9


if sys.platform.startswith("linux"):
    os.register_at_fork(before=_before_fork)
