"""A stand-in for ``cupy.cuda``: devices with memory, streams, events, graphs, and errors that are reported late.

With a seed, the work on streams is deferred and then done in a random order that events permit, so code that forgets to
wait, or releases memory too early, computes wrong numbers. Queued work holds addresses, and keeps no array alive. If an
address is not allocated when the work is done, the device is lost, as after a planted error. Work on the null stream,
or a copy from memory that is not pinned, fails the test.
"""

from __future__ import annotations

import bisect
import ctypes
import random
import threading
import weakref
from collections import deque
from types import SimpleNamespace

import numpy as np

ILLEGAL_ADDRESS, OUT_OF_MEMORY, CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_ISOLATION = 700, 2, 900, 901, 905
NOT_READY = 600
_NAMES = {
    ILLEGAL_ADDRESS: "cudaErrorIllegalAddress: an illegal memory access was encountered",
    OUT_OF_MEMORY: "cudaErrorMemoryAllocation: out of memory",
    CAPTURE_UNSUPPORTED: "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing",
    CAPTURE_INVALIDATED: "cudaErrorStreamCaptureInvalidated: operation failed due to a previous error during capture",
    CAPTURE_ISOLATION: "cudaErrorStreamCaptureIsolation: dependency created on uncaptured work in another stream",
}
GARBAGE = 0xCD
_MAX_AHEAD = 2


class CUDARuntimeError(RuntimeError):
    def __init__(self, status):
        super().__init__(_NAMES[status])
        self.status = status


class CUDADriverError(RuntimeError):
    status = -1


class Fault(Exception):
    """An error on the device."""


class _Record:
    """A position in a stream, at which an event was recorded."""

    done = False


class _Here(threading.local):
    device = 0

    def __init__(self):
        self.streams = {}


class Machine:
    """Devices of equal memory size; with a seed, their work is deferred."""

    def __init__(self, count=2, memory=1 << 28, seed=None):
        self.count, self.memory = count, memory
        self.rng = None if seed is None else random.Random(seed)
        self.here = _Here()
        self.lock = threading.RLock()
        self.blocks = {}
        self.addresses = []
        self.used = [0] * count
        self.lost = {}
        self.pinned = {}
        self.streams = []
        self.host_waits = 0
        self.refuse = None
        self.peers = set()
        self.null_allowed = False
        self.nulls = {}
        self.faults = []
        self.events = weakref.WeakValueDictionary()

    def restart(self, seed):
        self.finish_all()
        self.rng = None if seed is None else random.Random(seed)

    # -- memory ------------------------------------------------------------------------------------------------

    def malloc(self, size, is_counted=True):
        device = self.here.device
        self.check(device)
        with self.lock:
            if self.used[device] + size > self.memory and is_counted:
                raise CUDARuntimeError(OUT_OF_MEMORY)
            content = np.full(size, GARBAGE, np.uint8)
            address = content.ctypes.data
            self.blocks[address] = (content, device)
            bisect.insort(self.addresses, address)
            self.used[device] += size if is_counted else 0
        return address

    def pointer(self, size):
        """Allocate memory like CuPy's default allocator, outside flowmx's streams."""
        assert self.null_allowed, "memory was asked for outside the device's streams"
        device = self.here.device
        memory = UnownedMemory(self.malloc(max(1, size), is_counted=False), size, None, device)
        return bound(MemoryPointer, self)(memory, 0)

    def free(self, address):
        device = self.blocks[address][1]
        assert self.here.device == device, "memory is given back on another device"
        self.check(device)
        self.finish_all(device)
        with self.lock:
            content, _ = self.blocks.pop(address)
            self.addresses.remove(address)
            self.used[device] -= content.size

    def owner(self, address):
        """Return the device on which an address is allocated."""
        with self.lock:
            index = bisect.bisect_right(self.addresses, address) - 1
            if index >= 0:
                content, device = self.blocks[self.addresses[index]]
                if address < self.addresses[index] + content.size:
                    return device
        raise Fault(f"{address:x} is not allocated")

    # -- streams -----------------------------------------------------------------------------------------------

    def check(self, device):
        if device in self.lost:
            raise CUDARuntimeError(self.lost[device])

    def current(self, device=None):
        device = self.here.device if device is None or device < 0 else device
        chosen = self.here.streams.get(device)
        if chosen is None:
            with self.lock:
                if device not in self.nulls:
                    self.nulls[device] = NullStream(self, device)
                    self.streams.append(self.nulls[device])
                chosen = self.nulls[device]
        return chosen

    def waits(self):
        """Note that the host waits for the current stream, which is an error while the stream is captured."""
        stream = self.current()
        self.check(stream.device_id)
        if stream.captured is not None:
            stream.is_broken = True
            raise CUDARuntimeError(CAPTURE_UNSUPPORTED)
        self.host_waits += 1

    def put(self, stream, work, label=""):
        """Put work on a stream, or into the graph that the stream is capturing."""
        assert stream.ptr or self.null_allowed, "work was put on the null stream"
        assert stream.device_id == self.here.device, "a stream of another device is current"
        self.check(stream.device_id)
        with self.lock:
            if stream.captured is not None:
                stream.captured.append((work, label))
                return
            stream.tasks.append(("work", work))
            self.progress()

    def progress(self):
        count = 1 << 30 if self.rng is None else self.rng.randrange(_MAX_AHEAD + 1)
        for _ in range(count):
            if not self.step():
                return

    def step(self):
        with self.lock:
            able = [each for each in self.streams if each.is_able()]
            if not able:
                return False
            stream = able[0] if self.rng is None else self.rng.choice(able)
            kind, what = stream.tasks.popleft()
            if kind == "mark":
                what.done = True
            elif kind == "work":
                try:
                    with np.errstate(all="ignore"):
                        what()
                except Fault as fault:
                    self.faults.append((fault, what, stream))
                    self.lose(stream.device_id)
            return True

    def lose(self, device):
        self.lost[device] = ILLEGAL_ADDRESS
        for stream in self.streams:
            if stream.device_id == device:
                for kind, what in stream.tasks:
                    if kind == "mark":
                        what.done = True
                stream.tasks.clear()

    def finish(self, record, device):
        while not record.done:
            assert self.step() or record.done, "a wait for work that was never launched"
        self.check(device)

    def finish_all(self, device=None):
        while self.has_work(device):
            assert self.step() or not self.has_work(device), "streams wait for each other"

    def has_work(self, device):
        return any(each.tasks and device in (None, each.device_id) for each in self.streams)

    def break_down(self):
        """Plant an error on the current stream; CUDA reports it later."""

        def fault():
            raise Fault("planted")

        self.put(self.current(), fault)

    # -- copies ------------------------------------------------------------------------------------------------

    def check_pinned(self, address, size):
        for start, content in list(self.pinned.items()):
            if start <= address and address + size <= start + content.size:
                return
        raise AssertionError("an asynchronous copy of memory that is not pinned")

    def copy(self, stream, target, source, size, label=""):
        def work():
            for address in (target, source) if not label else ((target,) if label == "HtoD" else (source,)):
                self.owner(address)
            ctypes.memmove(target, source, size)

        self.put(stream, work, label)


