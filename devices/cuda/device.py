"""A GPU: streams as actors, memory from a pool that knows them, CuPy as the array namespace."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from flowmx import settings
from flowmx.devices.accelerator import Accelerator
from flowmx.devices.blocks import Block, BlockPool
from flowmx.devices.context import Context
from flowmx.devices.cuda import copies, library
from flowmx.devices.cuda.generator import CudaGenerator
from flowmx.devices.cuda.graphs import Graphs
from flowmx.devices.cuda.memory import Raw, block_of, capturing, install, lease_type
from flowmx.devices.cuda.staging import Staging
from flowmx.devices.cuda.stream import CudaStream, books
from flowmx.devices.streams import Stream, Token, current_stream
from flowmx.engine.failure import Failure
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import Operation, Variable
from flowmx.errors import DeviceError

_ALREADY_REACHED = 704


class CudaDevice(Accelerator):
    """One GPU.

    Args:
        context: its name; its number is CUDA's.
        cp: CuPy.
        streams: how many streams compute (default: ``FLOWMX_GPU_WORKER_NTHREADS``).
        memory: most bytes to use (default: all but ``FLOWMX_GPU_MEM_POOL_RESERVE`` percent).

    Attributes:
        number: CUDA's number of it.
        pool: its memory.
        staging: pinned memory for copies.
        reader: the stream on which values are read, one after the other, with ``reading`` held.
        lost: why it can not be used any more; None: it can.
        errors: what CuPy raises for errors of CUDA.
        graphs: the graphs that were captured; None where they are switched off.
    """

    kernels = "gpu"
    reads_are_copies = True

    def __init__(self, context: Context, cp: Any, streams: int | None = None, memory: int | None = None) -> None:
        config = settings.get()
        self.context = context
        self.xp = cp
        self.number = context.device_id
        self.errors = library.errors(cp)
        self.lost: Failure | None = None
        self.dlpack_device = (2, self.number)
        install(cp)
        with self.selected():
            self._total = cp.cuda.runtime.memGetInfo()[1]
        raw = Raw(self)
        limit = memory or self._total - self._total * config.gpu_mem_pool_reserve // 100
        self.pool = BlockPool(
            repr(context), raw.take, raw.give, limit, self._total, self.synchronize, config.gpu_mem_pool_type
        )
        self.pool.newest = self._newest
        self._lease = lease_type(cp)
        self.staging = Staging(cp)
        self.generator = CudaGenerator(repr(context), cp)
        self.graphs = Graphs(self) if config.cuda_graphs else None
        self.reader = CudaStream(self, "reads")
        self.reading = threading.RLock()
        self._reached: set[int] = set()
        self.open(streams)
        _all.add(self)

    def stream(self, name: str, purpose: str, priority: int = 0) -> CudaStream:
        return CudaStream(self, name, priority)

    @contextlib.contextmanager
    def selected(self) -> Iterator[None]:
        """A ``with`` block in which it is CUDA's current device."""
        runtime = self.xp.cuda.runtime
        before = runtime.getDevice()
        runtime.setDevice(self.number)
        try:
            yield
        finally:
            runtime.setDevice(before)

    def streams(self) -> list[CudaStream]:
        """All its streams."""
        found: list[Stream] = [stream for actor in self.actors for stream in actor.all_streams()]
        return [stream for stream in (*found, self.reader) if isinstance(stream, CudaStream)]

    def _newest(self) -> list[Token]:
        return [stream.newest for stream in self.streams() if stream.newest is not None]

    # -- memory ----------------------------------------------------------------------------------------

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Any:
        dtype = np.dtype(dtype)
        return self.xp.ndarray(shape, dtype, memptr=self.memory(math.prod(shape) * dtype.itemsize))

    def memory(self, nbytes: int) -> Any:
        """Memory for an array, or for what CuPy needs meanwhile, on the current stream: a pointer of CuPy's.

        Raises:
            OutOfMemory: there is none.
            DeviceError: the device is lost.
        """
        if self.lost is not None:
            self.lost.throw()
        if capturing.memory is not None:
            lease = capturing.memory.take(nbytes)
        else:
            lease = self.lease(self.pool.acquire(nbytes, current_stream()), self.pool.returned)
        return self.xp.cuda.MemoryPointer(lease, 0)

    def lease(self, block: Block, returned: Any) -> Any:
        """The right to use a block, which comes back to a queue of tickets."""
        made = self._lease(block.address, block.size, None, self.number)
        made.block, made.home = block, self
        block.lease(made, returned)
        return made

    def view(self, array: Any, shape: tuple[int, ...], dtype: Any, offset: int, strides: tuple[int, ...]) -> Any:
        return self.xp.ndarray(shape, dtype, memptr=array.data + offset, strides=strides)

    def used(self, variable: Variable, token: Token) -> None:
        block = block_of(getattr(variable, "array", None))
        if block is not None:
            block.uses[token.stream] = token
            block.is_followed = True

    def finish_work_of_host(self) -> None:
        if self.lost is None:
            current = self.xp.cuda.get_current_stream
            current().synchronize()  # the user's code may have another device as its current one
            with self.selected():
                current().synchronize()

    def memory_info(self) -> tuple[int, int]:
        with self.selected():
            free, total = self.xp.cuda.runtime.memGetInfo()
        return min(self.pool.free_bytes(), free + self.pool.idle), total

    # -- copies ----------------------------------------------------------------------------------------

    def copy(self, source: Any, target: Any) -> None:
        copies.copy_in(self, source, target)

    def copy_out(self, source: Any, target: Any) -> None:
        copies.copy_out(self, source, target)

    def to_host(self, array: Any) -> Any:
        if self.lost is not None:
            self.lost.throw()
        found = np.empty(array.shape, array.dtype)
        try:
            with self.reading, self.reader:
                copies.copy_out(self, array, found)
        except self.errors as error:
            self.lose(error, self.reader, None).throw()
        return found

    def reach(self, other: int) -> None:
        """Let it copy from another GPU directly, where both can and ``FLOWMX_ENABLE_GPU_P2P`` allows it."""
        if other in self._reached or not settings.get().enable_gpu_p2p:
            return
        self._reached.add(other)
        runtime = self.xp.cuda.runtime
        if runtime.deviceCanAccessPeer(self.number, other):
            with self.selected():
                try:
                    runtime.deviceEnablePeerAccess(other)
                except self.errors as error:
                    if getattr(error, "status", None) != _ALREADY_REACHED:
                        raise

    # -- errors ----------------------------------------------------------------------------------------

    def lose_by(self, error: Exception, stream: CudaStream, op: Operation) -> Failure | None:
        """Lose the device if an error that a launch raised is fatal to it; None where only the launch has failed."""
        return self.lose(error, stream, op) if library.is_deadly(error) else None

    def lose(self, error: Exception, stream: CudaStream, op: Operation | None) -> Failure:
        """Give the device up: what is not known to be done fails, and so does all that comes.

        Args:
            error: CUDA's error.
            stream: where it was found.
            op: what was being launched, if anything.
        """
        explained = self._explained(error, stream, op) if self.lost is None else self.lost
        with books:
            lost, self.lost = self.lost, self.lost or explained
            for each in self.streams():
                each.fail(self.lost)
        if lost is None:
            with engine.lock:
                engine.report(self.lost)
        return self.lost

    def _explained(self, error: Exception, stream: CudaStream, op: Operation | None) -> Failure:
        suspects = stream.open_operations() or [each for one in self.streams() for each in one.open_operations()]
        first = suspects[0] if suspects else op or Operation(_nothing, (), (), (), self.compute, "unknown")
        failure = DeviceError(
            f"{self} failed: {error}. This was found on its stream {stream.name!r}, where {len(suspects)} operations "
            f"were not known to be done; the oldest is {first.name!r}, and it or a later one is at fault. With "
            "CUDA_LAUNCH_BLOCKING=1 in the environment the operation at fault says so itself. CUDA does not let "
            f"this process use {self} any more; other devices go on"
        )
        failure.__cause__ = error
        return Failure(failure, first)

    # -- ends ------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        for stream in self.streams():
            stream.synchronize()

    def left_behind(self) -> None:
        """Disable the device in the child of a fork, where CUDA does not work."""
        error = DeviceError(
            f"{self} was used before this process was forked, and CUDA does not work in the child: start processes "
            "with multiprocessing's 'spawn', or use the GPU only after the fork"
        )
        op = Operation(_nothing, (), (), (), self.compute, "fork")
        self.lost = Failure(error, op)
        for stream in self.streams():
            _left.append(stream.handles())  # they can not be destroyed here
            stream.fail(self.lost)


_left: list[Any] = []
_all: weakref.WeakSet[CudaDevice] = weakref.WeakSet()


def _nothing() -> None:
    """Do nothing: the function of a placeholder for unknown operations."""


def _after_fork() -> None:
    for device in _all:
        device.left_behind()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
