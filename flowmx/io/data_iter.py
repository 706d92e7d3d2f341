"""Batches and descriptions of data, and the base class of iterators."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.data.pending_batches import ThreadedIterator
from flowmx.io.async_prefetch import get_async_prefetch
from flowmx.keywords import ChecksKeywords
from flowmx.ndarray import NDArray
from flowmx.ops.registry.operators import Shape


class _NameShape(NamedTuple):
    name: str
    shape: Shape


class DataDesc(_NameShape):
    """The name, shape, dtype and layout of an input; as a tuple, its name and shape.

    Args:
        name: the name.
        shape: the shape of a batch.
        dtype: the element type.
        layout: a letter for each axis; N is the batch axis.
    """

    dtype: Any
    layout: str | None

    def __new__(cls, name: str, shape: Shape, dtype: Any = np.float32, layout: str | None = "NCHW") -> DataDesc:
        desc = super().__new__(cls, name, tuple(shape))
        desc.dtype = dtype
        desc.layout = layout
        return desc

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.name, self.shape, self.dtype, self.layout)

    def __repr__(self) -> str:
        return f"DataDesc[{self.name},{self.shape},{self.dtype},{self.layout}]"

    @staticmethod
    def get_batch_axis(layout: str | None) -> int:
        """Return the batch axis: the position of N in the layout; 0 without a layout, -1 without an N."""
        return 0 if layout is None else layout.find("N")

    @staticmethod
    def get_list(shapes: Iterable[tuple[str, Shape]], types: Iterable[tuple[str, Any]] | None) -> list[DataDesc]:
        """Make descriptions from pairs of name and shape, and pairs of name and dtype."""
        if types is None:
            return [DataDesc(name, shape) for name, shape in shapes]
        dtypes = dict(types)
        return [DataDesc(name, shape, dtypes[name]) for name, shape in shapes]


class DataBatch:
    """A batch.

    Args:
        data: the inputs, a list of arrays.
        label: the labels, a list of arrays.
        pad: the number of samples at the end that are padding; predictions omit them.
        index: the indices of the samples.
        bucket_key: the key of the batch's bucket, for modules with several buckets.
        provide_data: describes ``data``.
        provide_label: describes ``label``.

    Raises:
        TypeError: ``data`` or ``label`` is not a list.
    """

    def __init__(
        self,
        data: Sequence[NDArray] | None,
        label: Sequence[NDArray] | None = None,
        pad: int | None = None,
        index: Any = None,
        bucket_key: Any = None,
        provide_data: list[DataDesc] | None = None,
        provide_label: list[DataDesc] | None = None,
    ) -> None:
        for name, arrays in (("data", data), ("label", label)):
            if arrays is not None and not isinstance(arrays, (list, tuple)):
                raise TypeError(f"DataBatch: {name} is {type(arrays).__name__}, expected a list of arrays")
        self.data = data
        self.label = label
        self.pad = pad
        self.index = index
        self.bucket_key = bucket_key
        self.provide_data = provide_data
        self.provide_label = provide_label

    def __str__(self) -> str:
        data, label = ([array.shape for array in part] if part else None for part in (self.data, self.label))
        return f"{type(self).__name__}: data shapes: {data} label shapes: {label}"


class DataIter(ChecksKeywords):
    """Base class of iterators.

    A subclass implements :meth:`iter_next` and the methods named ``get...``, or only :meth:`next` or ``__iter__``, and
    the properties ``provide_data`` and ``provide_label``.

    ``async for`` runs :meth:`next` in another thread, because it may read files or compute. A subclass whose
    ``next`` only enqueues work sets ``is_instant = True`` to avoid the thread. If a wait for a batch is cancelled,
    the next caller gets the batch; tasks that share an iterator get each batch once.

    Args:
        batch_size: the number of samples in a batch.
    """

    is_instant = False
    provide_data: Any
    provide_label: Any

    def __init__(self, batch_size: int = 0) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> DataIter:
        return self

    def __next__(self) -> DataBatch:
        return self.next()

    def __aiter__(self) -> AsyncIterator[DataBatch]:
        if type(self).__iter__ is not DataIter.__iter__:  # a subclass replaces the iteration
            return ThreadedIterator(iter(self))
        return self

    async def __anext__(self) -> DataBatch:
        if not self.is_instant:
            prefetched: DataBatch = await get_async_prefetch(self)._take_async()
            return prefetched
        batch = _next_or_none(self)
        if batch is None:
            raise StopAsyncIteration
        return batch

    def reset(self) -> None:
        """Go back to the first batch."""

    def next(self) -> DataBatch:
        """Return the next batch.

        Raises:
            StopIteration: there are no more batches.
        """
        if not self.iter_next():
            raise StopIteration
        return DataBatch(self.getdata(), self.getlabel(), self.getpad(), self.getindex())

    def iter_next(self) -> bool:
        """Go to the next batch; return False at the end."""
        raise NotImplementedError(f"{type(self).__name__} must implement next() or iter_next()")

    def getdata(self) -> Any:
        """Return the inputs of the current batch."""
        raise NotImplementedError(f"{type(self).__name__} must implement next() or getdata()")

    def getlabel(self) -> Any:
        """Return the labels of the current batch."""
        return None

    def getindex(self) -> Any:
        """Return the indices of the current batch's samples, or None if unknown."""
        return None

    def getpad(self) -> int | None:
        """Return the number of samples that pad the current batch."""
        return None

    # -- the position in an epoch ----------------------------------------------------------------------------

    def state(self) -> Any:
        """Return the position in the epoch, as plain data (numbers, strings, lists, dicts), for a checkpoint.

        :meth:`set_state` of an iterator with the same arguments restores it: both then return the same next batch.
        May wait for batches that are fetched in the background, but takes none.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement state() to save its position")

    def set_state(self, state: Any) -> None:
        """Restore the position of an iterator with the same arguments.

        Raises:
            ValueError: the state belongs to an iterator with other data or arguments.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement set_state(state)")


class BatchIter(DataIter):
    """Base class of iterators of whole batches: a subclass implements :meth:`next`, which sets ``current_batch``.

    MXNet's older methods (``iter_next``, ``getdata``, ``getlabel``, ...) are derived from these. An iterator with
    ``is_single = True`` has one input and one label, which these methods return without a list.
    """

    is_single = False
    current_batch: DataBatch | None = None

    def iter_next(self) -> bool:
        try:
            self.next()
        except StopIteration:
            return False
        return True

    def getdata(self) -> Any:
        return self._arrays("data")

    def getlabel(self) -> Any:
        return self._arrays("label")

    def getindex(self) -> Any:
        return getattr(self.current_batch, "index", None)

    def getpad(self) -> int | None:
        return getattr(self.current_batch, "pad", None)

    def _arrays(self, name: str) -> Any:
        arrays = getattr(self.current_batch, name, None)
        return arrays[0] if arrays and self.is_single else arrays


def _next_or_none(iterator: DataIter) -> DataBatch | None:
    """Return the next batch, or None: a StopIteration cannot leave a coroutine or a future."""
    try:
        return iterator.__next__()
    except StopIteration:
        return None