class Stream:
    """``cupy.cuda.Stream``."""

    machine: Machine
    _numbers = iter(range(16, 1 << 40, 16))

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
        assert non_blocking, "a stream that waits for the null stream"
        self.priority = priority or 0
        self.device_id = self.machine.here.device
        self.ptr = next(self._numbers)
        self.tasks = deque()
        self.captured = None
        self.is_broken = False
        self.machine.streams.append(self)

    def is_able(self):
        """Return whether the next work can run now."""
        while self.tasks and self.tasks[0][0] == "wait" and self.tasks[0][1].done:
            self.tasks.popleft()
        return bool(self.tasks) and self.tasks[0][0] != "wait"

    def use(self):
        assert self.device_id == self.machine.here.device, "the stream's device is not the current one"
        self.machine.here.streams[self.device_id] = self
        return self

    def wait_event(self, event):
        self.machine.check(self.device_id)
        with self.machine.lock:
            if self.captured is not None and event.place is not None:
                self.is_broken = True
                raise CUDARuntimeError(CAPTURE_ISOLATION)
            if event.place is not None and not event.place.done:
                self.tasks.append(("wait", event.place))

    def synchronize(self):
        self.machine.waits()
        while self.tasks:
            self.machine.step()

    def is_capturing(self):
        return self.captured is not None

    def begin_capture(self, mode=None):
        assert self.captured is None
        self.captured, self.is_broken = [], False

    def end_capture(self):
        captured, self.captured = self.captured, None
        if self.is_broken:
            raise CUDARuntimeError(CAPTURE_INVALIDATED)
        return Graph(self.machine, captured)


class NullStream:
    """The default current stream."""

    ptr = 0
    captured = None

    def __init__(self, machine, device):
        self.machine, self.device_id = machine, device
        self.tasks = deque()

    def is_able(self):
        return bool(self.tasks)

    def synchronize(self):
        while self.tasks:
            self.machine.step()
        self.machine.check(self.device_id)

    def use(self):
        self.machine.here.streams.pop(self.device_id, None)
        return self


