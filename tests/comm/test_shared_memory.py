"""Peers on one machine: memory is shared only where that is safe, and released after its last use."""

import asyncio
import fcntl
import gc
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flowmx.comm import buffers, shared_memory
from flowmx.comm.client import Peer
from flowmx.comm.errors import WireError
from flowmx.comm.frames import Message, Tensor
from flowmx.comm.headers import Spec
from flowmx.comm.server import Service
from flowmx.comm.shared_memory import Mappings, NotLocal, PeerProcess, Segment, Segments

pytestmark = pytest.mark.skipif(not shared_memory.AVAILABLE, reason="needs Linux's sealed memory")


def this_process():
    return PeerProcess(os.getpid(), os.getuid())


def named(segment, **other):
    return [
        {"descriptor": segment.descriptor, "inode": segment.inode, "size": segment.size, **other}[key] for key in NAMES
    ]


NAMES = ("descriptor", "inode", "size")


async def echo(caller, message):
    return Message({"local": caller.local}, message.tensors)


@pytest.fixture
def descriptors():
    """Provide an exit stack that is closed after the test."""
    opened = []
    yield opened
    for descriptor in opened:
        os.close(descriptor)


async def test_a_segment_is_the_same_memory_on_both_sides():
    segment, mappings = Segment(8192), Mappings(1 << 20)
    memory = mappings.get(this_process(), named(segment))
    segment.array[5] = 77
    assert memory[5] == 77
    memory[6] = 78
    assert segment.array[6] == 78
    assert mappings.get(this_process(), named(segment)) is memory
    assert mappings.nbytes == 8192
    mappings.clear()


