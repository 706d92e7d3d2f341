"""A GPU: stream actors, a memory pool that is aware of streams, and CuPy as the array namespace."""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from flowmx import process_hooks, settings
from flowmx.devices.accelerator import Accelerator
from flowmx.devices.block_pool import Block, BlockPool
from flowmx.devices.context import Context
from flowmx.devices.cuda import copies, library
from flowmx.devices.cuda.generator import CudaGenerator
from flowmx.devices.cuda.graphs import Graphs
from flowmx.devices.cuda.memory import RawAllocator, block_of, capture_state, install, lease_type
from flowmx.devices.cuda.staging import Staging
from flowmx.devices.cuda.stream import CudaStream, token_lock
from flowmx.devices.streams import Stream, Token, current_stream
from flowmx.engine.failure import Failure
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import Operation, Variable
from flowmx.errors import DeviceError

_PEER_ACCESS_ALREADY_ENABLED = 704


class CudaDevice(Accelerator):
    """One GPU.

    Args:
        context: the device's context, whose number is CUDA's.
        cp: CuPy.
        streams: the number of compute streams (default: ``FLOWMX_GPU_WORKER_NTHREADS``).
        memory: maximum memory in bytes (default: all except ``FLOWMX_GPU_MEM_POOL_RESERVE`` percent).

    Attributes:
        number: the device's number in CUDA.
        pool: the memory pool.
        staging: pinned memory for copies.
        reader: the stream for reading values, protected by ``reader_lock``.
        fatal_failure: the failure that made the device unusable, or None.
        errors: CuPy's exception types for CUDA errors.
        graphs: the captured graphs; None if graphs are disabled.
    """

    kernels = "gpu"
    reads_are_copies = True
    captures = True

    def __init__(self, context: Context, cp: Any, streams: int | None = None, memory: int | None = None) -> None:
        config = settings.get()
        self.context = context
        self.xp = cp
        self.number = context.device_id
        self.errors = library.errors(cp)
        self.fatal_failure: Failure | None = None
        self.dlpack_device = (2, self.number)
        install(cp)
        with self.as_current():
            self._total = cp.cuda.runtime.memGetInfo()[1]
        raw = RawAllocator(self)
        limit = memory or self._total - self._total * config.gpu_mem_pool_reserve // 100
        self.pool = BlockPool(
            repr(context), raw.allocate, raw.free, limit, self._total, self.synchronize, config.gpu_mem_pool_type
        )
        self.pool.newest_tokens = self._newest_tokens
        self._lease = lease_type(cp)
        self.staging = Staging(cp)
        self.generator = CudaGenerator(repr(context), cp)
        self.graphs = Graphs(self) if config.cuda_graphs else None
        self.reader = CudaStream(self, "reads")
        self.reader_lock = threading.RLock()
        self._peers: set[int] = set()
        self.open(streams)
        _all.add(self)

    def stream(self, name: str, purpose: str, priority: int = 0) -> CudaStream:
        return CudaStream(self, name, priority)

    @contextlib.contextmanager
    def as_current(self) -> Iterator[None]:
        """Make this CUDA's current device in a ``with`` block."""
        runtime = self.xp.cuda.runtime
        former = runtime.getDevice()
        runtime.setDevice(self.number)
        try:
            yield
        finally:
            runtime.setDevice(former)

    def streams(self) -> list[CudaStream]:
        """Return all streams of the device."""
        streams: list[Stream] = [stream for actor in self.actors for stream in actor.all_streams()]
        return [stream for stream in (*streams, self.reader) if isinstance(stream, CudaStream)]

    def _newest_tokens(self) -> list[Token]:
        return [stream.newest for stream in self.streams() if stream.newest is not None]

    # -- memory ----------------------------------------------------------------------------------------

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Any:
        dtype = np.dtype(dtype)
        return self.xp.ndarray(shape, dtype, memptr=self.memory(math.prod(shape) * dtype.itemsize))

    def memory(self, nbytes: int) -> Any:
        """Allocate memory for an array, or for temporary data of CuPy, on the current stream; return a CuPy pointer.

        Raises:
            OutOfMemory: there is not enough memory.
            DeviceError: the device is lost.
        """
        if self.fatal_failure is not None:
            self.fatal_failure.throw()
        if capture_state.memory is not None:
            lease = capture_state.memory.take(nbytes)
        else:
            lease = self.lease(self.pool.acquire(nbytes, current_stream()), self.pool.returned)
        return self.xp.cuda.MemoryPointer(lease, 0)

    def lease(self, block: Block, returned: Any) -> Any:
        """Return a lease on a block; when the lease ends, its ticket is appended to a queue."""
        lease = self._lease(block.address, block.size, None, self.number)
        lease.block, lease.owner = block, self
        block.lease(lease, returned)
        return lease

    def view(self, array: Any, shape: tuple[int, ...], dtype: Any, offset: int, strides: tuple[int, ...]) -> Any:
        return self.xp.ndarray(shape, dtype, memptr=array.data + offset, strides=strides)

    def record_use(self, variable: Variable, token: Token) -> None:
        block = block_of(getattr(variable, "array", None))
        if block is not None:
            block.uses[token.stream] = token
            block.uses_are_known = True

    def synchronize_host_work(self) -> None:
        if self.fatal_failure is None:
            current = self.xp.cuda.get_current_stream
            current().synchronize()  # user code may have selected another device
            with self.as_current():
                current().synchronize()

    def memory_info(self) -> tuple[int, int]:
        with self.as_current():
            free, total = self.xp.cuda.runtime.memGetInfo()
        return min(self.pool.free_bytes(), free + self.pool.idle), total

    # -- copies ----------------------------------------------------------------------------------------

    def copy(self, source: object, target: object) -> None:
        copies.copy_in(self, source, target)

    def copy_out(self, source: object, target: object) -> None:
        copies.copy_out(self, source, target)

    def to_host(self, array: Any) -> Any:
        if self.fatal_failure is not None:
            self.fatal_failure.throw()
        target = np.empty(array.shape, array.dtype)
        try:
            with self.reader_lock, self.reader:
                copies.copy_out(self, array, target)
        except self.errors as error:
            self.lose(error, self.reader, None).throw()
        return target

    def enable_peer_access(self, other: int) -> None:
        """Enable direct copies from another GPU, if both support them and ``FLOWMX_ENABLE_GPU_P2P`` allows them."""
        if other in self._peers or not settings.get().enable_gpu_p2p:
            return
        self._peers.add(other)
        runtime = self.xp.cuda.runtime
        if runtime.deviceCanAccessPeer(self.number, other):
            with self.as_current():
                try:
                    runtime.deviceEnablePeerAccess(other)
                except self.errors as error:
                    if getattr(error, "status", None) != _PEER_ACCESS_ALREADY_ENABLED:
                        raise

    # -- errors ----------------------------------------------------------------------------------------

    def lose_if_fatal(self, error: Exception, stream: CudaStream, op: Operation) -> Failure | None:
        """Mark the device as lost if a launch's error is fatal; return None if only the launch has failed."""
        return self.lose(error, stream, op) if library.is_fatal(error) else None

    def lose(self, error: Exception, stream: CudaStream, op: Operation | None) -> Failure:
        """Mark the device as lost: all unfinished and all later work on it fails.

        Args:
            error: CUDA's error.
            stream: the stream that reported the error.
            op: the operation that was being launched, if any.
        """
        failure = self._explain(error, stream, op) if self.fatal_failure is None else self.fatal_failure
        with token_lock:
            earlier, self.fatal_failure = self.fatal_failure, self.fatal_failure or failure
            for device_stream in self.streams():
                device_stream.fail(self.fatal_failure)
        if earlier is None:
            with engine.lock:
                engine.report(self.fatal_failure)
        return self.fatal_failure

    def _explain(self, error: Exception, stream: CudaStream, op: Operation | None) -> Failure:
        suspects = stream.open_operations() or [
            pending for other in self.streams() for pending in other.open_operations()
        ]
        first = suspects[0] if suspects else op or Operation(_do_nothing, (), (), (), self.compute, "unknown")
        failure = DeviceError(
            f"{self} failed: {error}. Its stream {stream.name!r} reported the error while {len(suspects)} operations "
            f"were unfinished; the oldest, {first.name!r}, or a later one caused the error. With "
            "CUDA_LAUNCH_BLOCKING=1 in the environment, the operation that causes an error raises it. This process "
            f"cannot use {self} any more; other devices are not affected"
        )
        failure.__cause__ = error
        return Failure(failure, first)

    # -- shutdown --------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        for stream in self.streams():
            stream.synchronize()

    def disable_in_child(self) -> None:
        """Disable the device in the child of a fork, where CUDA does not work."""
        error = DeviceError(
            f"{self} was used before this process was forked, and CUDA does not work in the child: start processes "
            "with multiprocessing's 'spawn', or use the GPU only after the fork"
        )
        op = Operation(_do_nothing, (), (), (), self.compute, "fork")
        self.fatal_failure = Failure(error, op)
        for stream in self.streams():
            _leaked_handles.append(stream.handles())  # they cannot be destroyed in the child
            stream.fail(self.fatal_failure)


_leaked_handles: list[Any] = []
_all: weakref.WeakSet[CudaDevice] = weakref.WeakSet()


def _do_nothing() -> None:
    """Do nothing: the function of a placeholder for unknown operations."""


def _after_fork() -> None:
    for device in _all:
        device.disable_in_child()


process_hooks.at_fork(after_in_child=_after_fork)
