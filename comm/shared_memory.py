"""Communication between processes of one machine: a unix socket instead of TCP, and shared memory for tensors.

The client owns the memory. It creates *segments*: anonymous files (memfd) of a fixed size, sealed so that no process
can shrink them under a reader. A request names the file descriptor of its segment, which the service opens through
``/proc/<pid>/fd``. The kernel, not the peer, tells the service the process and user of the connection. The segment
contains the request's tensors, and space for those of the response. There are no names that could leak, and the memory
is freed when both processes have ended.

Sockets are abstract, so that a killed process leaves no file behind. The user id of the peer is checked.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import mmap
import os
import select
import socket
import struct
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import numpy as np
from aiohttp.client_exceptions import UnixClientConnectorError

from flowmx.comm.buffers import Pool, lease, round_up
from flowmx.comm.errors import Refused, WireError
from flowmx.comm.frames import Tensor
from flowmx.comm.headers import Spec

__all__ = [
    "AVAILABLE",
    "SHARING_MIN",
    "Connector",
    "Mappings",
    "NotLocal",
    "PeerMemory",
    "PeerProcess",
    "Segment",
    "Segments",
    "describe",
    "host_identity",
    "lay_out",
    "listen",
    "own_uid",
    "peer_of",
    "views",
]  # fmt: skip

AVAILABLE = sys.platform == "linux" and hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")
ALIGNMENT = 64
SHARING_MIN = 32 << 10
"""Calls with at least this many bytes use shared memory or POST: a stream would be no faster."""
SEALS = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
F_SEAL_SHRINK = 0x2
_CREDENTIALS = struct.Struct("iII")


class NotLocal(Refused):
    """The peer's memory cannot be mapped by this process."""

    kind = "not_local"


@cache
def host_identity() -> str:
    """Return a hash that identifies this user, this machine and its current boot."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return hashlib.sha256(f"flowmx {boot} {os.getuid()}".encode()).hexdigest()


class PeerProcess(NamedTuple):
    """The process at the other end of a unix socket, as the kernel reports it."""

    pid: int
    uid: int


def peer_of(sock: Any) -> PeerProcess:
    """Return the process id and user id of a unix socket's other end."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return PeerProcess(pid, uid)


def own_uid() -> int:
    """Return the user id of this process."""
    return os.getuid()


def listen(name: str) -> socket.socket:
    """Return a listening abstract unix socket.

    Raises:
        OSError: it cannot be created.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.bind(f"\0{name}")
        sock.listen(1024)
    except OSError:
        sock.close()
        raise
    return sock


class Connector(aiohttp.UnixConnector):
    """A connector to an abstract unix socket of a process of this user. uvloop has no such connector."""

    async def _create_connection(self, req: Any, *_: object) -> Any:
        loop: Any = asyncio.get_running_loop()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            await loop.sock_connect(sock, self.path)
            if peer_of(sock).uid != os.getuid():
                raise PermissionError(f"the socket {self.path!r} belongs to another user")
            factory: Any = self._factory
            _, protocol = await loop.create_unix_connection(factory, sock=sock)
        except OSError as error:
            sock.close()
            raise UnixClientConnectorError(self.path, req.connection_key, error) from error
        except BaseException:  # cleanup, also when interrupted
            sock.close()
            raise
        return protocol


class Segment:
    """Shared memory that this process owns.

    Args:
        size: bytes.

    Attributes:
        array: the bytes.
        descriptor: the file's descriptor, open while the segment exists.
        inode: the file's inode, which identifies the file if the descriptor was reused.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.descriptor = os.memfd_create("flowmx", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, SEALS)
            self.inode = os.fstat(self.descriptor).st_ino
            self.array = np.frombuffer(mmap.mmap(self.descriptor, size), np.uint8)
        except BaseException:  # cleanup, also when interrupted
            os.close(self.descriptor)
            raise

    def __del__(self) -> None:
        if hasattr(self, "array"):
            os.close(self.descriptor)


