"""Batches of arrays in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx import random
from flowmx.data import tables
from flowmx.data.batch_order import check_last_batch, check_state
from flowmx.io.base import DataBatch, DataDesc, DataIter
from flowmx.ndarray import NDArray


class NDArrayIter(DataIter):
    """Batches of arrays in memory, in order or shuffled anew at each :meth:`reset`.

    Args:
        data: the inputs: an array (NumPy's, or ours), a list of arrays, or a dict by name. NumPy arrays become
            float32, as everywhere in MXNet. Inputs come in the order of their names. A table of pandas, polars, Arrow
            or ``datasets`` is one array, (n, columns), and a column of theirs one of (n,); ``{name: table[name], ...}``
            makes each column an input of that name. A csr matrix, also SciPy's, gives csr batches.
        label: the labels, likewise.
        batch_size: instances in a batch.
        shuffle: draw the order of the instances from the generator that ``mx.random.seed`` seeds.
        last_batch_handle: the treatment of instances that fill no batch: ``"pad"`` fills it with the first
            ones, ``"discard"`` drops them, ``"roll_over"`` puts them before the next epoch's first.
        data_name: the name of a single input.
        label_name: the name of a single label.
        layout: says which axis the instances are on: that of the N.

    Raises:
        ValueError: no data, an unknown ``last_batch_handle``, an array with fewer instances than the first, missing
            values in a table, or fewer instances than a batch where the rest is discarded.
        TypeError: ``data`` or ``label`` is something else, or a table's column holds no numbers.

    Example:
        >>> batches = mx.io.NDArrayIter(numpy.zeros((10, 4)), numpy.zeros(10), batch_size=3)
        >>> [batch.pad for batch in batches]
        [0, 0, 0, 2]
    """

    is_instant = True

    def __init__(
        self,
        data: Any,
        label: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        last_batch_handle: str = "pad",
        data_name: str = "data",
        label_name: str = "softmax_label",
        layout: str = "NCHW",
    ) -> None:
        super().__init__(batch_size)
        check_last_batch("NDArrayIter", last_batch_handle)
        if batch_size < 1:
            raise ValueError(f"NDArrayIter: batch_size is {batch_size}, expected at least 1")
        self.layout = layout
        self.axis = max(0, DataDesc.get_batch_axis(layout))
        self.data = named_arrays("data", data, data_name)
        self.label = named_arrays("label", label, label_name)
        if not self.data:
            raise ValueError("NDArrayIter: data holds no array")
        self.num_data = self.data[0][1].shape[self.axis]
        for name, array in (*self.data, *self.label):
            if array.ndim <= self.axis or array.shape[self.axis] < self.num_data:
                raise ValueError(
                    f"NDArrayIter: {name!r} has shape {array.shape}, expected {self.num_data} instances on axis "
                    f"{self.axis} as {self.data[0][0]!r} has"
                )
        if last_batch_handle == "discard" and self.num_data < batch_size:
            raise ValueError(
                f"NDArrayIter: batch_size is {batch_size}, but there are only {self.num_data} instances, and those "
                "that fill no batch are discarded"
            )
        self.shuffle = shuffle
        self.last_batch_handle = last_batch_handle
        self.idx: Any = np.arange(self.num_data)
        """The order of the instances; an array of ours where it is shuffled."""
        self._order: list[int] | None = None
        """The same as a list, once :meth:`state` was asked for it."""
        self.cursor = -batch_size
        self._rest: tuple[list[NDArray], list[NDArray]] | None = None
        """The instances that roll over into the next epoch."""
        self.reset()

    @property
    def provide_data(self) -> list[DataDesc]:
        """Describes the inputs of a batch."""
        return self._described(self.data)

    @property
    def provide_label(self) -> list[DataDesc]:
        """Describes the labels of a batch."""
        return self._described(self.label)

    def _described(self, source: list[tuple[str, NDArray]]) -> list[DataDesc]:
        described = []
        for name, array in source:
            shape = (*array.shape[: self.axis], self.batch_size, *array.shape[self.axis + 1 :])
            described.append(DataDesc(name, shape, array.dtype, self.layout))
        return described

    def hard_reset(self) -> None:
        """Go back to the first batch, and forget what would roll over."""
        self._shuffle()
        self._rest = None
        self.cursor = -self.batch_size

    def reset(self) -> None:
        """Go back to the first batch, in a new order where they are shuffled.

        With ``"roll_over"`` the instances that filled no batch come first.
        """
        self._shuffle()
        is_rest = self.num_data - self.batch_size < self.cursor < self.num_data
        if self.last_batch_handle == "roll_over" and is_rest:
            self.cursor -= self.num_data + self.batch_size
        else:
            self.cursor = -self.batch_size
            self._rest = None

    def _shuffle(self) -> None:
        """Draw a new order: on the engine, since the generator may be busy, and nothing here may wait for it."""
        if self.shuffle:
            self.idx = random.shuffle(nd.array(np.arange(self.num_data), dtype=np.int64))
            self._order = None

    def iter_next(self) -> bool:
        self.cursor += self.batch_size
        if self.last_batch_handle == "discard":
            return self.cursor + self.batch_size <= self.num_data
        return self.cursor < self.num_data

    def next(self) -> DataBatch:
        if not self.iter_next():
            raise StopIteration
        if self.last_batch_handle == "roll_over" and self.cursor + self.batch_size > self.num_data:
            kept = self._rest if self.cursor < 0 else None
            start = max(0, self.cursor)
            data, label = self._taken(self.data, start), self._taken(self.label, start)
            self._rest = (self._joined(kept[0], data), self._joined(kept[1], label)) if kept else (data, label)
            raise StopIteration
        data, label, pad = self.getdata(), self.getlabel(), self.getpad()
        if self.cursor >= 0:
            self._rest = None
        return DataBatch(data, label, pad)

    def getdata(self) -> list[NDArray]:
        return self._batch(self.data, 0)

    def getlabel(self) -> list[NDArray]:
        return self._batch(self.label, 1)

    def getpad(self) -> int:
        missing = self.cursor + self.batch_size - self.num_data
        if self.last_batch_handle == "pad" and missing > 0:
            return missing
        # As MXNet has it: what rolled over is called padding too.
        return -self.cursor if self.last_batch_handle == "roll_over" and self.cursor < 0 else 0

    def state(self) -> dict[str, Any]:
        """The position in the epoch; waits for the shuffled order, and for instances that roll over.

        The order of later epochs comes from the generator that ``mx.random.seed`` seeds, which is not in the state.
        """
        rest = None if self._rest is None else [[array.asnumpy().tolist() for array in part] for part in self._rest]
        if self.shuffle and self._order is None:  # once an epoch: it is long
            self._order = self.idx.asnumpy().tolist()
        return {
            "num_data": self.num_data, "batch_size": self.batch_size, "last_batch_handle": self.last_batch_handle,
            "cursor": self.cursor, "order": self._order, "rest": rest,
        }  # fmt: skip

    def set_state(self, state: dict[str, Any]) -> None:
        names = ("num_data", "batch_size", "last_batch_handle")
        check_state(state, {name: getattr(self, name) for name in names})
        if (state["order"] is not None) != self.shuffle:
            raise ValueError("NDArrayIter: of the state's iterator and this one only one is shuffled")
        self.cursor = int(state["cursor"])
        if self.shuffle:
            self._order = list(state["order"])
            self.idx = nd.array(np.asarray(self._order), dtype=np.int64)
        self._rest = None if state["rest"] is None else self._rest_of(state["rest"])

    def _rest_of(self, values: list[list[Any]]) -> tuple[list[NDArray], list[NDArray]]:
        data, label = (
            [nd.array(value, dtype=array.dtype) for value, (_, array) in zip(part, source, strict=True)]
            for part, source in zip(values, (self.data, self.label), strict=True)
        )
        return data, label

    def _batch(self, source: list[tuple[str, NDArray]], part: int) -> list[NDArray]:
        end = self.cursor + self.batch_size
        if self.cursor < 0:
            assert self._rest is not None, "a cursor before the first instance means that some rolled over"
            return self._joined(self._rest[part], self._taken(source, 0, end))
        taken = self._taken(source, self.cursor, min(end, self.num_data))
        missing = end - self.num_data
        while missing > 0:  # more than once where a batch is longer than all the data
            more = min(missing, self.num_data)
            taken = self._joined(taken, self._taken(source, 0, more))
            missing -= more
        return taken

    def _taken(self, source: list[tuple[str, NDArray]], start: int, stop: int | None = None) -> list[NDArray]:
        """Copies of a range of instances, in the current order."""
        stop = self.num_data if stop is None else stop
        if not self.shuffle:
            if any(array.stype == "csr" for _, array in source):
                return [array[start:stop].copy() for _, array in source]
            where = (slice(None),) * self.axis + (slice(start, stop),)
            return [array[where].copy() for _, array in source]
        chosen = self.idx[start:stop]
        return [nd.op.take(array, chosen.as_in_context(array.context), axis=self.axis) for _, array in source]

    def _joined(self, first: list[NDArray], second: list[NDArray]) -> list[NDArray]:
        return [nd.op.concat(a, b, dim=self.axis) for a, b in zip(first, second, strict=True)]


def named_arrays(argument: str, given: Any, default_name: str) -> list[tuple[str, NDArray]]:
    """Make pairs of name and array, in the order of the names, of an array, a list of arrays, or a dict.

    Raises:
        TypeError: ``given`` is something else, or holds something that is no array.
    """
    if given is None:
        return []
    if isinstance(given, (np.ndarray, NDArray)) or tables.is_table(given):
        given = [given]
    if isinstance(given, (list, tuple)):
        names = [default_name] if len(given) == 1 else [f"_{i}_{default_name}" for i in range(len(given))]
        given = dict(zip(names, given, strict=True))
    if not isinstance(given, Mapping):
        raise TypeError(
            f"NDArrayIter: {argument} is {type(given).__name__}, expected an array, a list of arrays, or a dict of them"
        )
    named = []
    for name, value in sorted(given.items()):
        if tables.is_table(value):
            value = tables.as_array(f"NDArrayIter: {name!r}", value)
        try:
            named.append((name, value if isinstance(value, NDArray) else nd.array(value)))
        except (TypeError, ValueError) as error:
            raise TypeError(f"NDArrayIter: {name!r} is {type(value).__name__}, expected an array ({error})") from error
    return named
