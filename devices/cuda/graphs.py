"""CUDA graphs: steps of a bound graph that run again on the same memory are launched as one.

The first run goes step by step, which lets kernels make their plans. The next on the same addresses is captured on the
stream: nothing runs, and what would have been launched becomes a graph. Later runs launch that. Where any address
differs, there is another capture; where a capture fails, or what was captured copies from the host (whose memory will
hold something else by then), these steps run one by one for good.

A graph writes into the memory that was allocated during its capture at every launch. So that memory belongs to it:
meanwhile it comes from, and goes back to, a store of the capture's own.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowmx.devices.blocks import Block, Ticket
from flowmx.devices.cuda.memory import capturing
from flowmx.devices.cuda.stream import CudaStream
from flowmx.devices.streams import current_stream, here

if TYPE_CHECKING:
    from flowmx.devices.cuda.device import CudaDevice

_log = logging.getLogger("flowmx.cuda")

_FORMS = 4
"""Sets of addresses that steps may have graphs for at once."""
_LOSSES = 16
"""Graphs that steps may lose to others, after which they are not worth capturing."""
_MOST = 128
"""Graphs of a device; the ones that ran longest ago go first."""
_HOST_COPIES = ("HtoD", "DtoH", "HostToDevice", "DeviceToHost")


class Kept:
    """Keeps a block that nothing else holds from the pool."""


class CaptureMemory:
    """Where memory comes from during a capture.

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
        """End of the capture: what holds the blocks from now on, beside arrays that outlive it."""
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
        """All that was allocated."""
        return list(self._blocks.values())


class Captured:
    """A graph, and the memory that it works in.

    Attributes:
        generator: the state of random numbers that it draws with, if any.
    """

    generator: Any = None

    def __init__(self, graph: Any, held: list[Any], blocks: list[Block]) -> None:
        self.graph = graph
        self._held = held
        self._blocks = blocks

    def launch(self, stream: CudaStream) -> None:
        """Launch it on a stream."""
        self.graph.launch(stream.raw)
        if here.launch is not None:
            here.launch.blocks += self._blocks


class Steps:
    """Steps that run again and again, with the graphs of the addresses that they have had.

    Args:
        graphs: those of their device.
        steps: the steps.
    """

    def __init__(self, graphs: Graphs, steps: Sequence[Any]) -> None:
        self._graphs = graphs
        self.steps = steps
        self._forms: OrderedDict[tuple[int, ...], Captured | None] = OrderedDict()
        self._losses = 0
        self.is_able = all(map(_is_able, steps))
        self._is_random = any(step[3].op is not None and step[3].op.uses_random for step in steps)

    def run(self, run: Any, stream: CudaStream) -> bool:
        """Run them as a graph; False where they have to run one by one."""
        if not self.is_able:
            return False
        key = tuple([array.data.ptr for step in self.steps for array in (*step[1], *step[2]) if array is not None])
        bits = run.device.generator.bits if self._is_random else None
        key += (id(bits),)  # a new seed has its state elsewhere
        if key not in self._forms:
            self._forms[key] = None
            self._forget_some()
            return False
        self._forms.move_to_end(key)
        captured = self._forms[key]
        if captured is None:
            captured = self._graphs.capture(run, self.steps, stream)
            if captured is None:
                self.is_able = False
                return False
            captured.generator = bits
            self._forms[key] = captured
            self._graphs.added(self, key)
        captured.launch(stream)
        return True

    def drop(self, key: tuple[int, ...]) -> None:
        """Let go of a graph."""
        self._forms.pop(key, None)

    def _forget_some(self) -> None:
        while len(self._forms) > _FORMS:
            self._forms.popitem(last=False)
            self._losses += 1
        if self._losses > _LOSSES:
            self.is_able = False
            self._forms.clear()


class Graphs:
    """The graphs of a device.

    Args:
        device: the GPU.

    Attributes:
        captures, replays, refused: how often steps were captured, launched as a graph, and found not capturable.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._all: deque[tuple[Steps, tuple[int, ...]]] = deque()
        self._lock = threading.Lock()
        self.captures = self.replays = self.refused = 0

    def run(self, run: Any, steps: Sequence[Any]) -> bool:
        """Run steps as a graph; False where they have to run one by one.

        Args:
            run: theirs, whose memo keeps the graphs as long as the bound graph lives.
            steps: of a forward, inputs, outputs and a node each; the same list each time.
        """
        stream = current_stream()
        if run.memo is None or not isinstance(stream, CudaStream) or capturing.memory is not None:
            return False
        known = run.memo.get(("cuda graphs", id(steps)))
        if known is None:
            known = run.memo["cuda graphs", id(steps)] = Steps(self, steps)
        done: bool = known.run(run, stream)
        self.replays += done
        return done

    def capture(self, run: Any, steps: Sequence[Any], stream: CudaStream) -> Captured | None:
        """Capture steps on a stream; None where that can not be done, with the stream as it was."""
        memory = capturing.memory = CaptureMemory(self._device)
        graph: Any = None
        why: Exception | str | None = None
        stream.raw.begin_capture()
        try:
            for step in steps:
                step[0](run, step[1], step[2])
        except Exception as error:
            why = error
        finally:
            capturing.memory = None
            try:
                graph = stream.raw.end_capture()  # also after an error: it is what ends the capture
            except Exception as error:
                why = why or error
        if graph is not None and why is None and _copies_host_memory(graph):
            why = "it copies memory of the host"
        held = memory.keep()
        if why is not None or graph is None:
            self.refused += 1
            _log.info("%s: a graph of %d steps is not captured: %s", self._device, len(steps), why)
            return None
        self.captures += 1
        return Captured(graph, held, memory.blocks)

    def added(self, steps: Steps, key: tuple[int, ...]) -> None:
        """Count a new graph in, and let go of the oldest where there are too many."""
        with self._lock:
            self._all.append((steps, key))
            oldest = self._all.popleft() if len(self._all) > _MOST else None
        if oldest is not None:
            oldest[0].drop(oldest[1])


def _is_able(step: Any) -> bool:
    """Whether a step does nothing but launch: no code of the user's, no loops of which values decide."""
    op = step[3].op
    return op is None or not (op.detached or op.subgraphs)


def _copies_host_memory(graph: Any) -> bool:
    """Whether a graph copies from or to the host, whose memory would be another's when it is launched again."""
    text = graph.debug_dot_str(1)
    return any(word in str(text) for word in _HOST_COPIES)
