"""Batches and descriptions of data, and the base class of iterators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

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
        layout: a letter for each axis; N is the axis of the instances.
    """

    dtype: Any
    layout: str | None

    def __new__(cls, name: str, shape: Shape, dtype: Any = np.float32, layout: str | None = "NCHW") -> DataDesc:
        made = super().__new__(cls, name, tuple(shape))
        made.dtype = dtype
        made.layout = layout
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.name, self.shape, self.dtype, self.layout)

    def __repr__(self) -> str:
        return f"DataDesc[{self.name},{self.shape},{self.dtype},{self.layout}]"

    @staticmethod
    def get_batch_axis(layout: str | None) -> int:
        """The axis of the instances: where N stands in the layout; 0 without a layout, -1 without an N."""
        return 0 if layout is None else layout.find("N")

    @staticmethod
    def get_list(shapes: Iterable[tuple[str, Shape]], types: Iterable[tuple[str, Any]] | None) -> list[DataDesc]:
        """Descriptions from pairs of name and shape, and pairs of name and dtype."""
        if types is None:
            return [DataDesc(name, shape) for name, shape in shapes]
        dtypes = dict(types)
        return [DataDesc(name, shape, dtypes[name]) for name, shape in shapes]


class DataBatch:
    """A batch.

    Args:
        data: the inputs, one array each.
        label: the labels, one array each.
        pad: the number of instances at its end that only fill it up; predictions leave them out.
        index: the instances' numbers.
        bucket_key: the key of its bucket, for modules with several.
        provide_data: describes ``data``.
        provide_label: describes ``label``.

    Raises:
        TypeError: ``data`` or ``label`` is no list.
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
        for name, given in (("data", data), ("label", label)):
            if given is not None and not isinstance(given, (list, tuple)):
                raise TypeError(f"DataBatch: {name} is {type(given).__name__}, expected a list of arrays")
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


class DataIter:
    """Base of the iterators.

    A subclass implements :meth:`iter_next` and the methods named ``get...``, or :meth:`next` or ``__iter__`` alone, and
    the properties ``provide_data`` and ``provide_label``.

    ``async for`` runs :meth:`next` in another thread, since it may read files or compute. A subclass whose
    ``next`` only enqueues work says so with ``is_instant = True`` and is spared the thread.

    Args:
        batch_size: instances in a batch.
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
        if type(self).__iter__ is not DataIter.__iter__:  # a subclass gives its batches in its own way
            return _in_a_thread(iter(self))
        return self

    async def __anext__(self) -> DataBatch:
        batch = _next_or_none(self) if self.is_instant else await asyncio.to_thread(_next_or_none, self)
        if batch is None:
            raise StopAsyncIteration
        return batch

    def reset(self) -> None:
        """Go back to the first batch."""

    def next(self) -> DataBatch:
        """The next batch.

        Raises:
            StopIteration: there is none.
        """
        if not self.iter_next():
            raise StopIteration
        return DataBatch(self.getdata(), self.getlabel(), self.getpad(), self.getindex())

    def iter_next(self) -> bool:
        """Go to the next batch; False where there is none."""
        raise NotImplementedError(f"{type(self).__name__} must implement next() or iter_next()")

    def getdata(self) -> Any:
        """The inputs of the current batch."""
        raise NotImplementedError(f"{type(self).__name__} must implement next() or getdata()")

    def getlabel(self) -> Any:
        """The labels of the current batch."""
        return None

    def getindex(self) -> Any:
        """The numbers of the current batch's instances, where they are known."""
        return None

    def getpad(self) -> int | None:
        """The number of padding instances at the current batch's end."""
        return None

    # -- the middle of an epoch ------------------------------------------------------------------------------

    def state(self) -> Any:
        """The position in the epoch, as plain data (numbers, strings, lists, dicts), for a checkpoint.

        An iterator made with the same arguments, given this by :meth:`set_state`, goes on with the batch that would
        come next here. May wait for what is fetched in the background, but takes nothing from it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say where it stands: it must implement state()")

    def set_state(self, state: Any) -> None:
        """Go on from where an iterator stood that was made with the same arguments.

        Raises:
            ValueError: the state was taken of one with other data or arguments.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement set_state(state)")


class BatchIter(DataIter):
    """Base of the iterators that make whole batches: a subclass implements :meth:`next`, which sets ``current_batch``.

    MXNet's older methods (``iter_next``, ``getdata``, ``getlabel``, ...) follow from the two. An iterator with
    ``is_single = True`` has one input and one label, which they return by themselves, outside of a list.
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
    """The next batch, or None: a StopIteration can not leave a coroutine or a future."""
    try:
        return iterator.__next__()
    except StopIteration:
        return None


async def _in_a_thread(batches: Iterator[DataBatch]) -> AsyncIterator[DataBatch]:
    """Batches of an iterator that may read files or compute."""
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        yield batch
