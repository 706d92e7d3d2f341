"""Windows to values of servers on this machine: rows are read from shared memory without a call.

:mod:`flowmx.kvstore.server.shared_windows` is the other side, and describes the head of a window. A read is valid only
if the value did not change meanwhile, the server was alive at the end, and the value has all acknowledged pushes of
this worker. Otherwise the rows are requested from the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from flowmx.comm.errors import CommError
from flowmx.comm.fields import sequence
from flowmx.comm.shared_memory import PeerMemory
from flowmx.errors import KVStoreError
from flowmx.kvstore.server.shared_windows import HEAD, MIN_BYTES
from flowmx.kvstore.shards import Key, Shard
from flowmx.kvstore.worker.servers import Servers

__all__ = ["Windows"]

FIRST_REQUEST, REQUEST_INTERVAL = 3, 64
"""The number of pulls of a part before a window is requested, and between further requests."""


class _Window:
    def __init__(self, memory: PeerMemory, generation: int, shape: tuple[int, ...], dtype: Any) -> None:
        self._memory = memory
        self._head = memory.array[:HEAD].view(np.uint64)
        self._generation = generation
        self._value = memory.array[HEAD:].view(dtype).reshape(shape)

    def read(self, rows: Any, into: Any) -> bool:
        """Read rows; return whether the read is valid."""
        count, generation, valid_until = map(int, self._head[:3])
        if count & 1 or generation != self._generation or time.monotonic_ns() >= valid_until:
            return False
        np.take(self._value, rows, axis=0, out=into, mode="clip")  # the rows are checked; other modes make a copy
        return self._memory.is_alive() and (count, generation) == tuple(map(int, self._head[:2]))


class Windows:
    """The windows of a worker. It belongs to the session's loop.

    Args:
        servers: the servers of the job.
        acknowledged: the highest acknowledged push number of every part (key and piece).

    Attributes:
        reads: the number of reads of parts.
    """

    def __init__(self, servers: Servers, acknowledged: Mapping[tuple[Key, int], int]) -> None:
        self._servers = servers
        self._acknowledged = acknowledged
        self._windows: dict[tuple[Key, int], _Window] = {}
        self._request_counts: dict[tuple[Key, int], int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.reads = 0

    def read(self, shard: Shard, number: int, rows: object, into: object) -> bool:
        """Read rows of a part; return False if they must be requested from the server.

        Args:
            shard: the part.
            number: the number of this worker's last push, which must be in the value.
            rows: the row numbers within the part.
            into: the array for the rows.
        """
        part = shard.key, shard.part
        window = self._windows.get(part)
        if window is None or number > self._acknowledged.get(part, 0) or not window.read(rows, into):
            return False
        self.reads += 1
        return True

    def request(self, shard: Shard, shape: tuple[int, ...], dtype: object) -> None:
        """Count a request for rows of a part; request a window after several of them."""
        part = shard.key, shard.part
        self._request_counts[part] = count = self._request_counts.get(part, 0) + 1
        if shard.nbytes >= MIN_BYTES and count % REQUEST_INTERVAL == FIRST_REQUEST:
            task = asyncio.get_running_loop().create_task(self._open_window(shard, shape, dtype))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def clear(self) -> None:
        """Drop all windows, since the view of the job has changed."""
        self._windows.clear()
        self._request_counts.clear()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.clear()

    async def _open_window(self, shard: Shard, shape: tuple[int, ...], dtype: Any) -> None:
        part, channel = (shard.key, shard.part), self._servers.local_channel(shard.home)
        if channel is None:
            return
        try:
            response = await self._servers.call(shard.home, "window", {"parts": [[*part, shard.home]]})
            descriptor, inode, size, generation = sequence(response.header, "window", 4)
            is_same = (response.header.get("dtype"), response.header.get("shape")) == (
                np.dtype(dtype).name,
                list(shape),
            )
            if is_same and size == HEAD + shard.nbytes and self._servers.local_channel(shard.home) is channel:
                memory = channel.map_memory(descriptor, inode, size)
                self._windows[part] = _Window(memory, generation, shape, dtype)
        except (CommError, KVStoreError, ValueError, OSError):
            return  # there is no window now
