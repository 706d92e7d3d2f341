"""Views of memory, and tape histories of memory with several handles.

A handle with unshared memory stores the tape entry of its content (``history``). Handles that share memory share a
:class:`History`, which stores the entry of the whole memory. A handle reads its part through a tape node, created on
demand. A write through a handle while recording is also a node: its inputs are the old content and the part, and its
output is the new content, which all handles of the history then read.

``detach()``, ``attach_grad()``, and views of recorded arrays created outside ``record()`` start a separate,
empty history on the same memory. If recorded values are written through one history, reading them through another would
lose a gradient, so such reads raise AutogradError.
"""

from __future__ import annotations

import math
import weakref
from functools import lru_cache
from typing import Any, cast

from flowmx.engine import Origin, describe
from flowmx.errors import AutogradError
from flowmx.ndarray.core import B, BaseArray, invoke
from flowmx.ndarray.recording import GradientRules, Leaf, TapeEntry, TapeNode, state
from flowmx.ops.registry.operators import Shape, lookup
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors


@lru_cache(4096)
def contiguous_strides(shape: Shape, itemsize: int) -> tuple[int, ...]:
    """Return the byte strides of a C-contiguous array."""
    strides, step = [], itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= max(1, length)
    return tuple(reversed(strides))


def make_view(array: B, offset: int, shape: Shape, strides: tuple[int, ...]) -> B:
    """Create another handle on an array's memory, with the array's history."""
    view = view_of(array, offset, shape, strides)
    history = _history_of_views(array)
    if history.entry is None or state.get().recording:
        view.history = history
    else:
        history.share_memory_of(array)
        view.history = History().share_memory_of(array)
    return view


def _history_of_views(array: BaseArray) -> History:
    history = array.history
    if isinstance(history, Leaf):
        # The variable remains a leaf of the tape; its views read from it.
        return History(_embedded_entry(array, history), of_variable=True)
    return share(array)


def variable_of(array: BaseArray) -> Leaf | None:
    """Return the leaf of an autograd variable; None for other arrays."""
    history = array.history
    return history if isinstance(history, Leaf) else None


def reshape_view(array: BaseArray, shape: Shape) -> BaseArray:
    """Reshape an array, sharing memory if the layout allows it."""
    if not is_contiguous(array):
        copy: BaseArray = invoke(lookup("Reshape").create(shape=shape), [array], depth=4)
        return copy
    offset = array.strided_view[0] if array.strided_view is not None else 0
    return make_view(array, offset, shape, contiguous_strides(shape, array.element_type.itemsize))


def view_of(array: B, offset: int, shape: Shape, strides: tuple[int, ...]) -> B:
    """Create another handle on an array's memory, without history."""
    handle = array.without_history()
    handle.dims = shape
    storage = array.storage
    is_whole = offset == 0 and shape == storage.shape and strides == contiguous_strides(shape, storage.dtype.itemsize)
    handle.strided_view = None if is_whole else (offset, strides)
    return handle


def is_contiguous(array: BaseArray) -> bool:
    """Return whether the array is C-contiguous."""
    return array.strided_view is None or are_contiguous(array.dims, array.strided_view[1], array.element_type.itemsize)


def are_contiguous(shape: Shape, strides: Shape, itemsize: int) -> bool:
    """Return whether strides (in bytes) are those of a C-contiguous array."""
    step = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != step:
            return 0 in shape
        step *= length
    return True


def share(array: BaseArray) -> History:
    """Return an array's history, creating it if the array does not share memory yet."""
    history = array.history
    if not isinstance(history, History):
        array.history = history = History(None if history is None else _embedded_entry(array, history))
    return history


def detach(array: B) -> B:
    """Create another handle on an array's memory, with an empty history."""
    handle = array.without_history()
    separate(handle, array).is_detached = True
    return handle


def separate(handle: BaseArray, array: BaseArray) -> History:
    """Create a separate history for a new handle on an array's memory, starting with the handle's tape entry."""
    if variable_of(array) is None:
        share(array).share_memory_of(array)
    return share(handle).share_memory_of(array)


def mark(array: BaseArray, leaf: Leaf | None) -> None:
    """Make an array a variable with this leaf (None: remove its history)."""
    storage, old_history = array.storage, array.history
    if storage.variables is None:
        storage.variables = weakref.WeakSet()
    previous = variable_of(array)
    if previous is not None:
        storage.variables.discard(previous)
    if leaf is not None:
        storage.variables.add(leaf)
    array.history = leaf
    if isinstance(old_history, History):
        old_history.share_memory_of(array)
        if leaf is None:
            array.history = History().share_memory_of(array)


def refuse_write(array: BaseArray, name: str, records: bool) -> None:
    """Raise AutogradError for a write into the memory of a variable while recording.

    Args:
        array: the handle to write through.
        name: the name of the operation, for the message.
        records: whether the written values come from recorded operators.

    Raises:
        AutogradError: the array is a variable, or shares its memory with one.
    """
    history = array.history
    if history.of_variable if isinstance(history, History) else variable_of(array) is not None:
        raise AutogradError(
            f"{name}: a variable (created by attach_grad(), shape {array.dims}) cannot be changed in place while "
            "recording; write to a new array, or change it outside autograd.record()"
        )
    if records and array.storage.variables:
        raise AutogradError(
            f"{name}: this array (shape {array.dims}) shares its memory with a variable (created by attach_grad()), "
            "which cannot take recorded values; write into a copy: x.copy()"
        )


