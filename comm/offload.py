"""Offloading of work that would block the event loop, copies and hashes of many bytes, to a thread pool."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

__all__ = ["LARGE", "copy", "offload", "submit"]

LARGE = 256 << 10
"""Bytes from which work is offloaded: about the time that a hop to a thread and back takes."""

T = TypeVar("T")
_executor: ThreadPoolExecutor | None = None


def _forget() -> None:
    global _executor
    _executor = None  # its threads are not in the child of a fork


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def submit(work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """Run ``work(*arguments)`` in the thread pool; returns its future."""
    global _executor
    if _executor is None:
        _executor = ThreadPoolExecutor(min(os.cpu_count() or 1, 8), "flowmx-comm")
    return asyncio.get_running_loop().run_in_executor(_executor, work, *arguments)


async def offload(nbytes: int, work: Callable[..., T], *arguments: Any) -> T:
    """Run ``work(*arguments)``, which handles `nbytes` bytes: in the thread pool if they are at least `LARGE`.

    If the caller is cancelled, the work is finished first, since its memory may be reused afterwards.
    """
    if nbytes < LARGE:
        return work(*arguments)
    future = submit(work, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await _settle(future)
        raise


async def _settle(future: asyncio.Future[Any]) -> None:
    """Wait for the end of a future, however often that is cancelled."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()  # seen


def copy(pairs: list[tuple[memoryview, memoryview]]) -> None:
    """Copy each pair's second buffer into its first; NumPy releases the interpreter lock meanwhile."""
    for target, source in pairs:
        if source.nbytes:
            np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