def test_a_segment_cannot_be_shrunk_grown_or_unsealed():
    segment = Segment(8192)
    for size in (4096, 16384):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(segment.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_a_segment_closes_its_descriptor():
    segment = Segment(4096)
    descriptor = segment.descriptor
    array = segment.array
    del segment
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    array[0] = 1  # the memory lives as long as its views


def memfd(descriptors, size=4096, seals=0):
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    descriptors.append(descriptor)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return [descriptor, os.fstat(descriptor).st_ino, size]


async def test_memory_that_could_be_taken_away_is_not_used(descriptors):
    mappings = Mappings(1 << 20)
    with pytest.raises(NotLocal, match="not sealed: shrinking it would crash its readers"):
        mappings.get(this_process(), memfd(descriptors))
    with pytest.raises(NotLocal, match="not sealed"):
        mappings.get(this_process(), memfd(descriptors, seals=fcntl.F_SEAL_GROW))
    assert len(mappings.get(this_process(), memfd(descriptors, seals=fcntl.F_SEAL_SHRINK))) == 4096
    mappings.clear()


async def test_descriptors_other_than_memory_are_not_opened(descriptors, tmp_path):
    mappings, segment = Mappings(1 << 20), Segment(4096)
    read, write = os.pipe()
    descriptors += [read, write]
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    file = os.open(path, os.O_RDWR)
    descriptors.append(file)
    for shared, text in [
        ([read, os.fstat(read).st_ino, 4096], "is not a memory file"),
        ([file, os.fstat(file).st_ino, 4096], "is not sealed memory"),
        ([9999, 1, 4096], "cannot be opened|is not a memory file"),
        (named(segment, inode=1), "not 1 of 4096"),
        (named(segment, size=8192), "not .* of 8192"),
        (named(segment, size=0), "of 0"),
    ]:
        with pytest.raises(NotLocal, match=text):
            mappings.get(this_process(), shared)
    for shared in (None, 5, [], [1, 2], [1, 2, "3"], [-1, 2, 3], [True, 1, 1], [1, 1, 1 << 62]):
        with pytest.raises(WireError, match="'shared' must be"):
            mappings.get(this_process(), shared)
    mappings.get(this_process(), named(segment))
    with pytest.raises(WireError, match="has 4096 bytes, but the request states 4095"):
        mappings.get(this_process(), named(segment, size=4095))
    assert mappings.nbytes == 4096
    mappings.clear()
    assert mappings.nbytes == 0


CHILD = """
import sys
from flowmx.comm.shared_memory import Segment
segment = Segment(8192)
segment.array[:] = 7
print(segment.descriptor, segment.inode, segment.size, flush=True)
sys.stdin.read()
"""


async def test_memory_of_an_ended_process_is_released():
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    mappings, dropped = Mappings(1 << 20), asyncio.Event()
    drop = mappings.drop
    mappings.drop = lambda pid: (drop(pid), dropped.set())
    with child:
        shared = list(map(int, child.stdout.readline().split()))
        memory = mappings.get(PeerProcess(child.pid, os.getuid()), shared)
        assert memory[8191] == 7
        child.kill()
        await dropped.wait()
    assert mappings.nbytes == 0
    assert memory[8191] == 7  # holders may still read it
    with pytest.raises(NotLocal, match=f"process {child.pid} cannot be watched"):
        mappings.get(PeerProcess(child.pid, os.getuid()), shared)


async def test_unused_or_excess_memory_is_released():
    mappings = Mappings(20_000)
    segments = [Segment(8192) for _ in range(3)]
    for segment in segments:
        mappings.get(this_process(), named(segment))
    assert mappings.nbytes == 16384  # the first one has freed its memory
    mappings.sweep()
    mappings.get(this_process(), named(segments[2]))
    mappings.sweep()
    assert mappings.nbytes == 8192
    mappings.sweep()
    assert mappings.nbytes == 0
    mappings.clear()


def test_segments_are_reused_after_their_last_view_is_freed():
    segments = Segments()
    segment = segments.take(100_000)
    inode = segment.inode
    view = segments.lease(segment)
    part = np.frombuffer(view[100:200], np.uint8)
    del segment, view
    gc.collect()
    assert segments.take(100_000).inode != inode
    del part
    gc.collect()
    assert segments.take(100_000).inode == inode
    segment = segments.take(50)
    segments.clear()
    segments.give(segment)
    assert segments.take(50) is not segment


def test_receive_buffers_are_reused():
    memory = buffers.allocate(1_000_000)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    assert len(memory) == 1_000_000
    memory[-1] = 1
    del memory
    gc.collect()
    again = buffers.allocate(999_000)
    assert np.frombuffer(again, np.uint8).ctypes.data == address
    assert len(buffers.allocate(0)) == 0


@pytest.mark.parametrize("size", [1, 4096, 4097, 100_000, 1_000_000, 104_857_600, (1 << 30) + 1])
def test_blocks_waste_little(size):
    rounded = buffers.round_up(size)
    assert size <= rounded <= max(size * 1.26, size + 4096)
    assert buffers.round_up(rounded) == rounded
    assert rounded % mmap.PAGESIZE == 0


def test_tensors_outside_the_memory_are_refused():
    memory = memoryview(bytearray(100))
    assert len(shared_memory.views([Spec("int8", (10,), 10, 90)], memory)[0].data) == 10
    for offset in (91, 100, 1 << 61):
        with pytest.raises(WireError, match=f"tensor 0 lies at {offset} to"):
            shared_memory.views([Spec("int8", (10,), 10, offset)], memory)


async def local_service(**options):
    service = Service("near", **options)
    service.operation("op", echo)
    await service.start()
    return service


async def used(service, **options):
    """Return whether a call used the unix socket."""
    async with Peer(service.address, **options) as peer:
        answer = await peer.call("op", {}, [np.arange(30_000.0)])
        assert np.array_equal(answer.tensors[0].array(), np.arange(30_000.0))
        return answer.header["local"]


async def test_calls_use_tcp_where_memory_cannot_be_shared(monkeypatch):
    service = await local_service()
    far = await local_service(local=False)
    try:
        assert await used(service)
        assert not await used(service, local=False)
        assert not await used(far)
        with monkeypatch.context() as patch:
            patch.setattr(shared_memory, "host_identity", lambda: "0" * 64)
            # Both sides are in this process, so the client uses an operation that the service does not have.
            patch.setattr(service, "_socket", "")
            assert not await used(service)
        with monkeypatch.context() as patch:
            patch.setattr(shared_memory, "own_uid", lambda: os.getuid() + 1)
            assert not await used(service)
        assert await used(service)
    finally:
        await service.stop()
        await far.stop()


async def test_a_socket_of_another_process_is_not_used(monkeypatch):
    service = await local_service()
    try:
        real = shared_memory.peer_of
        monkeypatch.setattr(shared_memory, "peer_of", lambda sock: real(sock)._replace(uid=os.getuid() + 1))
        assert not await used(service)
    finally:
        await service.stop()


async def test_memory_of_another_size_than_it_says_is_not_used():
    service = await local_service()
    try:
        async with Peer(service.address) as peer:
            await peer.call("op", {})
            segments = peer._routes._local.segments
            take = segments.take

            def lie(size):
                segment = take(size)
                segment.size += 1
                return segment

            segments.take = lie
            answer = await peer.call("op", {}, [np.ones(30_000)])
            assert not answer.header["local"]  # it was refused, and then sent by TCP
    finally:
        await service.stop()


async def test_answers_that_do_not_fit_come_along():
    async def grow(caller, message):
        n = message.header["n"]
        return Message({}, [Tensor.of(np.ones(n))])

    service = Service("near")
    service.operation("grow", grow)
    await service.start()
    try:
        async with Peer(service.address) as peer:
            for n in (10, 100_000, 100_000, 10, 200_000, 0):
                answer = await peer.call("grow", {"n": n}, [np.ones(10_000)])
                assert answer.tensors[0].shape == (n,)
    finally:
        await service.stop()
    assert service.mappings.nbytes == 0


def count_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_many_calls_leave_no_memory_behind():
    service = await local_service()
    try:
        async with Peer(service.address) as peer:
            counts = []
            for _ in range(50):
                await peer.call("op", {}, [np.ones(30_000)])
                counts.append(count_descriptors())
            assert counts[-1] <= counts[5]
    finally:
        await service.stop()
