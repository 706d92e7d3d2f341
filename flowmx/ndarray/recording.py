"""The tape: the calls that autograd records.

The dispatcher asks :func:`state` at each call, and where it says so makes a :class:`TapeNode`. The walk
back over the tape is in ``flowmx/autograd.py``.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from flowmx.engine import Origin, Variable, describe
from flowmx.errors import AutogradError

if TYPE_CHECKING:
    from flowmx.ndarray.core import BaseArray, Storage
    from flowmx.ops.registry.operators import Operator, Spec


class State(NamedTuple):
    """Autograd's scopes of the current task."""

    recording: bool = False
    training: bool = False
    backward: bool = False
    """True where a backward pass computes gradients."""
    notes: Notes | None = None
    """Receiver of calls that are noted instead of run, while a gradient rule is learned."""
    outer: State | None = None
    """The state outside of the innermost scope."""


class Notes:
    """Receiver of calls on placeholder arrays; see ``rules.py``."""

    def note(self, op: Operator, inputs: Sequence[BaseArray], spec: Spec, device: Any, out: Any) -> list[BaseArray]:
        """Note the call of an operator; returns arrays that stand for its outputs."""
        raise NotImplementedError

    def refuse(self) -> None:
        """Report a call that can not be noted."""
        raise NotImplementedError


OFF = State()
state: ContextVar[State] = ContextVar("flowmx_autograd", default=OFF)


_MOST_PUT_OFF = 300
"""Collections of the middle generation for each full one while there is a tape: some two million objects."""
_threshold: tuple[int, int, int] | None = None
"""The collector's thresholds as they were before recording began."""


def _put_off_full_collections() -> None:
    """Let the garbage collector look at everything less often until a tape is freed: it is long, and has no cycles.

    By itself it looks whenever there is a quarter more than at the last time, five times for 100,000 operators, which
    takes as long as to record them.
    """
    global _threshold
    first, second, third = gc.get_threshold()
    if third < _MOST_PUT_OFF:
        _threshold = (first, second, third)
        gc.set_threshold(first, second, _MOST_PUT_OFF)


def _collect_as_before() -> None:
    """Undo that, unless somebody has set other thresholds meanwhile."""
    global _threshold
    before, _threshold = _threshold, None
    if before is not None and gc.get_threshold() == (*before[:2], _MOST_PUT_OFF):
        gc.set_threshold(*before)


class Scope:
    """A ``with`` block that changes the task's autograd state, and puts it back. Several tasks may be in one."""

    def __init__(self, recording_: bool | None, training: bool | None, backward: bool | None = None) -> None:
        self._change = (recording_, training, backward)

    def __enter__(self) -> None:
        now = state.get()
        recording_, training, backward = self._change
        if recording_ and not now.recording:
            _put_off_full_collections()
        state.set(
            State(
                now.recording if recording_ is None else recording_,
                now.training if training is None else training,
                now.backward if backward is None else backward,
                now.notes,
                now,
            )
        )

    def __exit__(self, *error: object) -> None:
        state.set(state.get().outer or OFF)


class Leaf:
    """A marked variable, with its gradient buffer; it is also its own :data:`TapeEntry`."""

    __slots__ = ("__weakref__", "grad", "request")
    index = 0

    def __init__(self, grad: BaseArray | None, request: str) -> None:
        self.grad = grad
        self.request = request

    @property
    def node(self) -> Leaf:
        """Itself."""
        return self


class Further(NamedTuple):
    """An output of a tape node other than the first, which the node itself stands for."""

    node: TapeNode
    index: int  # type: ignore[assignment]  # the field's usual name; nobody looks for tuple.index on it


_era = 0
"""The number of backward passes that have freed nodes."""


def free(nodes: Sequence[TapeNode]) -> None:
    """Forget what led to nodes that were released: what is recorded from now on can not go back through them."""
    global _era
    _era += 1
    if _threshold is not None:
        _collect_as_before()
    for node in nodes:
        node.entries = ()
        node.era = _era


