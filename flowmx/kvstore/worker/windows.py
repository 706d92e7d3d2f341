"""Windows to values of servers on this machine, through which rows are read without a call.

:mod:`flowmx.kvstore.server.windows` has the other side, and what the head of a window says. What is read counts only
where it was one value all the while, the server lived at the end, and the value has all pushes of this worker that it
must have: those that were acknowledged. Anything else is asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from flowmx.comm.errors import CommError
from flowmx.comm.fields import sequence
from flowmx.comm.local import Foreign
from flowmx.errors import KVStoreError
from flowmx.kvstore.server.windows import HEAD, LEAST
from flowmx.kvstore.shards import Key, Shard
from flowmx.kvstore.worker.servers import Servers

__all__ = ["Windows"]

FIRST, AGAIN = 3, 64
"""Pulls of a part after which a window is asked for, and after which once more."""


class _Window:
    def __init__(self, memory: Foreign, generation: int, shape: tuple[int, ...], dtype: Any) -> None:
        self._memory = memory
        self._head = memory.array[:HEAD].view(np.uint64)
        self._generation = generation
        self._value = memory.array[HEAD:].view(dtype).reshape(shape)

    def read(self, rows: Any, into: Any) -> bool:
        """Read rows; False where what came is none that counts."""
        count, generation, until = map(int, self._head[:3])
        if count & 1 or generation != self._generation or time.monotonic_ns() >= until:
            return False
        np.take(self._value, rows, axis=0, out=into, mode="clip")  # rows are checked; other modes take a copy
        return self._memory.is_alive() and (count, generation) == tuple(map(int, self._head[:2]))


class Windows:
    """The windows of a worker. Belongs to the session's loop.

    Args:
        servers: of the job.
        acknowledged: of every part (key and piece) the highest number of a push that was acknowledged.

    Attributes:
        reads: how many parts were read.
    """

    def __init__(self, servers: Servers, acknowledged: Mapping[tuple[Key, int], int]) -> None:
        self._servers = servers
        self._acknowledged = acknowledged
        self._windows: dict[tuple[Key, int], _Window] = {}
        self._asked: dict[tuple[Key, int], int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.reads = 0

    def read(self, shard: Shard, number: int, rows: Any, into: Any) -> bool:
        """Read rows of a part; False where they are to be asked for.

        Args:
            shard: the part.
            number: of this worker's last push, which must be in the value.
            rows: their numbers in the part.
            into: takes them.
        """
        part = shard.key, shard.part
        window = self._windows.get(part)
        if window is None or number > self._acknowledged.get(part, 0) or not window.read(rows, into):
            return False
        self.reads += 1
        return True

    def want(self, shard: Shard, shape: tuple[int, ...], dtype: Any) -> None:
        """Note that rows of a part were asked for; ask for a window where that goes on."""
        part = shard.key, shard.part
        self._asked[part] = asked = self._asked.get(part, 0) + 1
        if shard.nbytes >= LEAST and asked % AGAIN == FIRST:
            task = asyncio.get_running_loop().create_task(self._ask(shard, shape, dtype))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def forget(self) -> None:
        """Close all windows: there is another view of the job."""
        self._windows.clear()
        self._asked.clear()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.forget()

    async def _ask(self, shard: Shard, shape: tuple[int, ...], dtype: Any) -> None:
        part, channel = (shard.key, shard.part), self._servers.local_channel(shard.home)
        if channel is None:
            return
        try:
            answer = await self._servers.call(shard.home, "window", {"parts": [[*part, shard.home]]})
            descriptor, inode, size, generation = sequence(answer.header, "window", 4)
            is_same = (answer.header.get("dtype"), answer.header.get("shape")) == (np.dtype(dtype).name, list(shape))
            if is_same and size == HEAD + shard.nbytes and self._servers.local_channel(shard.home) is channel:
                memory = channel.foreign(descriptor, inode, size)
                self._windows[part] = _Window(memory, generation, shape, dtype)
        except (CommError, KVStoreError, ValueError, OSError):
            return  # there is none now
