"""Private helpers of ``mxnet.io`` that packages import, and the iterator of ``mxnet.contrib.io``."""

from __future__ import annotations

from typing import Any

from flowmx import io
from flowmx import ndarray as nd
from flowmx.io import DataDesc, DataIter
from flowmx.io.ndarray_iter import named_arrays
from flowmx.ndarray import NDArray

__all__ = ["DataLoaderIter", "MXDataIter", "_getdata_by_idx", "_has_instance", "_init_data", "_slice_along_batch_axis"]


class _MXDataIters(type(DataIter)):  # type: ignore[misc]
    """Metaclass that recognizes the iterators that are written in C++ in MXNet."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(
            instance, (io.CSVIter, io.LibSVMIter, io.MNISTIter, io.ImageRecordIter, io.ImageDetRecordIter)
        )


class MXDataIter(DataIter, metaclass=_MXDataIters):
    """The class of MXNet's C++ iterators, for ``isinstance``; flowmx has a class per iterator."""


def _init_data(data: object, allow_empty: bool, default_name: str) -> list[tuple[str, NDArray]]:
    """Return arrays by name, sorted by name.

    Args:
        data: an array, a list or dict of arrays, or None.
        allow_empty: whether to accept an empty list.
        default_name: name of a single array; arrays of a list get a number before it.

    Raises:
        TypeError: ``data`` has a different type, or contains an object that is not an array.
        AssertionError: ``data`` is empty and ``allow_empty`` is False (MXNet's exception).
    """
    if isinstance(data, list) and not data and not allow_empty:
        raise AssertionError("data is empty")
    if data is None and not allow_empty:
        raise TypeError("data is None, expected an array, or a list or dict of arrays")
    return named_arrays("data", data, default_name)


def _has_instance(data: list[tuple[str, Any]], dtype: Any) -> bool:
    """Return whether one of the arrays is an instance of the class `dtype`."""
    return any(isinstance(array, dtype) for _, array in data)


def _getdata_by_idx(data: list[tuple[str, NDArray]], idx: Any) -> list[tuple[str, NDArray]]:
    """Return the rows with these indices of every array."""
    return [(name, nd.array(array.asnumpy()[idx], array.context)) for name, array in data]


def _slice_along_batch_axis(data: NDArray, s: slice, batch_axis: int) -> NDArray:
    """Return a slice of a batch."""
    part: NDArray = data.slice_axis(axis=batch_axis, begin=s.start, end=s.stop)
    return part


class DataLoaderIter(DataIter):
    """A `DataIter` over the batches of a Gluon loader, for `Module`.

    Args:
        loader: yields data and label of batches.
        data_name: name of the data.
        label_name: name of the label.
        dtype: dtype to which both are cast.
    """

    def __init__(
        self, loader: Any, data_name: str = "data", label_name: str = "softmax_label", dtype: Any = "float32"
    ) -> None:
        super().__init__()
        self._loader, self.dtype = loader, dtype
        data, label = next(iter(loader))
        self.batch_size = data.shape[0]
        self.provide_data = [DataDesc(data_name, data.shape, dtype)]
        self.provide_label = [DataDesc(label_name, label.shape, dtype)]
        self._current: Any = None
        self.reset()

    def reset(self) -> None:
        self._iter = iter(self._loader)

    def iter_next(self) -> bool:
        self._current = next(self._iter, None)
        return self._current is not None

    def getdata(self) -> list[NDArray]:
        return [self._pad(self._current[0])]

    def getlabel(self) -> list[NDArray]:
        return [self._pad(self._current[1])]

    def _pad(self, array: NDArray) -> NDArray:
        """Return the array padded to the batch size."""
        cast = array.astype(self.dtype)
        if not self.getpad():
            return cast
        full = nd.zeros((self.batch_size, *array.shape[1:]), dtype=self.dtype)
        full[: array.shape[0]] = cast
        return full

    def getpad(self) -> int:
        return self.batch_size - int(self._current[0].shape[0])

    def getindex(self) -> None:
        return None
