"""Captures: the launches of steps on a stream become a graph, which owns the memory that they allocate.

A graph writes to that memory at every launch. The memory therefore comes from a separate allocator for the capture.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowmx.devices.block_pool import Block, Ticket
from flowmx.devices.cuda.memory import capture_state
from flowmx.devices.cuda.moving import Copies
from flowmx.devices.cuda.stream import CudaStream
from flowmx.devices.streams import thread_streams

if TYPE_CHECKING:
    from flowmx.devices.cuda.device import CudaDevice

_log = logging.getLogger("flowmx.cuda")

_COPY_NODES = 8
"""The flag of ``debug_dot_str`` for copy nodes. With all nodes, CUDA fails on the names of CuPy's kernels."""
_HOST_COPIES = ("HtoD", "DtoH", "HostToDevice", "DeviceToHost")


class BlockHolder:
    """An object that keeps a block in use when no array does."""


class CaptureMemory:
    """The allocator of device memory during a capture.

    Args:
        device: the GPU.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._free: dict[int, list[Block]] = {}
        self._tickets: deque[Ticket] = deque()
        self._blocks: dict[int, Block] = {}

    def take(self, nbytes: int) -> Any:
        """Return a lease on a block that was freed in this capture, or on a new one."""
        self._collect()
        # The host waits for earlier uses of a block: a capture must not wait for work outside it.
        free = self._free.get(self._device.pool.rounded(nbytes))
        block = free.pop() if free else self._device.pool.acquire(nbytes, None)
        self._blocks[id(block)] = block
        return self._device.lease(block, self._tickets)

    def _collect(self) -> None:
        while self._tickets:
            block = self._tickets.popleft().block
            self._free.setdefault(block.size, []).append(block)

    def finish(self) -> list[object]:
        """End the capture; return objects that keep its blocks in use: surviving arrays, or block holders."""
        self._collect()
        free = {id(block) for blocks in self._free.values() for block in blocks}
        holders: list[object] = []
        for number, block in self._blocks.items():
            ticket = block.ticket
            array = None if number in free or ticket is None else ticket()
            holder = BlockHolder() if array is None else array
            holders.append(holder)
            block.lease(holder, self._device.pool.returned)
        return holders

    @property
    def blocks(self) -> list[Block]:
        """The blocks that were allocated."""
        return list(self._blocks.values())


class CapturedGraph:
    """A captured graph and its memory.

    Attributes:
        generator: the random generator of the captured steps, if any.
        copies: fixed copies of arrays whose addresses change, if any.
    """

    generator: Any = None
    copies: Copies | None = None

    def __init__(self, graph: Any, holders: list[object], blocks: list[Block]) -> None:
        self.graph = graph
        self._holders = holders
        self._blocks = blocks

    def launch(self, stream: CudaStream) -> None:
        """Launch the graph on a stream."""
        if self.copies is not None:
            self.copies.fill(stream)
        self.graph.launch(stream.raw)
        if self.copies is not None:
            self.copies.copy_back(stream)
        if thread_streams.launch is not None:
            thread_streams.launch.blocks += self._blocks


class CaptureError(Exception):
    """A capture that failed.

    Attributes:
        failed_step: the number of the step that failed, if known.
    """

    def __init__(self, reason: object, failed_step: int | None) -> None:
        super().__init__(str(reason))
        self.failed_step = failed_step


def capture(device: CudaDevice, run: Any, steps: Sequence[Any], stream: CudaStream) -> CapturedGraph:
    """Capture steps on a stream.

    Args:
        device: the GPU.
        run: the first argument of the steps.
        steps: the steps to capture.
        stream: the stream.

    Raises:
        CaptureError: the steps cannot be captured; the stream is unchanged.
    """
    memory = CaptureMemory(device)
    graph: Any = None
    reason: object = None
    failed_step: int | None = None
    stream.raw.begin_capture()
    capture_state.memory = memory
    try:
        for number, step in enumerate(steps):
            failed_step = number
            step[0](run, step[1], step[2])
        failed_step = None
    except Exception as error:  # CUDA and kernels raise errors of many kinds
        reason = error
    finally:
        capture_state.memory = None
        try:
            graph = stream.raw.end_capture()  # also after an error: only this ends the capture
        except Exception as error:  # CUDA and kernels raise errors of many kinds
            reason = reason or error
    if graph is not None and reason is None and copies_host_memory(graph):
        reason = "they copy host memory"
    holders = memory.finish()
    if reason is not None:
        _log.info("%s: %d steps are not captured as a graph: %s", device, len(steps), reason)
        raise CaptureError(reason, failed_step)
    return CapturedGraph(graph, holders, memory.blocks)


def copies_host_memory(graph: Any) -> bool:
    """Return whether a graph copies from or to host memory, which may be reused before the next launch."""
    # Pinned memory cannot be allocated in a capture, so this only has to find direct uses of pageable host memory.
    try:
        text = str(graph.debug_dot_str(_COPY_NODES))
    except Exception as error:  # CUDA and kernels raise errors of many kinds
        _log.info("a captured graph cannot be inspected: %s", error)
        return False
    return any(word in text for word in _HOST_COPIES)
