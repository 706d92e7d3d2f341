"""Batches of rows that were read from a file into memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.data.batch_order import BatchOrder, End
from flowmx.engine.origin import warn_user
from flowmx.io.base import BatchIter, DataBatch, DataDesc
from flowmx.ndarray import NDArray

_warned: set[tuple[str, int]] = set()


def ignore_rest(name: str, given: Mapping[str, Any]) -> None:
    """Warn of arguments that an iterator does not know; MXNet's ignore them, and say nothing."""
    if given:
        warn_user(f"{name}: unknown arguments are ignored: {', '.join(given)}", _warned)


DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64")


class RowsIter(BatchIter):
    """Batches of instances in memory.

    Args:
        data: the inputs, instances first.
        label: the labels, likewise.
        batch_size: instances in a batch.
        end: the treatment of those that fill no batch (see :class:`~flowmx.data.batch_order.BatchOrder`).
        shuffle: in a random order.
        seed: the seed of that order.
        data_name: the name of the input.
        label_name: the name of the label.
    """

    is_instant = True
    is_single = True

    def __init__(
        self,
        data: np.ndarray[Any, Any],
        label: np.ndarray[Any, Any],
        batch_size: int,
        end: End = "wrap",
        shuffle: bool = False,
        seed: int = 0,
        data_name: str = "data",
        label_name: str = "softmax_label",
    ) -> None:
        super().__init__(batch_size)
        self._data, self._label = data, label
        self._order = BatchOrder(len(data), batch_size, end, shuffle, seed)
        self.provide_data = [DataDesc(data_name, (batch_size, *data.shape[1:]), data.dtype.type)]
        self.provide_label = [DataDesc(label_name, (batch_size, *label.shape[1:]), label.dtype.type)]

    def reset(self) -> None:
        self._order.reset()

    def next(self) -> DataBatch:
        batch = self._order.take()
        if batch is None:
            raise StopIteration
        data, label = self._taken(self._data, batch.rows), self._taken(self._label, batch.rows)
        self.current_batch = DataBatch([data], [label], batch.pad, batch.rows.astype(np.uint64))
        return self.current_batch

    def _taken(self, source: np.ndarray[Any, Any], rows: Any) -> NDArray:
        return nd.from_numpy(np.ascontiguousarray(source[rows]))

    def state(self) -> dict[str, Any]:
        return self._order.state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._order.set_state(state)


def dtype_of(name: str, dtype: Any) -> np.dtype[Any]:
    """The element type that an iterator was asked for; float32 for None.

    Raises:
        ValueError: it is none that iterators give.
    """
    found = np.dtype(np.float32 if dtype is None or dtype == "None" else dtype)
    if found.name not in DTYPES:
        raise ValueError(f"{name}: dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
    return found
