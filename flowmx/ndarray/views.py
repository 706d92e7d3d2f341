"""Views of memory, and the tape's histories of memory with several handles.

A handle that shares its memory with no other knows by itself where its content came from (``_past``). Handles that
share memory have a :class:`History` in common there, which knows where the content of the whole memory came from. A
handle reads its part of that: a node of the tape, made when somebody asks. What is written through a handle while
recording is a node as well: it takes the old content and the part, and gives the new content, which all handles of the
history read from then on.

``detach()``, ``attach_grad()``, and views made outside of ``record()`` of an array that came from recorded operators
begin a history of their own on the same memory, in which nothing was recorded so far. Where recorded values come into
the memory by one history, those who read it by another would lose a gradient: they are refused.
"""

from __future__ import annotations

import math
import weakref
from functools import lru_cache
from typing import Any, cast

from flowmx.engine import Origin, describe
from flowmx.errors import AutogradError
from flowmx.ndarray.core import BaseArray, invoke
from flowmx.ndarray.recording import Leaf, TapeEntry, TapeNode, state
from flowmx.ops.registry.operators import Shape, lookup


def contiguous_strides(shape: Shape, itemsize: int) -> tuple[int, ...]:
    """The byte strides of a C-contiguous array."""
    strides, step = [], itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= max(1, length)
    return tuple(reversed(strides))


def make_view(array: BaseArray, offset: int, shape: Shape, strides: tuple[int, ...]) -> BaseArray:
    """Another handle on an array's memory, with its history."""
    made = placed(array, offset, shape, strides)
    history = _history_of_views(array)
    if history.entry is None or state.get().recording:
        made._past = history
    else:
        history.share_memory_of(array)
        made._past = History().share_memory_of(array)
    return made


def _history_of_views(array: BaseArray) -> History:
    past = array._past
    if isinstance(past, Leaf):
        # The variable keeps its own place on the tape; its views read from there.
        return History(_of_whole(array, past), of_variable=True)
    return share(array)


def variable_of(array: BaseArray) -> Leaf | None:
    """The variable of autograd that an array is, if it is one."""
    past = array._past
    return past if isinstance(past, Leaf) else None


def reshaped(array: BaseArray, shape: Shape) -> BaseArray:
    """The array with another shape of as many elements; shares memory where its layout allows."""
    if not is_contiguous(array):
        made: BaseArray = invoke(lookup("Reshape").create(shape=shape), [array], depth=4)
        return made
    offset = array._view[0] if array._view is not None else 0
    return make_view(array, offset, shape, contiguous_strides(shape, array._dtype.itemsize))


def placed(array: BaseArray, offset: int, shape: Shape, strides: tuple[int, ...]) -> BaseArray:
    """Another handle on an array's memory, which the tape knows nothing of."""
    made = array._plain()
    made._shape = shape
    storage = array._storage
    is_whole = offset == 0 and shape == storage.shape and strides == contiguous_strides(shape, storage.dtype.itemsize)
    made._view = None if is_whole else (offset, strides)
    return made


def is_contiguous(array: BaseArray) -> bool:
    """Tell whether the elements lie one after the other, in C order."""
    return array._view is None or lie_together(array._shape, array._view[1], array._dtype.itemsize)


def lie_together(shape: Shape, strides: Shape, itemsize: int) -> bool:
    """Tell whether elements with these strides (in bytes) lie one after the other, in C order."""
    step = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != step:
            return 0 in shape
        step *= length
    return True


def share(array: BaseArray) -> History:
    """The history of an array that is to share its memory with another handle."""
    past = array._past
    if not isinstance(past, History):
        array._past = past = History(None if past is None else _of_whole(array, past))
    return past


def detach(array: BaseArray) -> BaseArray:
    """Another handle on an array's memory, of which nothing is recorded so far."""
    made = array._plain()
    set_apart(made, array).is_detached = True
    return made


def set_apart(made: BaseArray, array: BaseArray) -> History:
    """Give a new handle on an array's memory a history of its own, with what is recorded of it already."""
    if variable_of(array) is None:
        share(array).share_memory_of(array)
    return share(made).share_memory_of(array)


def mark(array: BaseArray, leaf: Leaf | None) -> None:
    """Make an array a variable (None: one that nothing is recorded of), with a place of its own on the tape."""
    storage, before = array._storage, array._past
    if storage.variables is None:
        storage.variables = weakref.WeakSet()
    own = variable_of(array)
    if own is not None:
        storage.variables.discard(own)
    if leaf is not None:
        storage.variables.add(leaf)
    array._past = leaf
    if isinstance(before, History):
        before.share_memory_of(array)
        if leaf is None:
            array._past = History().share_memory_of(array)


def refuse_write(array: BaseArray, name: str, records: bool) -> None:
    """Refuse to write into the memory of a variable while recording.

    Args:
        array: the handle that is to be written through.
        name: what writes.
        records: whether what is written came from recorded operators.

    Raises:
        AutogradError: the array is a variable, or shares its memory with one.
    """
    past = array._past
    if past.of_variable if isinstance(past, History) else variable_of(array) is not None:
        raise AutogradError(
            f"{name}: a variable (made by attach_grad(), shape {array._shape}) can not be changed in place while "
            "recording; write to a new array, or change it outside autograd.record()"
        )
    if records and array._storage.variables:
        raise AutogradError(
            f"{name}: this array (shape {array._shape}) shares its memory with a variable (made by attach_grad()), "
            "which can not take recorded values; write into a copy: x.copy()"
        )


