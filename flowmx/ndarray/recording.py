"""The tape: the calls that autograd records.

The dispatcher asks :func:`state` at each call, and where it says so makes a :class:`TapeNode`. The walk
back over the tape is in ``flowmx/autograd.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from flowmx.engine import Origin, describe
from flowmx.errors import AutogradError

if TYPE_CHECKING:
    from flowmx.ndarray.core import BaseArray
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


class Scope:
    """A ``with`` block that changes the task's autograd state, and puts it back. Several tasks may be in one."""

    def __init__(self, recording_: bool | None, training: bool | None, backward: bool | None = None) -> None:
        self._change = (recording_, training, backward)

    def __enter__(self) -> None:
        now = state.get()
        recording_, training, backward = self._change
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
    """A marked variable, with its gradient buffer."""

    __slots__ = ("__weakref__", "grad", "request")

    def __init__(self, grad: BaseArray | None, request: str) -> None:
        self.grad = grad
        self.request = request


class TapeEntry(NamedTuple):
    """One output of a tape node, or a leaf (index 0)."""

    node: TapeNode | Leaf
    index: int  # type: ignore[assignment]  # the field's usual name; nobody looks for tuple.index on it


_new_handle: Any = object.__new__
_era = 0
"""The number of backward passes that have freed nodes."""


def free(nodes: Sequence[TapeNode]) -> None:
    """Forget what led to nodes that were released: what is recorded from now on can not go back through them."""
    global _era
    _era += 1
    for node in nodes:
        node.entries = ()
        node.era = _era


class TapeNode:
    """One recorded operator call.

    Attributes:
        gradient: called with (F, inputs, outputs, heads), as :meth:`~flowmx.ops.registry.operators.Operator.gradient`.
            None where no gradient flows: the node then only tells which variables the outputs came from.
        arrays: the inputs, then the outputs (without history), and ``versions``, what they were at. None once freed.
        entries: where each input came from.
        visible: how many outputs the user sees.
        origin: the user's line.
        rules: the gradient as it was learned, by what is wanted and given; None where it must be called.
        era: how many backward passes had freed nodes when it was made, or, once it is freed itself, when it was.
    """

    __slots__ = ("arrays", "entries", "era", "gradient", "name", "origin", "rules", "versions", "visible")

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
        self.arrays: list[BaseArray] | None = []
        self.versions: list[int] = []
        if gradient is None:
            return
        keep, note = self.arrays.append, self.versions.append
        for array in (*inputs, *outputs):  # each as by _plain(), without the call
            plain = _new_handle(type(array))
            plain._storage = storage = array._storage
            plain._shape, plain._dtype = array._shape, array._dtype
            if array._view is not None:
                plain._view = array._view
            storage.shared = True
            keep(plain)
            note(storage.version)

    def release(self) -> None:
        """Forget the arrays, in a backward pass that did not ask to retain them."""
        self.arrays = None

    def saved(self, checked: Collection[int] | None) -> tuple[Saved, Saved]:
        """The inputs and the outputs, for a gradient to look at.

        Args:
            checked: which of both must not have been changed since; None: those that it asks for.

        Raises:
            AutogradError: one of them was changed.
        """
        assert self.arrays is not None
        for position in checked or ():
            if self.arrays[position]._storage.version != self.versions[position]:
                self.refuse_changed(position)
        count, checks = len(self.entries), checked is None
        return Saved(self, 0, count, checks), Saved(self, count, len(self.arrays) - count, checks)

    def refuse_changed(self, position: int) -> None:
        """Raise AutogradError for an array that was changed since it was recorded."""
        assert self.arrays is not None
        count = len(self.entries)
        kind = f"input {position}" if position < count else f"output {position - count}"
        place = f", called at {describe(self.origin)}" if self.origin is not None else ""
        raise AutogradError(
            f"backward: the {kind} of {self.name!r} (shape {self.arrays[position].shape}{place}) was changed in place "
            "after it was recorded, so the gradient would be wrong; change a copy (x.copy()), or call backward "
            "before the change"
        )


class Saved(Sequence["BaseArray"]):
    """Arrays that a gradient may look at, refused when they were changed since they were recorded."""

    __slots__ = ("_arrays", "_checks", "_count", "_first", "_node")

    def __init__(self, node: TapeNode, first: int, count: int, checks: bool) -> None:
        assert node.arrays is not None
        self._node, self._arrays = node, node.arrays
        self._first, self._count, self._checks = first, count, checks

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        position = self._first + range(self._count)[index]
        array = self._arrays[position]
        if self._checks and array._storage.version != self._node.versions[position]:
            self._node.refuse_changed(position)
        return array

    def unchecked(self, index: int) -> BaseArray:
        """An array of which only the shape and dtype will be looked at."""
        return self._arrays[self._first + index]

    def wanted(self, index: int) -> bool:
        """Tell whether the gradient of an input is needed; a gradient function may skip costly ones that are not."""
        return self._node.entries[index] is not None
