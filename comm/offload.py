"""Offload work that would block the event loop (large copies and hashes) to a thread pool."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from flowmx import process_hooks

__all__ = ["LARGE", "copy", "offload", "submit"]

LARGE = 256 << 10
"""The bytes from which work is offloaded: it then takes about as long as the hop to a thread and back."""

T = TypeVar("T")
_executor: ThreadPoolExecutor | None = None


def _drop_executor() -> None:
    global _executor
    _executor = None  # the child of a fork does not have its threads


process_hooks.at_fork(after_in_child=_drop_executor)


def submit(work: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
    """Run ``work(*arguments)`` in the thread pool; return its future."""
    global _executor
    if _executor is None:
        process_hooks.ensure_installed()
        _executor = ThreadPoolExecutor(min(os.cpu_count() or 1, 8), "flowmx-comm")
    return asyncio.get_running_loop().run_in_executor(_executor, work, *arguments)


async def offload(nbytes: int, work: Callable[..., T], *arguments: object) -> T:
    """Run ``work(*arguments)`` on `nbytes` bytes, in the thread pool if there are at least `LARGE`.

    If the caller is cancelled, the work finishes first, since its memory may be reused afterwards.
    """
    if nbytes < LARGE:
        return work(*arguments)
    future = submit(work, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await _wait_until_done(future)
        raise


async def _wait_until_done(future: asyncio.Future[Any]) -> None:
    """Wait for the end of a future, even if the wait is cancelled repeatedly."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()  # marks it as retrieved


def copy(pairs: list[tuple[memoryview, memoryview]]) -> None:
    """Copy the second buffer of each pair into the first; NumPy releases the interpreter lock for the copy."""
    for target, source in pairs:
        if source.nbytes:
            np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
