"""CUDA graphs: steps of a bound graph that run again on the same memory are launched as one.

The first run goes step by step, which lets kernels make their plans. The next on the same addresses is captured on the
stream: nothing runs, and what would have been launched becomes a graph. Later runs launch that. Where any address
differs, there is another capture; where they keep differing, arrays that move are copied (moving.py). A step at which a
capture fails, or that copies from the host (whose memory will hold something else by then), runs by itself for good,
and those before and after it are captured without it. So does a step that replays a graph of its own, slice by slice.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flowmx.devices.cuda.capture import Captured, NotCaptured, capture
from flowmx.devices.cuda.memory import capturing
from flowmx.devices.cuda.moving import Copies, may_be_copied, slots_of
from flowmx.devices.cuda.stream import CudaStream
from flowmx.devices.streams import current_stream

if TYPE_CHECKING:
    from flowmx.devices.cuda.device import CudaDevice

_FORMS = 4
"""Sets of addresses that steps may have graphs for at once."""
_LOSSES = 32
"""Sets of addresses after which steps are not worth capturing."""
_MOST = 128
"""Graphs of a device; the ones that ran longest ago go first."""
Form = tuple[int, ...]
"""The key of a captured graph: see :meth:`Piece.form`."""


class Piece:
    """Steps in a row that are captured together, with the graphs of the addresses that they have had.

    Args:
        steps: the steps.

    Attributes:
        is_able: whether they may be captured.
        slots: where their arrays stand.
        moving: the slots whose arrays lie elsewhere at each run, which are copied.
    """

    def __init__(self, steps: Sequence[Any]) -> None:
        self.steps = steps
        self.is_able = all(map(_is_able, steps))
        self.slots = slots_of(steps)
        self.moving: set[int] = set()
        self._is_random = any(step[3].op is not None and step[3].op.traits.uses_random for step in steps)
        self._forms: OrderedDict[Form, Captured | None] = OrderedDict()
        self._first: Form = ()
        self._new = 0

    def form(self, bits: Any) -> Form:
        """The key under which a graph of theirs is valid: all addresses, and the random generator (one each seed).

        Of arrays that move, what counts is which of them are the same.
        """
        found = [id(bits) if self._is_random else 0, *[slot.array.data.ptr for slot in self.slots]]
        same: dict[int, int] = {}
        for number in self.moving:
            found[number + 1] = -1 - same.setdefault(found[number + 1], len(same))
        return tuple(found)

    def seen(self, form: Form) -> tuple[bool, Captured | None]:
        """Look a form up, and note it: (True where it has occurred before, its graph if there is one)."""
        if form in self._forms:
            self._forms.move_to_end(form)
            return True, self._forms[form]
        self._new += 1
        self._first = self._first or form
        self._forms[form] = None
        if self._new > _LOSSES:
            self.is_able = False
            self._forms.clear()
        elif len(self._forms) > _FORMS:
            self._expect_moves(form)
        return False, None

    def _expect_moves(self, form: Form) -> None:
        """After too many forms, copy the arrays that differ between them, if they can be copied."""
        for known in (*self._forms, form):
            self.moving |= {at - 1 for at in range(1, len(form)) if known[at] != self._first[at]}
        self._forms.clear()
        self._first = ()
        self.is_able = may_be_copied(self.slots, self.moving)

    def keep(self, form: Form, captured: Captured, bits: Any) -> None:
        """Launch a graph for a form from now on."""
        captured.generator = bits if self._is_random else None
        self._forms[form] = captured

    def drop(self, form: Form) -> None:
        """Let go of a graph."""
        self._forms.pop(form, None)

    def without(self, culprit: int | None) -> list[Piece]:
        """The pieces to try after a capture that failed at a step; None: at some, which halves may tell."""
        count = len(self.steps)
        if culprit is None and count > 1:
            return [Piece(self.steps[: count // 2]), Piece(self.steps[count // 2 :])]
        at = culprit or 0
        alone = Piece(self.steps[at : at + 1])
        alone.is_able = False
        return [*pieces_of(self.steps[:at]), alone, *pieces_of(self.steps[at + 1 :])]


def pieces_of(steps: Sequence[Any]) -> list[Piece]:
    """Group steps into as few pieces as possible: runs that may be captured, and those that may not."""
    return [Piece(list(row)) for _, row in itertools.groupby(steps, _is_able)]


class Graphs:
    """The graphs of a device.

    Args:
        device: the GPU.

    Attributes:
        captures, replays, refused: how often steps were captured, launched as a graph, and found not capturable.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._all: deque[tuple[Piece, Form]] = deque()
        self._lock = threading.RLock()
        self.captures = self.replays = self.refused = 0

    def run(self, run: Any, steps: Sequence[Any]) -> Iterator[Any]:
        """Launch pieces as graphs where possible; yield, in its turn, each step that is to be run by itself.

        Args:
            run: theirs, whose memo keeps the graphs as long as the bound graph lives.
            steps: of a forward, inputs, outputs and a node each; the same list each time.
        """
        stream = current_stream()
        if run.memo is None or not isinstance(stream, CudaStream) or capturing.memory is not None:
            yield from steps
            return
        key = "cuda graphs", id(steps)
        known: tuple[Any, list[Piece]] | None = run.memo.get(key)
        if known is None:
            known = run.memo[key] = steps, pieces_of(steps)
        pieces = known[1]
        for piece in pieces.copy():
            if not self._launch(run, piece, stream, pieces):
                yield from piece.steps

    def _launch(self, run: Any, piece: Piece, stream: CudaStream, pieces: list[Piece]) -> bool:
        """Launch a piece as a graph; False where its steps are to be run one by one."""
        if not piece.is_able:
            return False
        bits = run.device.generator.bits
        form = piece.form(bits)
        is_known, captured = piece.seen(form)
        if not is_known:
            return False
        if captured is None:
            copies = Copies(self._device, piece.slots, piece.moving) if piece.moving else None
            try:
                steps = piece.steps if copies is None else copies.steps(piece.steps)
                captured = capture(self._device, run, steps, stream)
            except NotCaptured as error:
                self.refused += 1
                at = pieces.index(piece)
                pieces[at : at + 1] = piece.without(error.culprit)
                return False
            self.captures += 1
            captured.copies = copies
            piece.keep(form, captured, bits)
            self._added(piece, form)
        captured.launch(stream)
        self.replays += 1
        return True

    def _added(self, piece: Piece, form: Form) -> None:
        """Add a new graph, and drop the oldest where there are too many."""
        with self._lock:
            self._all.append((piece, form))
            oldest = self._all.popleft() if len(self._all) > _MOST else None
        if oldest is not None:
            oldest[0].drop(oldest[1])


def _is_able(step: Any) -> bool:
    """Tell whether a step can be captured: no user code, no loop or branch that depends on values, no graphs in it."""
    op = step[3].op
    return op is None or not (op.traits.detached or op.traits.replays or op.subgraphs)
