"""Array functions that are no operators: making arrays, joining and splitting, files, interchange."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from flowmx import devices
from flowmx.devices import Context
from flowmx.errors import ShapeError
from flowmx.ndarray import functions
from flowmx.ndarray.array import NDArray, array, full, on_context
from flowmx.ndarray.core import allocate, invoke
from flowmx.ndarray.dlpack import opened
from flowmx.ops.arrays.reshaping import split_at
from flowmx.ops.registry.dtypes import as_dtype
from flowmx.ops.registry.operators import lookup
from flowmx.serialization import formats, params

# -- new arrays --------------------------------------------------------------------------------------------


def zeros(
    shape: int | Sequence[int],
    ctx: Context | None = None,
    dtype: Any = None,
    stype: str | None = None,
    *,
    out: NDArray | None = None,
) -> NDArray:
    """An array of zeros (float32 by default).

    Args:
        shape: the length of each axis.
        ctx: the device (default: the current one).
        dtype: the element type.
        stype: the storage type: ``"default"``, ``"csr"`` or ``"row_sparse"``.
        out: an array to fill instead of making one.

    Raises:
        ShapeError: the shape is no shape.
        ValueError: there is no such storage type.
    """
    if stype not in (None, "default"):
        made = cast(
            "NDArray", importlib.import_module("flowmx.ndarray.sparse.creation").zeros(stype, shape, ctx, dtype)
        )
        return made if out is None else made.copyto(out)
    return full(shape, 0, ctx, dtype, out)


def ones(
    shape: int | Sequence[int], ctx: Context | None = None, dtype: Any = None, *, out: NDArray | None = None
) -> NDArray:
    """An array of ones (float32 by default); the arguments are those of :func:`zeros`."""
    return full(shape, 1, ctx, dtype, out)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: bool | None = None,
    ctx: Context | None = None,
    dtype: Any = "float32",
) -> NDArray:
    """Numbers from ``start`` to before ``stop`` in steps of ``step``, each ``repeat`` times.

    With one argument: from 0 to before that. ``infer_range`` is kept for MXNet's scripts.
    """
    return _made("_arange", ctx, start=start, stop=stop, step=step, repeat=repeat, dtype=dtype)


def linspace(
    start: float,
    stop: float,
    num: int,
    endpoint: bool = True,
    ctx: Context | None = None,
    dtype: Any = "float32",
) -> NDArray:
    """``num`` evenly spaced numbers from ``start`` to ``stop`` (left out where ``endpoint`` is False)."""
    return _made("_linspace", ctx, start=start, stop=stop, num=num, endpoint=endpoint, dtype=dtype)


def eye(
    N: int, M: int = 0, k: int = 0, ctx: Context | None = None, dtype: Any = None, *, out: NDArray | None = None
) -> NDArray:
    """A matrix of N rows and M columns (default: N) with ones on the k-th diagonal, zeros elsewhere."""
    return _made("_eye", ctx, out, N=N, M=M, k=k, dtype=as_dtype(dtype))


def _made(name: str, ctx: Context | None, out: NDArray | None = None, **parameters: Any) -> NDArray:
    return cast("NDArray", invoke(lookup(name).create(**parameters), [], out, on_context(ctx), 3))


# -- joining, splitting, moving ----------------------------------------------------------------------------


def concatenate(arrays: Sequence[NDArray], axis: int = 0, always_copy: bool = True) -> NDArray:
    """The arrays joined along an axis; one array alone is returned as it is unless ``always_copy``.

    Raises:
        ValueError: there are none.
        ShapeError: they differ on another axis.
    """
    if not arrays:
        raise ValueError("concatenate: no arrays were given, expected at least one")
    if len(arrays) == 1 and not always_copy:
        return arrays[0]
    return cast("NDArray", functions.op("Concat", *arrays, dim=axis))


def split_v2(ary: NDArray, indices_or_sections: int | Sequence[int], axis: int = 0, squeeze_axis: bool = False) -> Any:
    """The parts of an array along an axis.

    Args:
        ary: the array.
        indices_or_sections: the number of equal parts, or where the parts after the first start.
        axis: the axis.
        squeeze_axis: drop the axis, where each part has length 1 on it.

    Returns:
        a list of arrays, or one array where there is one part.
    """
    return functions.op("_split_v2", ary, axis=axis, squeeze_axis=squeeze_axis, **split_at(indices_or_sections))


def moveaxis(tensor: NDArray, source: int | Sequence[int], destination: int | Sequence[int]) -> NDArray:
    """The array with the axes ``source`` at the positions ``destination``; the others keep their order.

    Raises:
        ShapeError: there is no such axis, or the two differ in number.
    """
    ndim = tensor.ndim
    origins, targets = ((each,) if isinstance(each, int) else tuple(each) for each in (source, destination))
    for name, axes in (("source", origins), ("destination", targets)):
        if any(not -ndim <= axis < ndim for axis in axes) or len({axis % ndim for axis in axes}) < len(axes):
            raise ShapeError(f"moveaxis: {name} is {axes}, expected different axes from {-ndim} to {ndim - 1}")
    if len(origins) != len(targets):
        raise ShapeError(f"moveaxis: source is {origins} and destination {targets}, expected as many of each")
    moved = [axis % ndim for axis in origins]
    order = [axis for axis in range(ndim) if axis not in moved]
    for target, origin in sorted((target % ndim, origin) for target, origin in zip(targets, moved, strict=True)):
        order.insert(target, origin)
    return tensor.transpose(*order)


def onehot_encode(indices: NDArray, out: NDArray) -> NDArray:
    """Write the one-hot rows of ``indices`` (n,) into ``out`` (n, depth); returns it (MXNet's older form)."""
    return cast("NDArray", functions.op("one_hot", indices, depth=out.shape[1], dtype=out.dtype, out=out))


def histogram(a: NDArray, bins: int | NDArray = 10, range: tuple[float, float] | None = None) -> list[NDArray]:
    """Count the elements of each bin; a bin includes its lower edge, the last one also its upper edge.

    Args:
        a: an array of any shape.
        bins: number of bins of equal width, or an increasing array of edges of shape (n + 1,).
        range: lowest and highest edge (default: the smallest and largest element, for which the call blocks).

    Returns:
        The counts, int64 of shape (n,), and the edges, of the input's dtype and shape (n + 1,).

    Raises:
        ValueError: the array has no elements to take the range from.
    """
    if isinstance(bins, NDArray):
        return cast("list[NDArray]", functions.op("_histogram", a, bins))
    if range is None:
        if not a.size:
            raise ValueError(f"histogram: a has shape {a.shape}, expected elements, or range to be given")
        low, high = (float(functions.op(name, a).asscalar()) for name in ("min", "max"))
        range = (low, high) if low < high else (low - 0.5, high + 0.5)
    return cast("list[NDArray]", functions.op("_histogram", a, bin_cnt=bins, range=range))


# -- files -------------------------------------------------------------------------------------------------

Saved = dict[str, NDArray] | list[NDArray]


def save(
    fname: str | os.PathLike[str],
    data: NDArray | Sequence[NDArray] | Mapping[str, NDArray],
    *,
    format: str | None = None,
) -> None:
    """Write arrays to a file in MXNet's ``.params`` format; blocks until they are computed and written.

    Args:
        fname: the file; one whose name ends with ``.safetensors`` is written in that format.
        data: an array, a list of arrays, or a dict of arrays by name (which safetensors needs).
        format: ``"params"`` or ``"safetensors"``, whatever the name is.

    Raises:
        TypeError: ``data`` is no array, list of arrays or dict of arrays; or it has no names, or a dtype that the
            format has not.
        ValueError: there is no such format.
        OSError: the file can not be written.
    """
    if isinstance(data, NDArray):
        data = [data]
    values = list(data.values()) if isinstance(data, Mapping) else list(data)
    for value in values:
        if not isinstance(value, NDArray):
            raise TypeError(f"save: data holds {type(value).__name__}, expected NDArrays (a list, or a dict by name)")
    host = [_to_be_written(value) for value in values]
    formats.save(fname, dict(zip(data, host, strict=True)) if isinstance(data, Mapping) else host, format)


def load(fname: str | os.PathLike[str]) -> Saved:
    """Read a ``.params`` or safetensors file: a dict of arrays if they have names, else a list; on the CPU.

    A state dict that ``torch.save`` wrote is read too, without torch and without running what else such files may hold.
    Files of every version of MXNet since 0.8 are read, sparse arrays in them too.

    Raises:
        FileFormatError: the file is damaged, or of none of the formats.
        OSError: the file can not be read.
    """
    return _arrays(formats.load(fname, keep_sparse=True))


def load_named(fname: str | os.PathLike[str]) -> dict[str, NDArray]:
    """Read a file as :func:`load` does, as a dict; an empty one where there are no arrays, and so no names.

    Raises:
        ValueError: the arrays in it have no names.
        FileFormatError, OSError: as for :func:`load`.
    """
    loaded = load(fname)
    if isinstance(loaded, dict):
        return loaded
    if loaded:
        raise ValueError(f"{os.fspath(fname)} holds a list of arrays without names, expected names")
    return {}


def load_frombuffer(buf: bytes | bytearray | memoryview) -> Saved:
    """Read the content of a ``.params`` or safetensors file, as :func:`load` does the file.

    Raises:
        FileFormatError: the data is damaged, or of neither format.
    """
    return _arrays(formats.loads(buf, keep_sparse=True))


def _arrays(loaded: dict[str, np.ndarray[Any, Any]] | list[np.ndarray[Any, Any]]) -> Saved:
    if isinstance(loaded, dict):
        return {name: _adopted(value) for name, value in loaded.items()}
    return [_adopted(value) for value in loaded]


# -- interchange -------------------------------------------------------------------------------------------


def _to_be_written(array: NDArray) -> Any:
    """The content of an array, as it goes into a file."""
    return array.asnumpy() if array.stype == "default" else _sparse().stored(array)


def _sparse() -> Any:
    return importlib.import_module("flowmx.ndarray.sparse.creation")


def _adopted(data: Any) -> NDArray:
    """An array on the CPU that uses this memory."""
    if isinstance(data, params.Stored):
        return cast("NDArray", _sparse().restored(data))
    return cast("NDArray", allocate(devices.get(devices.cpu()), data.shape, data.dtype, data))


def from_numpy(ndarray: np.ndarray[Any, Any], zero_copy: bool = True) -> NDArray:
    """An array on the CPU with the content and dtype of a NumPy array.

    Args:
        ndarray: the NumPy array.
        zero_copy: share its memory. The NumPy array is then made read-only, since the engine may write to
            the memory at any time. Memory that NumPy may not write to (a file mapped for reading) is read alone:
            a write is an error, which the wait raises.

    Raises:
        ValueError: ``zero_copy``, but the array is not C-contiguous.
    """
    if not zero_copy:
        return array(ndarray, devices.cpu(), ndarray.dtype)
    as_dtype(ndarray.dtype)
    if not ndarray.flags.c_contiguous:
        raise ValueError("from_numpy: to share memory the array must be C-contiguous; use zero_copy=False")
    shared = ndarray.view(np.ndarray)
    if not shared.flags.writeable and _is_of_numpy(shared):
        shared = np.asarray(_Shared(shared))
    ndarray.flags.writeable = False
    return _adopted(shared)


def _is_of_numpy(data: np.ndarray[Any, Any]) -> bool:
    """Tell whether NumPy has allocated the memory of an array, so that being read-only is but a flag of it."""
    while isinstance(data.base, np.ndarray):
        data = data.base
    return data.flags.owndata


class _Shared:
    """Memory that NumPy got as read-only, to be seen as writable (the lender gave it to be written)."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self._data = data  # keeps the memory alive
        self.__array_interface__ = {
            **data.__array_interface__,
            "data": (data.__array_interface__["data"][0], False),
        }


def from_dlpack(dlpack: Any) -> NDArray:
    """An array on the CPU that shares memory with a DLPack capsule, or an object that gives one.

    Raises:
        BufferError: the memory is not the CPU's, the dtype is none of flowmx's, or it is no capsule.
    """
    data = opened(dlpack)
    if not data.flags.c_contiguous:
        return array(data, devices.cpu(), data.dtype)
    return _adopted(data if data.flags.writeable else np.asarray(_Shared(data)).view(data.dtype))


def to_dlpack_for_read(data: NDArray) -> Any:
    """A DLPack capsule for reading; blocks until the content is there."""
    return data.to_dlpack_for_read()


def to_dlpack_for_write(data: NDArray) -> Any:
    """A DLPack capsule for writing; blocks until nothing reads or writes the array."""
    return data.to_dlpack_for_write()


__all__ = [
    "arange", "concatenate", "eye", "from_dlpack", "from_numpy", "histogram", "linspace", "load", "load_frombuffer",
    "moveaxis", "onehot_encode", "ones", "save", "split_v2", "to_dlpack_for_read", "to_dlpack_for_write", "zeros",
]  # fmt: skip