class History:
    """The origin of the content of memory that several handles see.

    Attributes:
        entry: where that of the whole storage came from, in the storage's shape; None where nothing of it was recorded.
        is_detached: whether the user cut it off by ``detach()``: what other handles write is of no concern to it.
        of_variable: whether it is of views of a variable.
        overwritten: where the memory was given recorded values, or lost them, by another history.
    """

    __slots__ = ("__weakref__", "_parts", "entry", "is_detached", "of_variable", "overwritten")

    def __init__(self, entry: TapeEntry | None = None, of_variable: bool = False) -> None:
        self.entry = entry
        self.is_detached = False
        self.of_variable = of_variable
        self.overwritten: Origin | None = None
        self._parts: dict[Any, TapeEntry] = {}
        """The parts of the entry that were read."""

    def share_memory_of(self, array: BaseArray) -> History:
        """Register as one of several histories on an array's memory; returns itself."""
        storage = array._storage
        if storage.histories is None:
            storage.histories = weakref.WeakSet()
        storage.histories.add(self)
        return self

    def read(self, array: BaseArray) -> TapeEntry | None:
        """Return where the content of a handle came from.

        Raises:
            AutogradError: it was overwritten by way of another history.
        """
        if self.overwritten is not None:
            raise AutogradError(
                f"the memory of this array (shape {array._shape}) was written at {describe(self.overwritten)} through "
                "another handle, made by detach() or outside autograd.record(), so its gradient would be wrong; write "
                "through the array itself, through a view of it made inside record(), or into a copy: x.copy()"
            )
        entry = self.entry
        if entry is None or array._view is None:
            return entry
        place = array._view, array._shape
        known = self._parts.get(place)
        if known is None or cast("TapeNode", known).kept is None:
            part = _part_of(array)
            node = TapeNode(
                "view", part.gradient_of_read, [entry], [_whole(array)], [array], 1, None, part.rules("read", array)
            )
            known = self._parts[place] = node
        return known

    def write(self, array: BaseArray, entry: TapeEntry | None, origin: Origin | None) -> None:
        """Set the origin of a handle's content (None: nothing recorded)."""
        if self.of_variable:
            return
        before = self.entry
        self._parts.clear()
        part = None if array._view is None else _part_of(array)
        if part is None or part.covers:
            self.entry, self.overwritten = None if entry is None else _of_whole(array, entry), None
        elif entry is not None or before is not None:
            whole = _whole(array)
            node = TapeNode(
                "write", part.gradient_of_write, [before, entry], [whole, array], [whole], 1, origin,
                part.rules("write", array),
            )  # fmt: skip
            self.entry = node
        if array._storage.histories is not None and not (self.is_detached and entry is None):
            for other in list(array._storage.histories):
                concerned = other.entry is not None or entry is not None
                if concerned and other is not self and not (other.is_detached or other.of_variable):
                    other.overwritten = origin or (None, 0, None)


def _whole(array: BaseArray) -> BaseArray:
    """A handle on the whole storage."""
    made = array._plain()
    made._shape, made._view = array._storage.shape, None
    return made


def _of_whole(array: BaseArray, entry: TapeEntry) -> TapeEntry:
    """Return where the content of a storage came from, if that of a handle came from an entry, and no more of it."""
    if array._view is None:
        return entry
    part = _part_of(array)
    return TapeNode(
        "view", part.gradient_of_embedding, [entry], [array], [_whole(array)], 1, None, part.rules("embedding", array)
    )


def _part_of(array: BaseArray) -> Part:
    assert array._view is not None
    size = array._dtype.itemsize
    offset, strides = array._view
    return _part(array._storage.shape, array._shape, offset // size, tuple([each // size for each in strides]))


class Part:
    """A part of a storage, with the gradients of what reads and writes it.

    Args:
        whole: the storage's shape.
        shape: the part's.
        offset: where it begins, in elements.
        strides: in elements.

    Attributes:
        covers: whether it is all of the storage.
    """

    def __init__(self, whole: Shape, shape: Shape, offset: int, strides: Shape) -> None:
        self._whole, self._shape = whole, shape
        self._place = {"whole": whole, "shape": shape, "offset": offset, "strides": strides}
        self.covers = math.prod(shape) == math.prod(whole)
        self._is_reshape = self.covers and offset == 0 and strides == contiguous_strides(shape, 1)
        self._rules: dict[Any, dict[Any, Any]] = {}

    def rules(self, use: str, array: BaseArray) -> dict[Any, Any]:
        """The gradients that were learned, for one use and dtype."""
        return self._rules.setdefault((use, array._dtype), {})

    def _take(self, F: Any, whole: Any) -> Any:
        return reshaped(whole, self._shape) if self._is_reshape else F.op("_part", whole, **self._place)

    def _put(self, F: Any, part: Any) -> Any:
        return reshaped(part, self._whole) if self._is_reshape else F.op("_embedded_part", part, **self._place)

    def gradient_of_read(self, F: Any, inputs: Any, outputs: Any, heads: Any) -> list[Any]:
        """As :meth:`flowmx.ops.registry.operators.Operator.gradient`, of (whole) -> part."""
        return [self._put(F, heads[0])]

    def gradient_of_embedding(self, F: Any, inputs: Any, outputs: Any, heads: Any) -> list[Any]:
        """As :meth:`flowmx.ops.registry.operators.Operator.gradient`, of (part) -> whole with zeros around it."""
        return [self._take(F, heads[0])]

    def gradient_of_write(self, F: Any, inputs: Any, outputs: Any, heads: Any) -> list[Any]:
        """As :meth:`flowmx.ops.registry.operators.Operator.gradient`, of (whole, part) -> whole."""
        of_whole = F.op("_without_part", heads[0], **self._place) if inputs.wanted(0) else None
        return [of_whole, self._take(F, heads[0]) if inputs.wanted(1) else None]


_part = lru_cache(4096)(Part)