class TapeNode:
    """One recorded operator call, and the :data:`TapeEntry` of its first output.

    A tape is long, and what the garbage collector tracks costs it a look now and then: a node is three such objects,
    and in no cycle.

    Attributes:
        gradient: called with (F, inputs, outputs, heads), as :meth:`~flowmx.ops.registry.operators.Operator.gradient`.
            None where no gradient flows: the node then only tells which variables the outputs came from.
        kept: the inputs, then the outputs, each as its storage, or as a handle where it is a view; then the versions
            that they were at. None once freed.
        entries: where each input came from.
        visible: how many outputs the user sees.
        origin: the user's line.
        rules: the gradient as it was learned, by what is wanted and given; None where it must be called.
        era: how many backward passes had freed nodes when it was made, or, once it is freed itself, when it was.
    """

    __slots__ = ("_arrays", "entries", "era", "gradient", "kept", "name", "origin", "rules", "visible")
    index = 0

    def __init__(
        self,
        name: str,
        gradient: Any,
        entries: Sequence[TapeEntry | None],
        inputs: Sequence[BaseArray],
        outputs: Sequence[BaseArray],
        visible: int,
        origin: Origin | None,
        rules: dict[Any, Any] | None = None,
    ) -> None:
        self.name = name
        self.gradient = gradient
        self.entries = entries
        self.visible = visible
        self.origin = origin
        self.rules = rules
        self.era = _era
        self._arrays: list[BaseArray] | None = None
        self.kept: tuple[Any, ...] | None = ()
        if gradient is None:
            return
        kept: list[Any] = []
        versions: list[Any] = []
        for array in (*inputs, *outputs):
            storage = array._storage
            storage.shared = True
            kept.append(storage if array._view is None else array._plain())
            versions.append(storage.version)
        self.kept = (*kept, *versions)

    @property
    def node(self) -> TapeNode:
        """Itself."""
        return self

    def output(self, index: int) -> TapeEntry:
        """The entry of an output."""
        return Further(self, index) if index else self

    @property
    def arrays(self) -> list[BaseArray] | None:
        """The inputs, then the outputs (without history); None once freed. They are the same objects each time."""
        if self.kept is None or self._arrays is not None:
            return self._arrays
        self._arrays = [_handle(each) for each in self.kept[: len(self.kept) // 2]]
        return self._arrays

    def version(self, position: int) -> int:
        """The version that an array was at."""
        assert self.kept is not None
        found: int = self.kept[len(self.kept) // 2 + position]
        return found

    def release(self) -> None:
        """Forget the arrays, in a backward pass that did not ask to retain them."""
        self.kept = self._arrays = None

    def saved(self, checked: Collection[int] | None) -> tuple[Saved, Saved]:
        """The inputs and the outputs, for a gradient to look at.

        Args:
            checked: which of both must not have been changed since; None: those that it asks for.

        Raises:
            AutogradError: one of them was changed.
        """
        arrays = self.arrays
        assert arrays is not None
        for position in checked or ():
            if arrays[position]._storage.version != self.version(position):
                self.refuse_changed(position)
        count, checks = len(self.entries), checked is None
        return Saved(self, 0, count, checks), Saved(self, count, len(arrays) - count, checks)

    def refuse_changed(self, position: int) -> None:
        """Raise AutogradError for an array that was changed since it was recorded."""
        arrays = self.arrays
        assert arrays is not None
        count = len(self.entries)
        kind = f"input {position}" if position < count else f"output {position - count}"
        place = f", called at {describe(self.origin)}" if self.origin is not None else ""
        raise AutogradError(
            f"backward: the {kind} of {self.name!r} (shape {arrays[position].shape}{place}) was changed in place "
            "after it was recorded, so the gradient would be wrong; change a copy (x.copy()), or call backward "
            "before the change"
        )


TapeEntry = TapeNode | Leaf | Further
"""One output of a tape node, or a variable."""
ENTRIES = frozenset({TapeNode, Leaf, Further})
"""The types of entries."""


def _handle(kept: Any) -> BaseArray:
    return cast("Storage", kept).whole() if isinstance(kept, Variable) else cast("BaseArray", kept)


class Saved(Sequence["BaseArray"]):
    """Arrays that a gradient may look at, refused when they were changed since they were recorded."""

    __slots__ = ("_arrays", "_checks", "_count", "_first", "_node")

    def __init__(self, node: TapeNode, first: int, count: int, checks: bool) -> None:
        arrays = node.arrays
        assert arrays is not None
        self._node, self._arrays = node, arrays
        self._first, self._count, self._checks = first, count, checks

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        position = self._first + range(self._count)[index]
        array = self._arrays[position]
        if self._checks and array._storage.version != self._node.version(position):
            self._node.refuse_changed(position)
        return array

    def unchecked(self, index: int) -> BaseArray:
        """An array of which only the shape and dtype will be looked at."""
        return self._arrays[self._first + index]

    def wanted(self, index: int) -> bool:
        """Tell whether the gradient of an input is needed; a gradient function may skip costly ones that are not."""
        return self._node.entries[index] is not None