class History:
    """The tape entries of memory that several handles share.

    Attributes:
        entry: the tape entry of the whole storage, in the storage's shape; None if nothing was recorded.
        is_detached: whether the user called ``detach()``, so that writes through other handles lose no gradient.
        of_variable: whether the handles are views of a variable.
        overwritten: the line where another history wrote recorded values, or overwrote them.
    """

    __slots__ = ("__weakref__", "_parts", "entry", "is_detached", "of_variable", "overwritten")

    def __init__(self, entry: TapeEntry | None = None, of_variable: bool = False) -> None:
        self.entry = entry
        self.is_detached = False
        self.of_variable = of_variable
        self.overwritten: Origin | None = None
        self._parts: dict[object, TapeEntry] = {}
        """The entries of parts that have been read."""

    def share_memory_of(self, array: BaseArray) -> History:
        """Register as one of several histories of an array's memory; return self."""
        storage = array.storage
        if storage.histories is None:
            storage.histories = weakref.WeakSet()
        storage.histories.add(self)
        return self

    def read(self, array: BaseArray) -> TapeEntry | None:
        """Return the tape entry of a handle's content.

        Raises:
            AutogradError: the content was overwritten through another history.
        """
        if self.overwritten is not None:
            raise AutogradError(
                f"the memory of this array (shape {array.dims}) was written at {describe(self.overwritten)} through "
                "another handle, created by detach() or outside autograd.record(), so its gradient would be wrong; "
                "write through the array itself, through a view of it created inside record(), or into a copy: "
                "x.copy()"
            )
        entry = self.entry
        if entry is None or array.strided_view is None:
            return entry
        place = array.strided_view, array.dims
        read_entry = self._parts.get(place)
        if read_entry is None or cast("TapeNode", read_entry).saved_state is None:
            part = _part_of(array)
            node = TapeNode(
                "view", part.gradient_of_read, [entry], [_whole(array)], [array], 1, None, part.rules("read", array)
            )
            read_entry = self._parts[place] = node
        return read_entry

    def write(self, array: BaseArray, entry: TapeEntry | None, origin: Origin | None) -> None:
        """Set the tape entry of a handle's content (None: not recorded)."""
        if self.of_variable:
            return
        old_entry = self.entry
        self._parts.clear()
        part = None if array.strided_view is None else _part_of(array)
        if part is None or part.covers:
            self.entry, self.overwritten = None if entry is None else _embedded_entry(array, entry), None
        elif entry is not None or old_entry is not None:
            whole = _whole(array)
            node = TapeNode(
                "write", part.gradient_of_write, [old_entry, entry], [whole, array], [whole], 1, origin,
                part.rules("write", array),
            )  # fmt: skip
            self.entry = node
        if array.storage.histories is not None and not (self.is_detached and entry is None):
            for other in list(array.storage.histories):
                is_affected = other.entry is not None or entry is not None
                if is_affected and other is not self and not (other.is_detached or other.of_variable):
                    other.overwritten = origin or (None, 0, None)


def _whole(array: BaseArray) -> BaseArray:
    """Create a handle on the whole storage."""
    handle = array.without_history()
    handle.dims, handle.strided_view = array.storage.shape, None
    return handle


def _embedded_entry(array: BaseArray, entry: TapeEntry) -> TapeEntry:
    """Return the tape entry of a storage in which only a handle's part comes from an entry."""
    if array.strided_view is None:
        return entry
    part = _part_of(array)
    return TapeNode(
        "view", part.gradient_of_embedding, [entry], [array], [_whole(array)], 1, None, part.rules("embedding", array)
    )


def _part_of(array: BaseArray) -> Part:
    assert array.strided_view is not None
    size = array.element_type.itemsize
    offset, strides = array.strided_view
    return _part(array.storage.shape, array.dims, offset // size, tuple([stride // size for stride in strides]))


class Part:
    """A part of a storage, with the gradients of reading and writing it.

    Args:
        whole: the storage's shape.
        shape: the part's shape.
        offset: the part's start, in elements.
        strides: the part's strides, in elements.

    Attributes:
        covers: whether the part is the whole storage.
    """

    def __init__(self, whole: Shape, shape: Shape, offset: int, strides: Shape) -> None:
        self._whole, self.dims = whole, shape
        self._place = {"whole": whole, "shape": shape, "offset": offset, "strides": strides}
        self.covers = math.prod(shape) == math.prod(whole)
        self._is_reshape = self.covers and offset == 0 and strides == contiguous_strides(shape, 1)
        self._rules: dict[object, GradientRules] = {}

    def rules(self, use: str, array: BaseArray) -> GradientRules:
        """Return the cache of gradient rules for a use and dtype."""
        return self._rules.setdefault((use, array.element_type), {})

    def _read_part(self, F: Functions, whole: Any) -> Any:
        return reshape_view(whole, self.dims) if self._is_reshape else F.op("_part", whole, **self._place)

    def _embed_part(self, F: Functions, part: Any) -> Any:
        return reshape_view(part, self._whole) if self._is_reshape else F.op("_embedded_part", part, **self._place)

    def gradient_of_read(self, F: Functions, inputs: object, outputs: object, heads: Tensors) -> Gradients:
        """Compute the gradient of (whole) -> part; see :meth:`flowmx.ops.registry.operators.Operator.gradient`."""
        return [self._embed_part(F, heads[0])]

    def gradient_of_embedding(self, F: Functions, inputs: object, outputs: object, heads: Tensors) -> Gradients:
        """Compute the gradient of (part) -> whole, padded with zeros."""
        return [self._read_part(F, heads[0])]

    def gradient_of_write(self, F: Functions, inputs: Any, outputs: object, heads: Tensors) -> Gradients:
        """Compute the gradient of (whole, part) -> whole."""
        of_whole = F.op("_without_part", heads[0], **self._place) if inputs.needs_gradient(0) else None
        return [of_whole, self._read_part(F, heads[0]) if inputs.needs_gradient(1) else None]


_part = lru_cache(4096)(Part)