class Segments:
    """A client's segments. They are reused, because the first access to new pages is slow.

    Args:
        capacity: maximum total size of free segments in bytes.
    """

    def __init__(self, capacity: int = 1 << 30) -> None:
        self._pool: Pool[Segment] = Pool(capacity)

    def take(self, size: int) -> Segment:
        """Return a segment of at least `size` bytes, which the caller then owns."""
        size = round_up(size)
        return self._pool.take(size) or Segment(size)

    def give(self, segment: Segment) -> None:
        """Return a segment to the pool, once no peer writes to it any more."""
        self._pool.give(segment.size, segment)

    def lease(self, segment: Segment) -> memoryview:
        """Return a view of a segment's bytes; the segment is returned to the pool when the last view is freed."""
        return lease(segment.array, lambda: self.give(segment))

    def clear(self) -> None:
        """Free the unused segments now, and the others when they are returned."""
        self._pool.capacity = 0
        self._pool.clear()


class Mappings:
    """The segments of other processes that a service has mapped.

    A segment is unmapped when its process ends, or after it has been unused for a while, since its owner may have freed
    it. If the total size is above the limit, the least recently used segments are unmapped.

    Args:
        limit: maximum number of mapped bytes.
        interval: seconds between two sweeps of unused segments.
    """

    def __init__(self, limit: int, interval: float = 30.0) -> None:
        self.limit = limit
        self.interval = interval
        self._mapped: dict[tuple[int, int], memoryview] = {}  # by process and inode, most recently used last
        self._used: set[tuple[int, int]] = set()
        self._stop_watching: dict[int, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def nbytes(self) -> int:
        """The number of mapped bytes."""
        return sum(len(memory) for memory in self._mapped.values())

    def get(self, peer: PeerProcess, shared: object) -> memoryview:
        """Return the memory of a request's segment.

        Args:
            peer: the process that sent the request.
            shared: ``[descriptor, inode, size, ...]``.

        Raises:
            WireError: `shared` is malformed.
            NotLocal: the segment is not safe to use, or cannot be opened.
        """
        descriptor, inode, size = _parse_segment(shared)
        memory = self._mapped.get((peer.pid, inode))
        if memory is None:
            self._watch(peer.pid)
            memory = _map(peer, descriptor, inode, size)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(self.interval, self.sweep)
        if len(memory) != size:
            raise WireError(f"the shared memory has {len(memory)} bytes, but the request states {size}")
        self._mapped.pop((peer.pid, inode), None)
        self._mapped[peer.pid, inode] = memory
        self._used.add((peer.pid, inode))
        self._trim()
        return memory

    def sweep(self) -> None:
        """Unmap segments that have not been used since the last sweep, and schedule the next one."""
        self._mapped = {key: memory for key, memory in self._mapped.items() if key in self._used}
        self._used.clear()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.interval, self.sweep) if self._mapped else None

    def drop(self, pid: int) -> None:
        """Unmap the segments of a process."""
        self._mapped = {key: memory for key, memory in self._mapped.items() if key[0] != pid}
        if (stop := self._stop_watching.pop(pid, None)) is not None:
            stop()

    def clear(self) -> None:
        """Unmap all segments."""
        for pid in list(self._stop_watching):
            self.drop(pid)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _trim(self) -> None:
        while len(self._mapped) > 1 and self.nbytes > self.limit:
            del self._mapped[next(iter(self._mapped))]

    def _watch(self, pid: int) -> None:
        if pid in self._stop_watching:
            return
        try:
            process = os.pidfd_open(pid)
        except OSError as error:
            raise NotLocal(f"process {pid} cannot be watched: {error.strerror}") from None
        loop = asyncio.get_running_loop()

        def stop() -> None:
            loop.remove_reader(process)
            os.close(process)

        loop.add_reader(process, self.drop, pid)
        self._stop_watching[pid] = stop


