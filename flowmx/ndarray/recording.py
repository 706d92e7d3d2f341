"""The tape: what autograd remembers of the operators that ran while recording.

The dispatcher asks :func:`state` at each call, and where it says so makes a :class:`TapeNode`. The walk
back over the tape is in ``flowmx/autograd.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from flowmx.engine import Origin
from flowmx.errors import AutogradError

if TYPE_CHECKING:
    from flowmx.ndarray.core import BaseArray


class State(NamedTuple):
    """What the current task's autograd scopes say."""

    recording: bool = False
    training: bool = False
    backward: bool = False
    """True where a backward pass computes gradients."""


OFF = State()
state: ContextVar[State] = ContextVar("flowmx_autograd", default=OFF)


class Leaf:
    """A marked variable: where gradients end up."""

    __slots__ = ("grad", "request")

    def __init__(self, grad: BaseArray | None, request: str) -> None:
        self.grad = grad
        self.request = request


class Entry(NamedTuple):
    """One output of a tape node, or a leaf (index 0)."""

    node: TapeNode | Leaf
    index: int  # type: ignore[assignment]  # the field's usual name; nobody looks for tuple.index on it


class TapeNode:
    """One recorded operator call.

    Attributes:
        gradient: called with (F, inputs, outputs, heads), as :meth:`flowmx.ops.registry.Operator.gradient`.
        inputs: the input arrays (without history) and ``entries``, where each came from.
        outputs: the output arrays (without history).
        origin: the user's line.
    """

    __slots__ = ("entries", "gradient", "inputs", "name", "origin", "outputs", "versions", "visible")

    def __init__(
        self,
        name: str,
        gradient: Any,
        inputs: Sequence[BaseArray],
        outputs: Sequence[BaseArray],
        visible: int,
        origin: Origin | None,
    ) -> None:
        self.name = name
        self.gradient = gradient
        self.entries = [array._entry for array in inputs]
        self.inputs: Saved | None = Saved(self, "input", [array._plain() for array in inputs])
        self.outputs: Saved | None = Saved(self, "output", [array._plain() for array in outputs])
        self.visible = visible
        self.origin = origin

    def release(self) -> None:
        """Forget the arrays, after a backward pass that did not ask to retain them."""
        self.inputs = self.outputs = None


class Saved(Sequence["BaseArray"]):
    """Arrays that a gradient may look at, refused when they were changed since they were recorded."""

    __slots__ = ("_arrays", "_entries", "_kind", "_node", "_versions")

    def __init__(self, node: TapeNode, kind: str, arrays: list[BaseArray]) -> None:
        self._node = (node.name, getattr(node, "origin", None))
        self._entries = node.entries
        self._kind = kind
        self._arrays = arrays
        self._versions = [array._storage.version for array in arrays]

    def __len__(self) -> int:
        return len(self._arrays)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        array = self._arrays[index]
        if array._storage.version != self._versions[index]:
            raise AutogradError(
                f"backward: the {self._kind} {index} of {self._node[0]!r} (shape {array.shape}) was changed in place "
                "after it was recorded, so the gradient would be wrong; change a copy (x.copy()), or call backward "
                "before the change"
            )
        return array

    def unchecked(self, index: int) -> BaseArray:
        """An array of which only the shape and dtype will be looked at."""
        return self._arrays[index]

    def wanted(self, index: int) -> bool:
        """Whether an input's gradient leads anywhere (a gradient may leave out what is costly)."""
        return self._entries[index] is not None
