"""Captures: the launches of steps on a stream become a graph, which owns the memory that they take meanwhile.

A graph writes into that memory at every launch. So it comes from, and goes back to, a store of the capture's own.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowmx.devices.blocks import Block, Ticket
from flowmx.devices.cuda.memory import capturing
from flowmx.devices.cuda.moving import Copies
from flowmx.devices.cuda.stream import CudaStream
from flowmx.devices.streams import here

if TYPE_CHECKING:
    from flowmx.devices.cuda.device import CudaDevice

_log = logging.getLogger("flowmx.cuda")

_COPY_NODES = 8
"""The flag of ``debug_dot_str`` for copy nodes. Not all: names of kernels that CuPy has compiled make CUDA fail."""
_HOST_COPIES = ("HtoD", "DtoH", "HostToDevice", "DeviceToHost")


class Kept:
    """A holder that keeps a block from the pool which nothing else holds."""


class CaptureMemory:
    """The allocator of device memory during a capture.

    Args:
        device: the GPU.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._free: dict[int, list[Block]] = {}
        self._returned: deque[Ticket] = deque()
        self._blocks: dict[int, Block] = {}

    def take(self, nbytes: int) -> Any:
        """A lease on so many bytes, which are free for good, or were given back in this capture."""
        self._collect()
        # What used a block before is waited for here: a capture may not wait for what is outside of it.
        free = self._free.get(self._device.pool.rounded(nbytes))
        block = free.pop() if free else self._device.pool.acquire(nbytes, None)
        self._blocks[id(block)] = block
        return self._device.lease(block, self._returned)

    def _collect(self) -> None:
        while self._returned:
            block = self._returned.popleft().block
            self._free.setdefault(block.size, []).append(block)

    def keep(self) -> list[Any]:
        """End the capture; returns what holds the blocks from now on, besides arrays that outlive it."""
        self._collect()
        free = {id(block) for blocks in self._free.values() for block in blocks}
        held: list[Any] = []
        for number, block in self._blocks.items():
            ticket = block.ticket
            holder = None if number in free or ticket is None else ticket()
            held.append(holder := Kept() if holder is None else holder)
            block.lease(holder, self._device.pool.returned)
        return held

    @property
    def blocks(self) -> list[Block]:
        """The blocks that were allocated."""
        return list(self._blocks.values())


class Captured:
    """A graph, and the memory that it works in.

    Attributes:
        generator: the state of random numbers that it draws with, if any.
        copies: its own of arrays that move, if any.
    """

    generator: Any = None
    copies: Copies | None = None

    def __init__(self, graph: Any, held: list[Any], blocks: list[Block]) -> None:
        self.graph = graph
        self._held = held
        self._blocks = blocks

    def launch(self, stream: CudaStream) -> None:
        """Launch it on a stream."""
        if self.copies is not None:
            self.copies.fill(stream)
        self.graph.launch(stream.raw)
        if self.copies is not None:
            self.copies.hand_out(stream)
        if here.launch is not None:
            here.launch.blocks += self._blocks


class NotCaptured(Exception):
    """A capture that failed.

    Attributes:
        culprit: the step that it failed at; None where it is not known.
    """

    def __init__(self, why: object, culprit: int | None) -> None:
        super().__init__(str(why))
        self.culprit = culprit


def capture(device: CudaDevice, run: Any, steps: Sequence[Any], stream: CudaStream) -> Captured:
    """Capture steps on a stream.

    Args:
        device: the GPU.
        run: what the steps are given.
        steps: what is captured.
        stream: where.

    Raises:
        NotCaptured: that can not be done; the stream is as it was.
    """
    memory = CaptureMemory(device)
    graph: Any = None
    why: object = None
    culprit: int | None = None
    stream.raw.begin_capture()
    capturing.memory = memory
    try:
        for number, step in enumerate(steps):
            culprit = number
            step[0](run, step[1], step[2])
        culprit = None
    except Exception as error:
        why = error
    finally:
        capturing.memory = None
        try:
            graph = stream.raw.end_capture()  # also after an error: it is what ends the capture
        except Exception as error:
            why = why or error
    if graph is not None and why is None and copies_host_memory(graph):
        why = "it copies memory of the host"
    held = memory.keep()
    if why is not None:
        _log.info("%s: %d steps are not captured as a graph: %s", device, len(steps), why)
        raise NotCaptured(why, culprit)
    return Captured(graph, held, memory.blocks)


def copies_host_memory(graph: Any) -> bool:
    """Tell whether a graph copies from or to the host, whose memory may be reused before the next launch."""
    # Pinned memory is refused in a capture, so that this only finds what passes plain memory of the host by itself.
    try:
        text = str(graph.debug_dot_str(_COPY_NODES))
    except Exception as error:
        _log.info("a captured graph can not be looked at: %s", error)
        return False
    return any(word in text for word in _HOST_COPIES)