def _parse_segment(shared: object) -> tuple[int, int, int]:
    numbers = shared[:3] if isinstance(shared, list) else []
    if len(numbers) < 3 or not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
        raise WireError("the header's 'shared' must be [descriptor, inode, size, ...], non-negative ints")
    return numbers[0], numbers[1], numbers[2]


class PeerMemory:
    """Read-only memory of another process of this user on this machine.

    Args:
        peer: the process.
        descriptor: the file's descriptor in that process.
        inode: the file's inode.
        size: bytes.

    Attributes:
        array: the bytes.

    Raises:
        NotLocal: the memory cannot be opened, or is not safe to use.
    """

    def __init__(self, peer: PeerProcess, descriptor: int, inode: int, size: int) -> None:
        try:
            self._process = os.pidfd_open(peer.pid)
        except OSError as error:
            raise NotLocal(f"process {peer.pid} cannot be watched: {error.strerror}") from None
        self._poll = select.poll()
        self._poll.register(self._process, select.POLLIN)
        self.array = np.frombuffer(_map(peer, descriptor, inode, size, os.O_RDONLY), np.uint8)

    def is_alive(self) -> bool:
        """Return whether the process is still running."""
        return not self._poll.poll(0)

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            os.close(self._process)


def _map(peer: PeerProcess, descriptor: int, inode: int, size: int, flags: int = os.O_RDWR) -> memoryview:
    path = f"/proc/{peer.pid}/fd/{descriptor}"
    try:
        if not Path(path).is_file():
            raise NotLocal(f"descriptor {descriptor} of process {peer.pid} is not a memory file")
        file = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise NotLocal(f"descriptor {descriptor} of process {peer.pid} cannot be opened: {error.strerror}") from None
    try:
        _check_segment(file, inode, size)
        return memoryview(mmap.mmap(file, size, access=mmap.ACCESS_READ if flags == os.O_RDONLY else mmap.ACCESS_WRITE))
    except OSError as error:
        raise NotLocal(
            f"descriptor {descriptor} of process {peer.pid} is not sealed memory: {error.strerror}"
        ) from None
    finally:
        os.close(file)


def _check_segment(descriptor: int, inode: int, size: int) -> None:
    """Check that shared memory is sealed, so that it cannot shrink under a reader, and uses default pages."""
    status = os.fstat(descriptor)
    if status.st_ino != inode or status.st_size != size or not size:
        raise NotLocal(f"the shared memory is file {status.st_ino} of {status.st_size} bytes, not {inode} of {size}")
    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & F_SEAL_SHRINK:
        raise NotLocal("the shared memory is not sealed: shrinking it would crash its readers")
    if os.fstatvfs(descriptor).f_bsize != mmap.PAGESIZE:
        raise NotLocal("the shared memory uses huge pages, which may run out")


def lay_out(sizes: list[int], start: int = 0) -> tuple[list[int], int]:
    """Return aligned offsets for tensors of these sizes in bytes, and the end of the last."""
    offsets = []
    for size in sizes:
        start = -(-start // ALIGNMENT) * ALIGNMENT
        offsets.append(start)
        start += size
    return offsets, start


def describe(tensors: list[Tensor], offsets: list[int]) -> list[list[Any]]:
    """Describe tensors in shared memory for a header, each as ``[dtype, shape, offset in bytes]``."""
    return [[tensor.dtype, list(tensor.shape), offset] for tensor, offset in zip(tensors, offsets, strict=True)]


def views(specs: list[Spec], memory: memoryview) -> list[Tensor]:
    """Return the tensors of a message in shared memory.

    Raises:
        WireError: a tensor lies outside the memory.
    """
    return [Tensor(spec.dtype, spec.shape, _view(index, spec, memory)) for index, spec in enumerate(specs)]


def _view(index: int, spec: Spec, memory: memoryview) -> memoryview:
    start = spec.offset or 0
    if start + spec.nbytes > len(memory):
        raise WireError(
            f"tensor {index} lies at {start} to {start + spec.nbytes}, and the shared memory has {len(memory)} bytes"
        )
    return memory[start : start + spec.nbytes]
