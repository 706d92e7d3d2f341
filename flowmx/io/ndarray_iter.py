"""Batches of arrays in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.data import rng, tables
from flowmx.data.batch_order import check_last_batch, check_state
from flowmx.io.data_iter import DataBatch, DataDesc, DataIter
from flowmx.ndarray import NDArray


class NDArrayIter(DataIter):
    """Batches of arrays in memory, in order or shuffled again at each :meth:`reset`.

    Args:
        data: the inputs: an array (NumPy or NDArray), a list of arrays, or a dict by name. NumPy arrays become
            float32, as in MXNet. Inputs are ordered by name. A table of pandas, polars, Arrow or ``datasets``
            is an array of shape (n, columns), and a column an array of shape (n,);
            ``{name: table[name], ...}`` makes each column an input. A csr matrix (also SciPy's) gives csr batches.
        label: the labels, in the same forms.
        batch_size: the number of samples in a batch.
        shuffle: whether to draw the order of the samples from NumPy's generator, as MXNet does.
        last_batch_handle: the treatment of an incomplete last batch: ``"pad"`` fills it with the first
            samples, ``"discard"`` drops it, ``"roll_over"`` puts its samples at the beginning of the next epoch.
        data_name: the name of a single input.
        label_name: the name of a single label.
        layout: a letter for each axis; N is the batch axis.

    Raises:
        ValueError: there is no data, ``last_batch_handle`` is unknown, an array has fewer samples than the first, a
            table has missing values, or there are fewer samples than a batch and an incomplete batch is dropped.
        TypeError: ``data`` or ``label`` has the wrong type, or a table's column is not numeric.

    Example:
        >>> batches = mx.io.NDArrayIter(numpy.zeros((10, 4)), numpy.zeros(10), batch_size=3)
        >>> [batch.pad for batch in batches]
        [0, 0, 0, 2]
    """

    is_instant = True

    def __init__(
        self,
        data: Any,
        label: object = None,
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
            raise ValueError("NDArrayIter: data has no arrays")
        self.num_data = self.data[0][1].shape[self.axis]
        for name, array in (*self.data, *self.label):
            if array.ndim <= self.axis or array.shape[self.axis] < self.num_data:
                hint = ": a list is read as several arrays; pass numpy.array(values)" if not array.ndim else ""
                raise ValueError(
                    f"NDArrayIter: {name!r} has shape {array.shape}, expected {self.num_data} samples on axis "
                    f"{self.axis} as {self.data[0][0]!r} has{hint}"
                )
        if last_batch_handle == "discard" and self.num_data < batch_size:
            raise ValueError(
                f"NDArrayIter: batch_size is {batch_size}, but there are only {self.num_data} samples, and an "
                "incomplete batch is discarded"
            )
        self.shuffle = shuffle
        self.last_batch_handle = last_batch_handle
        self.idx: Any = np.arange(self.num_data)
        """The next shuffle shuffles this permutation, then applies it to the current order, as in MXNet."""
        self._rows: Any = np.arange(self.num_data)
        """The samples in the current order."""
        self._order_lists: dict[str, list[int]] | None = None
        """Order and permutation as lists, cached by :meth:`state`."""
        self.cursor = -batch_size
        self._rest: tuple[list[NDArray], list[NDArray]] | None = None
        """The samples that roll over into the next epoch."""
        self.reset()

    @property
    def provide_data(self) -> list[DataDesc]:
        """Names, shapes and dtypes of the inputs of a batch."""
        return self._describe(self.data)

    @property
    def provide_label(self) -> list[DataDesc]:
        """Names, shapes and dtypes of the labels of a batch."""
        return self._describe(self.label)

    def _describe(self, source: list[tuple[str, NDArray]]) -> list[DataDesc]:
        descs = []
        for name, array in source:
            shape = (*array.shape[: self.axis], self.batch_size, *array.shape[self.axis + 1 :])
            descs.append(DataDesc(name, shape, array.dtype, self.layout))
        return descs

    def hard_reset(self) -> None:
        """Go back to the first batch, and drop the samples to roll over."""
        self._shuffle_data()
        self._rest = None
        self.cursor = -self.batch_size

    def reset(self) -> None:
        """Go back to the first batch, in a new order if shuffled.

        With ``"roll_over"`` the samples of the incomplete batch come first.
        """
        self._shuffle_data()
        has_rest = self.num_data - self.batch_size < self.cursor < self.num_data
        if self.last_batch_handle == "roll_over" and has_rest:
            self.cursor -= self.num_data + self.batch_size
        else:
            self.cursor = -self.batch_size
            self._rest = None

    def _shuffle_data(self) -> None:
        """Draw a new order from NumPy's generator."""
        if self.shuffle:
            rng.numpy().shuffle(self.idx)
            self._rows = self._rows[self.idx]
            self._order_lists = None

    def iter_next(self) -> bool:
        self.cursor += self.batch_size
        if self.last_batch_handle == "discard":
            return self.cursor + self.batch_size <= self.num_data
        return self.cursor < self.num_data

    def next(self) -> DataBatch:
        if not self.iter_next():
            raise StopIteration
        if self.last_batch_handle == "roll_over" and self.cursor + self.batch_size > self.num_data:
            rest = self._rest if self.cursor < 0 else None
            start = max(0, self.cursor)
            data, label = self._getdata(self.data, start), self._getdata(self.label, start)
            self._rest = (self._concat(rest[0], data), self._concat(rest[1], label)) if rest else (data, label)
            raise StopIteration
        data, label, pad = self.getdata(), self.getlabel(), self.getpad()
        if self.cursor >= 0:
            self._rest = None
        return DataBatch(data, label, pad)

    def getdata(self) -> list[NDArray]:
        return self._batchify(self.data)

    def getlabel(self) -> list[NDArray]:
        return self._batchify(self.label)

    def getpad(self) -> int:
        missing = self.cursor + self.batch_size - self.num_data
        if self.last_batch_handle == "pad" and missing > 0:
            return missing
        # As in MXNet: samples that rolled over count as padding too.
        return -self.cursor if self.last_batch_handle == "roll_over" and self.cursor < 0 else 0

    def state(self) -> dict[str, Any]:
        """Return the position in the epoch; waits for samples that roll over.

        The orders of later epochs come from NumPy's generator, whose state is not included.
        """
        rest = None if self._rest is None else [[array.asnumpy().tolist() for array in part] for part in self._rest]
        if self.shuffle and self._order_lists is None:  # once per epoch, because they are long
            self._order_lists = {"order": self._rows.tolist(), "permutation": self.idx.tolist()}
        return {
            "num_data": self.num_data, "batch_size": self.batch_size, "last_batch_handle": self.last_batch_handle,
            "cursor": self.cursor, **(self._order_lists or {"order": None}), "rest": rest,
        }  # fmt: skip

    def set_state(self, state: dict[str, Any]) -> None:
        names = ("num_data", "batch_size", "last_batch_handle")
        check_state(state, {name: getattr(self, name) for name in names})
        if (state["order"] is not None) != self.shuffle:
            raise ValueError("NDArrayIter: the state's iterator is shuffled and this one is not, or the reverse")
        self.cursor = int(state["cursor"])
        if self.shuffle:
            self._rows = np.array(state["order"])
            self.idx = np.array(state.get("permutation") or state["order"])
            self._order_lists = None
        self._rest = None if state["rest"] is None else self._rest_rows(state["rest"])

    def _rest_rows(self, values: list[list[Any]]) -> tuple[list[NDArray], list[NDArray]]:
        data, label = (
            [nd.array(value, dtype=array.dtype) for value, (_, array) in zip(part, source, strict=True)]
            for part, source in zip(values, (self.data, self.label), strict=True)
        )
        return data, label

    def _batchify(self, source: list[tuple[str, NDArray]]) -> list[NDArray]:
        """Return the arrays of the current batch."""
        end = self.cursor + self.batch_size
        if self.cursor < 0:
            assert self._rest is not None, "a negative cursor means that samples rolled over"
            return self._concat(self._rest[0 if source is self.data else 1], self._getdata(source, 0, end))
        arrays = self._getdata(source, self.cursor, min(end, self.num_data))
        missing = end - self.num_data
        while missing > 0:  # repeated if a batch is longer than all data
            count = min(missing, self.num_data)
            arrays = self._concat(arrays, self._getdata(source, 0, count))
            missing -= count
        return arrays

    def _getdata(self, source: list[tuple[str, NDArray]], start: int, stop: int | None = None) -> list[NDArray]:
        """Copy a range of samples, in the current order."""
        stop = self.num_data if stop is None else stop
        if not self.shuffle:
            if any(array.stype == "csr" for _, array in source):
                return [array[start:stop].copy() for _, array in source]
            index = (slice(None),) * self.axis + (slice(start, stop),)
            return [array[index].copy() for _, array in source]
        rows = nd.array(self._rows[start:stop], dtype=np.int64)
        return [nd.op.take(array, rows.as_in_context(array.context), axis=self.axis) for _, array in source]

    def _concat(self, first: list[NDArray], second: list[NDArray]) -> list[NDArray]:
        return [nd.op.concat(a, b, dim=self.axis) for a, b in zip(first, second, strict=True)]


def named_arrays(argument: str, source: object, default_name: str) -> list[tuple[str, NDArray]]:
    """Make pairs of name and array, ordered by name, from an array, a list of arrays, or a dict.

    Raises:
        TypeError: the source has a different type, or an element is not an array.
    """
    if source is None:
        return []
    if isinstance(source, (np.ndarray, NDArray)) or tables.is_table(source):
        source = [source]
    if isinstance(source, (list, tuple)):
        names = [default_name] if len(source) == 1 else [f"_{i}_{default_name}" for i in range(len(source))]
        source = dict(zip(names, source, strict=True))
    if not isinstance(source, Mapping):
        raise TypeError(
            f"NDArrayIter: {argument} is {type(source).__name__}, expected an array, a list of arrays, or a dict"
        )
    pairs = []
    for name, value in sorted(source.items()):
        if tables.is_table(value):
            value = tables.as_array(f"NDArrayIter: {name!r}", value)
        try:
            pairs.append((name, value if isinstance(value, NDArray) else nd.array(value)))
        except (TypeError, ValueError) as error:
            raise TypeError(f"NDArrayIter: {name!r} is {type(value).__name__}, expected an array ({error})") from error
    return pairs
