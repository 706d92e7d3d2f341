"""Batches of samples that were read from a file into memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.data.batch_order import BatchOrder, End
from flowmx.engine.origin import warn_user
from flowmx.io.data_iter import BatchIter, DataBatch, DataDesc
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import DType, as_dtype
from flowmx.ops.registry.operators import Array

_warned: set[tuple[str, int]] = set()


def ignore_rest(name: str, arguments: Mapping[str, object]) -> None:
    """Warn about unknown arguments of an iterator; MXNet ignores them silently."""
    if arguments:
        warn_user(f"{name}: unknown arguments are ignored: {', '.join(arguments)}", _warned)


DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64")


class MemoryIter(BatchIter):
    """Batches of samples in memory.

    Args:
        data: the inputs; the first axis is the batch axis.
        label: the labels; the first axis is the batch axis.
        batch_size: the number of samples in a batch.
        end: the treatment of an incomplete last batch (see :class:`~flowmx.data.batch_order.BatchOrder`).
        shuffle: whether the order is random.
        seed: the seed of that order.
        data_name: the name of the input.
        label_name: the name of the label.
    """

    is_instant = True
    is_single = True

    def __init__(
        self,
        data: Array,
        label: Array,
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
        data, label = self._select(self._data, batch.rows), self._select(self._label, batch.rows)
        self.current_batch = DataBatch([data], [label], batch.pad, batch.rows.astype(np.uint64))
        return self.current_batch

    def _select(self, source: Array, rows: Any) -> NDArray:
        return nd.from_numpy(np.ascontiguousarray(source[rows]))

    def state(self) -> dict[str, Any]:
        return self._order.state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._order.set_state(state)


def element_type(name: str, dtype: Any) -> DType:
    """Return the element type of an iterator's argument; float32 for None.

    Raises:
        ValueError: iterators do not support this dtype.
    """
    kind = as_dtype(None if dtype is None or dtype == "None" else dtype)
    if kind.name not in DTYPES:
        raise ValueError(f"{name}: dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
    return kind
