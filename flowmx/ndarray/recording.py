"""The tape: the calls that autograd records.

The dispatcher (``core.py``) reads :data:`state` at each call, and creates a :class:`TapeNode` if it is recording. The
backward pass is in ``backward.py``.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from flowmx import process_hooks
from flowmx.engine import Origin, Variable, describe
from flowmx.errors import AutogradError
from flowmx.scopes import Entries, Frame

if TYPE_CHECKING:
    from flowmx.devices import Device
    from flowmx.ndarray.core import BaseArray, Storage
    from flowmx.ndarray.gradient_rules import Rule
    from flowmx.ops.registry.operators import Operator
    from flowmx.ops.registry.spec import Spec


class State(Frame):
    """Autograd's modes in the current task.

    Attributes:
        recording: whether operators are recorded.
        training: whether training mode is on.
        backward: whether a backward pass is computing gradients.
        notes: while a gradient rule is recorded, receives the calls instead of running them.
    """

    fields = ("recording", "training", "backward", "notes")

    def __init__(
        self, recording: bool = False, training: bool = False, backward: bool = False, notes: Notes | None = None
    ) -> None:
        self.recording, self.training, self.backward, self.notes = recording, training, backward, notes


differentiated: ContextVar[TapeNode | None] = ContextVar("flowmx_differentiated", default=None)
"""The node whose gradient a backward pass is computing; set only if operations are watched."""


Gradient: TypeAlias = Callable[..., Any]
"""A gradient function, called as :meth:`flowmx.ops.registry.operators.Operator.gradient`."""
GradientRules: TypeAlias = "dict[object, Rule | None]"
"""A cache of gradient rules, by device, needed gradients and present head gradients; None: the gradient has no rule."""


class Notes:
    """Receiver of calls on placeholder arrays; see ``gradient_rules.py``."""

    def note(
        self, op: Operator, inputs: Sequence[BaseArray], spec: Spec, device: Device | None, out: object
    ) -> list[BaseArray]:
        """Record the call of an operator; return placeholders for its outputs."""
        raise NotImplementedError

    def refuse(self) -> None:
        """Reject a call that cannot be recorded."""
        raise NotImplementedError


OFF = State()
state: ContextVar[State] = ContextVar("flowmx_autograd", default=OFF)


_DEFERRED_THRESHOLD = 300
"""Middle-generation collections per full collection while a tape exists: about two million objects."""
_threshold: tuple[int, int, int] | None = None
"""The collector's thresholds before recording began."""


def defer_full_collections() -> None:
    """Make full garbage collections rarer while a tape exists, since tapes are long and have no cycles.

    By default a full collection runs each time the number of objects has grown by a quarter: five times for 100,000
    operators, which takes as long as recording them.
    """
    global _threshold
    first, second, third = gc.get_threshold()
    if third < _DEFERRED_THRESHOLD:
        _threshold = (first, second, third)
        gc.set_threshold(first, second, _DEFERRED_THRESHOLD)


def restore_collections() -> None:
    """Restore the collector's thresholds, unless the program has changed them."""
    global _threshold
    previous, _threshold = _threshold, None
    if previous is not None and gc.get_threshold() == (*previous[:2], _DEFERRED_THRESHOLD):
        gc.set_threshold(*previous)


def _is_collection_due() -> bool:
    """Return whether a full collection was deferred, as long tapes cause."""
    return _threshold is not None and gc.get_count()[2] > _threshold[2]


process_hooks.at_fork(after_in_child=lambda: None if state.get().recording else restore_collections())


class Scope(Entries[State]):
    """A ``with`` block that changes the task's autograd state. Several tasks may enter the same scope."""

    def __init__(self, recording_: bool | None, training: bool | None, backward: bool | None = None) -> None:
        self._variable, self._frames = state, []
        self._change = (recording_, training, backward)

    def __enter__(self) -> None:
        current = state.get()
        recording_, training, backward = self._change
        if recording_ and not current.recording:
            defer_full_collections()
        self.enter(
            State(
                current.recording if recording_ is None else recording_,
                current.training if training is None else training,
                current.backward if backward is None else backward,
                current.notes,
            )
        )

    def __exit__(self, *error: object) -> None:
        self.leave()
        if self._change[0] and not state.get().recording and not _is_collection_due():
            restore_collections()


class FastScope:
    """A faster :class:`Scope` for ``with`` blocks without ``yield`` or ``await``."""

    __slots__ = ("_state", "_token")

    def __init__(self, recording_: bool, training: bool, backward: bool = False) -> None:
        current = state.get()
        self._state = State(recording_, training, backward or current.backward, current.notes)

    def __enter__(self) -> None:
        self._token = state.set(self._state)

    def __exit__(self, *error: object) -> None:
        state.reset(self._token)


class Leaf:
    """A variable with its gradient buffer; it is also a :data:`TapeEntry`."""

    __slots__ = ("__weakref__", "grad", "request")
    index = 0

    def __init__(self, grad: BaseArray | None, request: str) -> None:
        self.grad = grad
        self.request = request

    @property
    def node(self) -> Leaf:
        """This leaf: the attribute that all tape entries have."""
        return self


class LaterOutput(NamedTuple):
    """An output of a tape node, except the first, which the node itself represents."""

    node: TapeNode
    index: int  # type: ignore[assignment]  # the usual name; tuple.index is not needed


_era = 0
"""The number of backward passes that have freed nodes."""


def free(nodes: Sequence[TapeNode]) -> None:
    """Cut the inputs of released nodes, so that later backward passes stop there."""
    global _era
    _era += 1
    if _threshold is not None:
        restore_collections()
    for node in nodes:
        node.entries = ()
        node.era = _era


