"""A simulated GPU: NumPy computes, if at all; streams, memory and time are those of the described device."""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from flowmx import settings
from flowmx.devices.accelerator import Accelerator
from flowmx.devices.arrays import Array, DType
from flowmx.devices.block_pool import Block, BlockPool
from flowmx.devices.context import Context
from flowmx.devices.generator import Generator
from flowmx.devices.launch_traits import launch_traits
from flowmx.devices.sim.blank import Blank
from flowmx.devices.sim.description import Description
from flowmx.devices.sim.stream import SimStream
from flowmx.devices.sim.system import System
from flowmx.devices.streams import Launch, Token, current_stream, thread_streams
from flowmx.engine.actor import Actor
from flowmx.engine.scheduler import Variable

_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # Python 3.11 has no name for it
_MAPPING = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
_MAPPING |= getattr(mmap, "MAP_NORESERVE", _NO_RESERVE) if _MAPPING else 0
COPIES_IN, COPIES_OUT, COPIES_OF_PEERS = "copies in", "copies out", "copies of peers"
"""The kinds of work that are not kernels."""


class _Lease(np.ndarray[Any, Any]):
    """A lease on a block, as an array of its bytes; views keep it alive."""

    block: Block


class SimDevice(Accelerator):
    """One device of a simulated machine.

    Args:
        context: its name.
        system: the machine.
        description: its description.
        streams: the number of compute streams (default: ``FLOWMX_GPU_WORKER_NTHREADS``).
        memory: bytes; by default those of the description.
        numerics: whether to compute; otherwise arrays are :class:`~flowmx.devices.sim.blank.Blank`.
        kernels: the device type whose kernels are used.
        graphs: whether bound graphs are one launch from their second run on, like CUDA graphs.
    """

    xp = np

    def __init__(
        self, context: Context, system: System, description: Description, streams: int | None = None,
        memory: int | None = None, numerics: bool = True, kernels: str = "cpu",
        graphs: bool = False,
    ) -> None:  # fmt: skip
        config = settings.get()
        self.context = context
        self.system = system
        self.description = description
        self.has_numerics = numerics
        self.kernels = kernels
        self._captured: WeakKeyDictionary[Any, set[Any]] | None = WeakKeyDictionary() if graphs else None
        self._array: type[np.ndarray[Any, Any]] = np.ndarray if numerics else Blank
        self.generator = Generator(repr(context))
        total = memory or description.memory
        self._total = total
        self.pool = BlockPool(
            repr(context), _map, _unmap, total - total * config.gpu_mem_pool_reserve // 100, total, self.synchronize,
            config.gpu_mem_pool_type,
        )  # fmt: skip
        self.open(streams, system.on_push)
        self._copies: dict[Actor, str] = {
            self.incoming: COPIES_IN, self.outgoing: COPIES_OUT, self.peers: COPIES_OF_PEERS,
        }  # fmt: skip

    def stream(self, name: str, purpose: str, priority: int = 0) -> SimStream:
        return SimStream(self.system, self, name, purpose, priority)

    # -- memory ----------------------------------------------------------------------------------------

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> Array:
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if self.system.executing:  # temporary memory of deferred work; its results were counted at the launch
            return np.empty(shape, dtype)
        block = self.pool.acquire(nbytes, current_stream())
        lease = _Lease((block.size,), np.uint8, block.memory)
        lease.block = block
        block.lease(lease, self.pool.returned)
        return self._array(shape, dtype, lease)

    def block_of(self, variable: Variable) -> Block | None:
        """Return the block of a variable's array, or None."""
        return _block_of(getattr(variable, "array", None))

    def record_use(self, variable: Variable, token: Token) -> None:
        block = self.block_of(variable)
        if block is not None:
            block.uses[token.stream] = token

    def without_lease(self, array: Array) -> Array | None:
        """Return an array over the same memory that does not keep it in use; None if it is not in a block."""
        block = _block_of(array)
        if block is None:
            return None
        offset = array.__array_interface__["data"][0] - block.address
        return np.ndarray(array.shape, array.dtype, block.memory, offset, array.strides)

    def memory_info(self) -> tuple[int, int]:
        return self.pool.free_bytes(), self._total

    # -- copies ----------------------------------------------------------------------------------------

    def copy(self, source: Array, target: Array) -> None:
        np.copyto(target, source, casting="unsafe")

    def to_host(self, array: Array) -> Array:
        self.system.read(self.outgoing.streams[0], self.description.copy(array.nbytes, "host"))
        if self.has_numerics:
            return array
        self.system.warn_of_zeros(self)
        return np.zeros(array.shape, array.dtype)

    # -- time ------------------------------------------------------------------------------------------

    def timed(self, op: Any, forward: Callable[..., object]) -> Callable[..., Any]:
        # User code and bodies of loops launch further work: they run even without numerics.
        is_called = self.has_numerics or op.traits.detached or op.subgraphs

        def run(run: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
            launch = thread_streams.launch
            if launch is not None and launch.op.actor not in self._copies:
                flops, moved = op.cost([array.shape for array in inputs], [array.shape for array in outputs])
                first = outputs[0] if outputs else inputs[0]
                self.account(launch, op.name, flops, moved * first.itemsize, first.dtype.name)
            return forward(run, inputs, outputs) if is_called else None

        return run

    def account(self, launch: Launch, name: str, flops: float, nbytes: float, dtype: str = "float32") -> None:
        """Record the work of a kernel of a launch."""
        seconds, limit = self.description.kernel(flops, nbytes, dtype)
        launch.work.add(seconds, limit)
        self.system.operators[name] += seconds

    @property
    def replays(self) -> bool:
        return self._captured is not None

    def replay(self, launch: Launch) -> None:
        """Count the launches of a bound graph as one if they were captured before.

        The ``captured_by`` of the launch function's :class:`LaunchTraits` identifies the capture.
        """
        captured_by = launch_traits(launch.function).captured_by
        if self._captured is None or captured_by is None:
            return
        graph, part, launches = captured_by(*launch.arguments)
        parts = self._captured.setdefault(graph, set())
        if part in parts:
            launch.work.kernels = min(launches, launch.work.kernels)
        parts.add(part)

    def account_for_launch(self, launch: Launch) -> None:
        """Record the work of a launch whose operators have not reported it.

        If the launch function's :class:`LaunchTraits` have no ``moves``, a copy moves the bytes that it writes, and
        any other launch moves all bytes once.
        """
        kind = self._copies.get(launch.op.actor)
        moves = launch_traits(launch.function).moves
        reported = None if moves is None else moves(*launch.arguments)
        if reported is None:
            written, touched = sum(map(_nbytes, launch.writes)), {*launch.reads, *launch.writes}
            reported = [("here", sum(map(_nbytes, touched)))] if kind is None else [("there", written)]
        for where, nbytes in reported:
            if where == "here":
                self.account(launch, launch.op.name, 0, nbytes)
            else:
                kind = kind or COPIES_OF_PEERS
                between = "peer" if kind == COPIES_OF_PEERS else "host"
                launch.work.add(self.description.copy(nbytes, between), kind)


def _nbytes(variable: Variable) -> int:
    shape, dtype = getattr(variable, "shape", None), getattr(variable, "dtype", None)
    return 0 if shape is None or dtype is None else math.prod(shape) * int(dtype.itemsize)


def _block_of(array: object) -> Block | None:
    while array is not None and type(array) is not _Lease:
        array = getattr(array, "base", None)
    return None if array is None else array.block


def _map(size: int) -> tuple[Any, int]:
    """Map memory that uses no physical pages before its first access."""
    memory = mmap.mmap(-1, size, flags=_MAPPING) if _MAPPING else bytearray(size)
    return memory, int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])


def _unmap(memory: object) -> None:
    """Do nothing: memory is unmapped when its last view is freed."""
