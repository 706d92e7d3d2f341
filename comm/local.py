"""Peers on one machine: a unix socket instead of TCP, and shared memory instead of bytes.

The client owns the memory. It makes *segments*: anonymous files (memfd) of a fixed size, sealed so that no process can
shrink them under a reader. A request says which of its descriptors is the segment; the service opens it through
``/proc/<pid>/fd``, where the process and the user behind the connection are what the kernel reports, not what the peer
claims. The request's tensors lie in the segment, and so does room for those of the answer. There are no names that
could leak, and the memory is freed when both processes have ended.

Sockets are abstract: no file is left behind by a process that is killed. Who is allowed to connect is checked by uid.
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

from flowmx.comm.buffers import Pool, leased, round_up
from flowmx.comm.errors import Refused, WireError
from flowmx.comm.frames import Tensor
from flowmx.comm.headers import Spec

__all__ = [
    "AVAILABLE", "Connector", "Foreign", "Mappings", "NotLocal", "PeerProcess", "Segment", "Segments", "described",
    "host_identity", "lay_out", "listen", "own_uid", "peer_of", "views",
]  # fmt: skip

AVAILABLE = sys.platform == "linux" and hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")
ALIGNMENT = 64
SEALS = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
F_SEAL_SHRINK = 0x2
_CREDENTIALS = struct.Struct("iII")


class NotLocal(Refused):
    """A peer whose memory can not be mapped by this process."""

    kind = "not_local"


@cache
def host_identity() -> str:
    """A hash that processes of one user on one machine share until the next boot, and no others."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return hashlib.sha256(f"flowmx {boot} {os.getuid()}".encode()).hexdigest()


class PeerProcess(NamedTuple):
    """The process at the other end of a unix socket, as the kernel reports it."""

    pid: int
    uid: int


def peer_of(sock: Any) -> PeerProcess:
    """Read the process id and user id of a unix socket's other end."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return PeerProcess(pid, uid)


def own_uid() -> int:
    """The user of this process."""
    return os.getuid()


def listen(name: str) -> socket.socket:
    """An abstract unix socket of a name, which listens.

    Raises:
        OSError: it can not be made here.
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
    """A connector to an abstract unix socket, which uvloop lacks; it demands that a process of this user listens."""

    async def _create_connection(self, req: Any, *_: Any) -> Any:
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
        except BaseException:
            sock.close()
            raise
        return protocol


class Segment:
    """Shared memory that this process owns.

    Args:
        size: bytes.

    Attributes:
        array: the bytes.
        descriptor: of the file, for as long as the segment lives.
        inode: of the file, by which a reused descriptor is recognised.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.descriptor = os.memfd_create("flowmx", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, SEALS)
            self.inode = os.fstat(self.descriptor).st_ino
            self.array = np.frombuffer(mmap.mmap(self.descriptor, size), np.uint8)
        except BaseException:
            os.close(self.descriptor)
            raise

    def __del__(self) -> None:
        if hasattr(self, "array"):
            os.close(self.descriptor)


class Segments:
    """A client's segments, which are reused: the first touch of fresh pages is expensive.

    Args:
        most: bytes of free segments that are kept.
    """

    def __init__(self, most: int = 1 << 30) -> None:
        self._pool: Pool[Segment] = Pool(most)

    def take(self, size: int) -> Segment:
        """A segment of at least `size` bytes, which belongs to the caller."""
        size = round_up(size)
        return self._pool.take(size) or Segment(size)

    def give(self, segment: Segment) -> None:
        """Return a segment that no peer writes into any more."""
        self._pool.give(segment.size, segment)

    def lease(self, segment: Segment) -> memoryview:
        """The bytes of a segment, which is returned when the last view of them is freed."""
        return leased(segment.array, lambda: self.give(segment))

    def clear(self) -> None:
        """Free the segments that are not in use, and the others once they are returned."""
        self._pool.most = 0
        self._pool.clear()


class Mappings:
    """The segments of other processes that a service has mapped.

    Those of a process are let go of when it ends, and one that was not used for a while, since its owner may have let
    go of it; and the one that was not used for longest, when there are too many.

    Args:
        most: bytes that may be mapped.
        seconds: between two looks at which ones were used.
    """

    def __init__(self, most: int, seconds: float = 30.0) -> None:
        self.most = most
        self.seconds = seconds
        self._mapped: dict[tuple[int, int], memoryview] = {}  # by process and inode, the last one used last
        self._used: set[tuple[int, int]] = set()
        self._watched: dict[int, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that are mapped."""
        return sum(len(memory) for memory in self._mapped.values())

    def get(self, peer: PeerProcess, shared: Any) -> memoryview:
        """The memory of a segment of `peer`, as a request names it.

        Args:
            peer: who sent the request.
            shared: ``[descriptor, inode, size, ...]``.

        Raises:
            WireError: this names no segment.
            NotLocal: it is not one that is safe to use, or can not be reached.
        """
        descriptor, inode, size = _three_ints(shared)
        memory = self._mapped.get((peer.pid, inode))
        if memory is None:
            self._watch(peer.pid)
            memory = _map(peer, descriptor, inode, size)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(self.seconds, self.sweep)
        if len(memory) != size:
            raise WireError(f"the shared memory has {len(memory)} bytes, and the request says {size}")
        self._mapped.pop((peer.pid, inode), None)
        self._mapped[peer.pid, inode] = memory
        self._used.add((peer.pid, inode))
        self._trim()
        return memory

    def sweep(self) -> None:
        """Unmap segments that were not used since the last sweep, and schedule the next."""
        self._mapped = {key: memory for key, memory in self._mapped.items() if key in self._used}
        self._used.clear()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.seconds, self.sweep) if self._mapped else None

    def drop(self, pid: int) -> None:
        """Unmap the segments of a process."""
        self._mapped = {key: memory for key, memory in self._mapped.items() if key[0] != pid}
        if (stop := self._watched.pop(pid, None)) is not None:
            stop()

    def clear(self) -> None:
        """Unmap all segments."""
        for pid in list(self._watched):
            self.drop(pid)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _trim(self) -> None:
        while len(self._mapped) > 1 and self.nbytes > self.most:
            del self._mapped[next(iter(self._mapped))]

    def _watch(self, pid: int) -> None:
        if pid in self._watched:
            return
        try:
            process = os.pidfd_open(pid)
        except OSError as error:
            raise NotLocal(f"process {pid} can not be watched: {error.strerror}") from None
        loop = asyncio.get_running_loop()

        def stop() -> None:
            loop.remove_reader(process)
            os.close(process)

        loop.add_reader(process, self.drop, pid)
        self._watched[pid] = stop