_new: Any = object.__new__


class TapeNode:
    """One recorded operator call, and the :data:`TapeEntry` of its first output.

    Tapes are long, and every object that the garbage collector tracks costs time. So a node consists of only three such
    objects, without a cycle.

    Attributes:
        gradient: called with (F, inputs, outputs, heads), like
            :meth:`~flowmx.ops.registry.operators.Operator.gradient`. None: no gradient flows, and the node only
            connects the outputs to the variables that they depend on.
        saved_state: the inputs, then the outputs, as storages, or as handles for views; then their versions. None once
            freed.
        entries: the tape entry of each input.
        visible: the number of outputs that the user sees.
        origin: the user's line.
        rules: the cache of gradient rules, by the needed gradients and the gradients of the outputs; None: call
            ``gradient``.
        era: the number of backward passes that had freed nodes when the node was created or, later, freed.
    """

    __slots__ = ("_arrays", "entries", "era", "gradient", "name", "origin", "rules", "saved_state", "visible")
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
        rules: GradientRules | None = None,
    ) -> None:
        self.name = name
        self.gradient = gradient
        self.entries = entries
        self.visible = visible
        self.origin = origin
        self.rules = rules
        self.era = _era
        self._arrays: list[BaseArray] | None = None
        self.saved_state: tuple[Any, ...] | None = ()
        if gradient is None:
            return
        saved: list[Any] = []
        versions: list[Any] = []
        for array in (*inputs, *outputs):
            storage = array.storage
            storage.shared = True
            saved.append(storage if array.strided_view is None else array.without_history())
            versions.append(storage.version)
        self.saved_state = (*saved, *versions)

    @classmethod
    def of_result(
        cls, name: str, gradient: Any, entries: tuple[TapeEntry | None, ...], saved_state: tuple[Any, ...],
        origin: Origin | None, rules: GradientRules,
    ) -> TapeNode:  # fmt: skip
        """Return the node of a call with one output, faster than the constructor; for the arguments see the class."""
        node: TapeNode = _new(cls)
        node.name = name
        node.gradient = gradient
        node.entries = entries
        node.saved_state = saved_state
        node.visible = 1
        node.origin = origin
        node.rules = rules
        node.era = _era
        node._arrays = None
        return node

    @property
    def node(self) -> TapeNode:
        """This node: the attribute that all tape entries have."""
        return self

    def output(self, index: int) -> TapeEntry:
        """Return the entry of an output."""
        return LaterOutput(self, index) if index else self

    @property
    def arrays(self) -> list[BaseArray] | None:
        """The inputs, then the outputs, without history; the same list at each call. None once freed."""
        if self.saved_state is None or self._arrays is not None:
            return self._arrays
        self._arrays = [_handle(array) for array in self.saved_state[: len(self.saved_state) // 2]]
        return self._arrays

    def version(self, position: int) -> int:
        """Return the version that an array had when it was recorded."""
        assert self.saved_state is not None
        version: int = self.saved_state[len(self.saved_state) // 2 + position]
        return version

    def release(self) -> None:
        """Release the arrays, in a backward pass that does not retain the graph."""
        self.saved_state = self._arrays = None

    def saved(self, checked: Collection[int] | None) -> tuple[Saved, Saved]:
        """Return the inputs and the outputs, for a gradient function.

        Args:
            checked: positions of arrays that must be unchanged; None: check each array when the function reads it.

        Raises:
            AutogradError: an array was changed.
        """
        arrays = self.arrays
        assert arrays is not None
        for position in checked or ():
            if arrays[position].storage.version != self.version(position):
                self.refuse_changed(position)
        count, checks = len(self.entries), checked is None
        return Saved(self, 0, count, checks), Saved(self, count, len(arrays) - count, checks)

    def refuse_changed(self, position: int) -> None:
        """Raise AutogradError: an array was changed after it was recorded.

        An array that ``fixing.py`` set to 1 is accepted, as in MXNet, since the user did not change it.
        """
        arrays = self.arrays
        assert arrays is not None
        storage = arrays[position].storage
        if storage.ones_at == storage.version and storage.ones_from == self.version(position):
            return
        count = len(self.entries)
        kind = f"input {position}" if position < count else f"output {position - count}"
        place = f", called at {describe(self.origin)}" if self.origin is not None else ""
        raise AutogradError(
            f"backward: the {kind} of {self.name!r} (shape {arrays[position].shape}{place}) was changed in place "
            "after it was recorded, so the gradient would be wrong; change a copy (x.copy()), or call backward "
            "before the change"
        )


TapeEntry = TapeNode | Leaf | LaterOutput
"""One output of a tape node, or a variable."""
ENTRIES = frozenset({TapeNode, Leaf, LaterOutput})
"""The types of a :data:`TapeEntry`."""


def _handle(saved: object) -> BaseArray:
    return cast("Storage", saved).whole() if isinstance(saved, Variable) else cast("BaseArray", saved)


class Saved(Sequence["BaseArray"]):
    """Arrays for a gradient function; reading an array that was changed after it was recorded raises AutogradError."""

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
        if self._checks and array.storage.version != self._node.version(position):
            self._node.refuse_changed(position)
        return array

    def unchecked(self, index: int) -> BaseArray:
        """Return an array without a check, for reading its shape and dtype."""
        return self._arrays[self._first + index]

    def needs_gradient(self, index: int) -> bool:
        """Return whether the gradient of an input is needed; a gradient function may skip other gradients."""
        return self._node.entries[index] is not None
