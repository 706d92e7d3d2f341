"""CUDA graphs: repeated steps of a bound graph on the same memory are launched as one.

The first run executes the steps one by one, so that kernels can create their plans. The next run with the same
addresses is captured on the stream: the launches are recorded as a graph, and not executed. Later runs launch this
graph. Different addresses need another capture; arrays whose addresses keep changing are copied (``moving.py``). A step
is always run separately if its capture fails, if it copies from host memory (whose content may change), or if it
replays a graph itself, slice by slice. The steps before and after it are captured without it.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flowmx.devices.cuda.capture import CapturedGraph, CaptureError, capture
from flowmx.devices.cuda.memory import capture_state
from flowmx.devices.cuda.moving import Copies, may_be_copied, slots_of
from flowmx.devices.cuda.stream import CudaStream
from flowmx.devices.streams import current_stream

if TYPE_CHECKING:
    from flowmx.devices.cuda.device import CudaDevice

_MAX_KEYS = 4
"""Maximum number of sets of addresses for which steps have graphs at one time."""
_MAX_MISSES = 32
"""Sets of addresses after which steps are no longer captured."""
_MAX_GRAPHS = 128
"""Maximum number of graphs of a device; the oldest are dropped first."""
GraphKey = tuple[int, ...]
"""Identifies a captured graph: see :meth:`Piece.key`."""


class Piece:
    """Consecutive steps that are captured together, with their graphs by addresses.

    Args:
        steps: the steps.

    Attributes:
        can_capture: whether they may be captured.
        slots: the positions of their arrays.
        moving: the indices of slots whose arrays have a different address at each run, so that the graph uses copies.
    """

    def __init__(self, steps: Sequence[Any]) -> None:
        self.steps = steps
        self.can_capture = all(map(_can_capture, steps))
        self.slots = slots_of(steps)
        self.moving: set[int] = set()
        self._is_random = any(step[3].op is not None and step[3].op.traits.uses_random for step in steps)
        self._graphs: OrderedDict[GraphKey, CapturedGraph | None] = OrderedDict()
        self._first: GraphKey = ()
        self._misses = 0

    def key(self, bits: object) -> GraphKey:
        """Return the key of a graph of the steps: all addresses, and the random generator (a new one for each seed).

        For moving arrays, only their identity with each other is part of the key.
        """
        parts = [id(bits) if self._is_random else 0, *[slot.array.data.ptr for slot in self.slots]]
        same: dict[int, int] = {}
        for number in self.moving:
            parts[number + 1] = -1 - same.setdefault(parts[number + 1], len(same))
        return tuple(parts)

    def look_up(self, key: GraphKey) -> tuple[bool, CapturedGraph | None]:
        """Look up and record a key; return whether it has occurred before, and its graph, if any."""
        if key in self._graphs:
            self._graphs.move_to_end(key)
            return True, self._graphs[key]
        self._misses += 1
        self._first = self._first or key
        self._graphs[key] = None
        if self._misses > _MAX_MISSES:
            self.can_capture = False
            self._graphs.clear()
        elif len(self._graphs) > _MAX_KEYS:
            self._copy_moving_arrays(key)
        return False, None

    def _copy_moving_arrays(self, key: GraphKey) -> None:
        """After too many different keys, copy the arrays whose addresses differ, if possible."""
        for other in (*self._graphs, key):
            self.moving |= {index - 1 for index in range(1, len(key)) if other[index] != self._first[index]}
        self._graphs.clear()
        self._first = ()
        self.can_capture = may_be_copied(self.slots, self.moving)

    def store(self, key: GraphKey, captured: CapturedGraph, bits: object) -> None:
        """Store the graph of a key."""
        captured.generator = bits if self._is_random else None
        self._graphs[key] = captured

    def drop(self, key: GraphKey) -> None:
        """Drop a graph."""
        self._graphs.pop(key, None)

    def split_at(self, failed_step: int | None) -> list[Piece]:
        """Return the pieces to try after a capture failed at a step; for an unknown step (None), the two halves."""
        count = len(self.steps)
        if failed_step is None and count > 1:
            return [Piece(self.steps[: count // 2]), Piece(self.steps[count // 2 :])]
        index = failed_step or 0
        single = Piece(self.steps[index : index + 1])
        single.can_capture = False
        return [*pieces_of(self.steps[:index]), single, *pieces_of(self.steps[index + 1 :])]


def pieces_of(steps: Sequence[object]) -> list[Piece]:
    """Group steps into as few pieces as possible: runs of steps that may be captured, and runs that may not."""
    return [Piece(list(row)) for _, row in itertools.groupby(steps, _can_capture)]


class Graphs:
    """The graphs of a device.

    Args:
        device: the GPU.

    Attributes:
        captures, replays, refused: the numbers of captures, graph launches, and failed captures.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._all: deque[tuple[Piece, GraphKey]] = deque()
        self._lock = threading.RLock()
        self.captures = self.replays = self.refused = 0

    def run(self, run: Any, steps: Sequence[Any]) -> Iterator[Any]:
        """Launch pieces as graphs if possible; yield the steps that must be run separately, in order.

        Args:
            run: the run of a bound graph. Its memo stores the captured graphs as long as the bound graph exists.
            steps: tuples of a forward function, inputs, outputs and a node; the same list at each call.
        """
        stream = current_stream()
        if run.memo is None or not isinstance(stream, CudaStream) or capture_state.memory is not None:
            yield from steps
            return
        key = "cuda graphs", id(steps)
        entry: tuple[Any, list[Piece]] | None = run.memo.get(key)
        if entry is None:
            entry = run.memo[key] = steps, pieces_of(steps)
        pieces = entry[1]
        for piece in pieces.copy():
            if not self._launch(run, piece, stream, pieces):
                yield from piece.steps

    def _launch(self, run: Any, piece: Piece, stream: CudaStream, pieces: list[Piece]) -> bool:
        """Launch a piece as a graph; return False if its steps must be run one by one."""
        if not piece.can_capture:
            return False
        bits = run.device.generator.bits
        key = piece.key(bits)
        is_known, captured = piece.look_up(key)
        if not is_known:
            return False
        if captured is None:
            copies = Copies(self._device, piece.slots, piece.moving) if piece.moving else None
            try:
                steps = piece.steps if copies is None else copies.steps(piece.steps)
                captured = capture(self._device, run, steps, stream)
            except CaptureError as error:
                self.refused += 1
                index = pieces.index(piece)
                pieces[index : index + 1] = piece.split_at(error.failed_step)
                return False
            self.captures += 1
            captured.copies = copies
            piece.store(key, captured, bits)
            self._add(piece, key)
        captured.launch(stream)
        self.replays += 1
        return True

    def _add(self, piece: Piece, key: GraphKey) -> None:
        """Add a new graph, and drop the oldest if there are too many."""
        with self._lock:
            self._all.append((piece, key))
            oldest = self._all.popleft() if len(self._all) > _MAX_GRAPHS else None
        if oldest is not None:
            oldest[0].drop(oldest[1])


def _can_capture(step: Any) -> bool:
    """Return whether a step can be captured: it has no user code, no data-dependent control flow and no subgraph."""
    op = step[3].op
    return op is None or not (op.traits.detached or op.traits.replays or op.subgraphs)