def _three_ints(shared: Any) -> tuple[int, int, int]:
    found = shared[:3] if isinstance(shared, list) else []
    if len(found) < 3 or not all(type(number) is int and 0 <= number < 1 << 62 for number in found):
        raise WireError("the header's 'shared' must be [descriptor, inode, size, ...] in ints of at least 0")
    return found[0], found[1], found[2]


class Foreign:
    """Memory of another process of this user on this machine, to be read.

    Args:
        peer: the process.
        descriptor: of its file there.
        inode: of the file.
        size: bytes.

    Attributes:
        array: the bytes.

    Raises:
        NotLocal: it can not be reached, or is not safe to use.
    """

    def __init__(self, peer: PeerProcess, descriptor: int, inode: int, size: int) -> None:
        try:
            self._process = os.pidfd_open(peer.pid)
        except OSError as error:
            raise NotLocal(f"process {peer.pid} can not be watched: {error.strerror}") from None
        self._poll = select.poll()
        self._poll.register(self._process, select.POLLIN)
        self.array = np.frombuffer(_map(peer, descriptor, inode, size, os.O_RDONLY), np.uint8)

    def is_alive(self) -> bool:
        """Tell whether the process has not ended."""
        return not self._poll.poll(0)

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            os.close(self._process)


def _map(peer: PeerProcess, descriptor: int, inode: int, size: int, flags: int = os.O_RDWR) -> memoryview:
    path = f"/proc/{peer.pid}/fd/{descriptor}"
    try:
        if not Path(path).is_file():
            raise NotLocal(f"descriptor {descriptor} of process {peer.pid} is no memory")
        opened = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise NotLocal(f"descriptor {descriptor} of process {peer.pid} can not be opened: {error.strerror}") from None
    try:
        _check_segment(opened, inode, size)
        return memoryview(
            mmap.mmap(opened, size, access=mmap.ACCESS_READ if flags == os.O_RDONLY else mmap.ACCESS_WRITE)
        )
    except OSError as error:
        raise NotLocal(f"descriptor {descriptor} of process {peer.pid} is no sealed memory: {error.strerror}") from None
    finally:
        os.close(opened)


def _check_segment(descriptor: int, inode: int, size: int) -> None:
    """Refuse all but sealed shared memory in pages of the usual size, which nobody can shrink under a reader."""
    found = os.fstat(descriptor)
    if found.st_ino != inode or found.st_size != size or not size:
        raise NotLocal(f"the shared memory is file {found.st_ino} of {found.st_size} bytes, not {inode} of {size}")
    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & F_SEAL_SHRINK:
        raise NotLocal("the shared memory is not sealed: whoever shrinks it would crash its readers")
    if os.fstatvfs(descriptor).f_bsize != mmap.PAGESIZE:
        raise NotLocal("the shared memory is in huge pages, which may run out")


def lay_out(sizes: list[int], start: int = 0) -> tuple[list[int], int]:
    """Offsets for tensors of these many bytes, each aligned, and where the last one ends."""
    offsets = []
    for size in sizes:
        start = -(-start // ALIGNMENT) * ALIGNMENT
        offsets.append(start)
        start += size
    return offsets, start


def described(tensors: list[Tensor], offsets: list[int]) -> list[list[Any]]:
    """Describe tensors in shared memory for a header: ``[dtype, shape, offset in bytes]`` each."""
    return [[tensor.dtype, list(tensor.shape), offset] for tensor, offset in zip(tensors, offsets, strict=True)]


def views(specs: list[Spec], memory: memoryview) -> list[Tensor]:
    """The tensors of a message that lie in shared memory.

    Raises:
        WireError: one lies outside it.
    """
    return [Tensor(spec.dtype, spec.shape, _view(index, spec, memory)) for index, spec in enumerate(specs)]


def _view(index: int, spec: Spec, memory: memoryview) -> memoryview:
    start = spec.offset or 0
    if start + spec.nbytes > len(memory):
        raise WireError(
            f"tensor {index} lies at {start} to {start + spec.nbytes}, and the shared memory has {len(memory)} bytes"
        )
    return memory[start : start + spec.nbytes]