class Event:
    """``cupy.cuda.Event``."""

    machine: Machine

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        assert block and disable_timing
        self.machine.check(self.machine.here.device)
        self.device_id = self.machine.here.device
        self.place = None
        self.ptr = next(Stream._numbers)
        self.machine.events[self.ptr] = self

    def record(self, stream=None):
        assert stream.device_id == self.device_id, "an event of another device"
        self.machine.check(self.device_id)
        with self.machine.lock:
            self.place = _Record()
            assert stream.captured is None
            stream.tasks.append(("mark", self.place))
            self.machine.progress()

    def query(self):
        if self.device_id in self.machine.lost:
            return self.machine.lost[self.device_id]
        return 0 if self.place is None or self.place.done else NOT_READY

    def synchronize(self):
        self.machine.check(self.device_id)
        if self.place is not None:
            self.machine.finish(self.place, self.device_id)


class Graph:
    """``cupy.cuda.Graph``."""

    def __init__(self, machine, captured):
        self._machine, self._captured = machine, captured

    def launch(self, stream=None):
        for work, _ in self._captured:
            self._machine.put(stream, work)

    def debug_dot_str(self, flags=0):
        return "\n".join(f"node ({label})" for _, label in self._captured)


class UnownedMemory:
    """``cupy.cuda.UnownedMemory``."""

    def __init__(self, ptr, size, owner, device_id=-1):
        self.ptr, self.size, self._owner, self.device_id = ptr, size, owner, device_id


class PinnedMemory:
    """``cupy.cuda.PinnedMemory``."""

    machine: Machine

    def __init__(self, size, flags=0):
        self.content = np.full(size, GARBAGE, np.uint8)
        self.size, self.ptr = size, self.content.ctypes.data
        self.machine.pinned[self.ptr] = self.content

    def __del__(self):
        self.machine.pinned.pop(self.ptr, None)


def PinnedMemoryPointer(mem, offset):  # noqa: N802
    """``cupy.cuda.PinnedMemoryPointer``: an object with a buffer, which keeps the memory alive."""
    buffer = (ctypes.c_ubyte * (mem.size - offset)).from_buffer(mem.content, offset)
    buffer.mem, buffer.ptr = mem, mem.ptr + offset
    return buffer


class PinnedMemoryPool:
    """``cupy.cuda.PinnedMemoryPool``."""

    machine: Machine

    def malloc(self, size):
        return PinnedMemoryPointer(bound(PinnedMemory, self.machine)(size), 0)

    def free_all_blocks(self):
        pass


def bound(kind, machine):
    """A class of a machine."""
    return type(kind.__name__, (kind,), {"machine": machine})


class MemoryPointer:
    """``cupy.cuda.MemoryPointer``."""

    def __init__(self, mem, offset):
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, mem.device_id

    def __add__(self, offset):
        return type(self)(self.mem, self.ptr - self.mem.ptr + offset)

    def copy_from_host_async(self, mem, size, stream=None):
        self.machine.check_pinned(mem, size)
        self.machine.copy(stream or self.machine.current(), self.ptr, mem, size, "HtoD")

    def copy_from_device_async(self, src, size, stream=None):
        self.machine.copy(stream or self.machine.current(), self.ptr, src.ptr, size)

    def copy_to_host_async(self, mem, size, stream=None):
        self.machine.check_pinned(mem, size)
        self.machine.copy(stream or self.machine.current(), mem, self.ptr, size, "DtoH")


def cuda(machine):
    """The module ``cupy.cuda``."""
    allocators = {"device": machine.pointer, "pinned": None}
    runtime = SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError, getDeviceCount=lambda: machine.count, getDevice=lambda: machine.here.device,
        setDevice=lambda number: setattr(machine.here, "device", number), malloc=machine.malloc, free=machine.free,
        eventQuery=lambda ptr: machine.events[ptr].query(),
        memGetInfo=lambda: (machine.memory - machine.used[machine.here.device], machine.memory), hostAllocPortable=1,
        deviceCanAccessPeer=lambda one, other: int(one != other),
        deviceEnablePeerAccess=lambda other: machine.peers.add((machine.here.device, other)),
        memcpyPeerAsync=lambda target, _, source, __, size, stream: machine.copy(
            next(each for each in machine.streams if each.ptr == stream), target, source, size
        ),
    )  # fmt: skip
    return SimpleNamespace(
        runtime=runtime, driver=SimpleNamespace(CUDADriverError=CUDADriverError), UnownedMemory=UnownedMemory,
        **{kind.__name__: bound(kind, machine)
           for kind in (Stream, Event, PinnedMemory, PinnedMemoryPool, MemoryPointer)},
        PinnedMemoryPointer=PinnedMemoryPointer, get_current_stream=machine.current,
        get_allocator=lambda: allocators["device"],
        set_allocator=lambda value: allocators.update(device=value),
        alloc=lambda size: allocators["device"](size),
        set_pinned_memory_allocator=lambda value: allocators.update(pinned=value),
        alloc_pinned_memory=lambda size: allocators["pinned"](size),
    )  # fmt: skip
