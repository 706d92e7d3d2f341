"""Create sparse arrays: from data and indices, from dense arrays, from SciPy matrices, or with all zeros."""

from __future__ import annotations

import sys
from typing import Any, cast

import numpy as np

from flowmx import devices
from flowmx.devices import Context
from flowmx.errors import ArgumentError, DataError, ShapeError
from flowmx.late_binding import late
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.creation import array as dense_array
from flowmx.ndarray.creation import as_shape, full, on_context
from flowmx.ndarray.creation import empty as dense_empty
from flowmx.ndarray.sparse.arrays import CLASSES, BaseSparseNDArray, CSRNDArray, RowSparseNDArray, allocate_sparse
from flowmx.ops.registry.dtypes import DType, as_dtype
from flowmx.ops.registry.operators import Array
from flowmx.ops.sparse.content import INDEX, Csr, Rows, check_lengths, sorted_rows, validate_content, zero_content
from flowmx.serialization import params

_whole = (int, np.integer)


def zeros(stype: str, shape: Any, ctx: Context | None = None, dtype: Any = None, **kwargs: Any) -> NDArray:
    """Create an array of zeros with a storage type.

    Args:
        stype: ``"csr"``, ``"row_sparse"`` or ``"default"``.
        shape: the length of each axis.
        ctx: the device (default: the current one).
        dtype: the element type (default: float32).
        kwargs: further arguments for dense arrays.

    Raises:
        ValueError: unknown storage type, or ``csr`` and the shape does not have 2 axes.
    """
    if stype == "default":
        return full(shape, 0, ctx, dtype, **kwargs)
    if stype not in CLASSES:
        raise ValueError(f"zeros: unknown storage type {stype!r}, expected 'csr', 'row_sparse' or 'default'")
    device, kind, shape = on_context(ctx), as_dtype(dtype), _as_lengths(shape)
    _check_axes(stype, shape)
    _require_host(device)
    return allocate_sparse(stype, device, shape, kind, zero_content(stype, shape, kind))


def _check_axes(stype: str, shape: tuple[int, ...]) -> None:
    if (stype == "csr" and len(shape) != 2) or not shape:
        raise ValueError(
            f"a {stype} array has {'2 axes' if stype == 'csr' else 'at least 1 axis'}; its shape is {shape}"
        )


def _require_host(device: devices.Device) -> None:
    if device.is_asynchronous:
        raise NotImplementedError(f"sparse arrays are supported only on the CPU, not on {device}")


def empty(stype: str, shape: object, ctx: Context | None = None, dtype: object = None) -> NDArray:
    """Create zeros, as :func:`zeros`."""
    if stype is None:
        raise ArgumentError("empty: stype is None, expected 'csr' or 'row_sparse'")
    return dense_empty(shape, ctx, dtype) if stype == "default" else zeros(stype, shape, ctx, dtype)


def array(source_array: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """Create a sparse array from another one, or from a SciPy matrix.

    Args:
        source_array: a sparse array, or a sparse matrix of SciPy.
        ctx: the device (default: the current one).
        dtype: the element type (default: the source's).

    Raises:
        ValueError: the source is neither.
    """
    if isinstance(source_array, NDArray):
        if not isinstance(source_array, BaseSparseNDArray):
            raise ArgumentError("sparse.array: the source is dense; make it sparse with tostype()")
        kind = source_array.element_type if dtype is None else as_dtype(dtype)
        return source_array.copyto(allocate_sparse(source_array.stype, on_context(ctx), source_array.shape, kind))
    if _is_scipy(source_array):
        matrix = source_array.tocsr()
        kind = as_dtype(matrix.dtype if dtype is None else dtype)
        content = Csr(matrix.data.astype(kind), matrix.indices.astype(INDEX), matrix.indptr.astype(INDEX))
        check_lengths(content, matrix.shape)
        return _create(
            "csr", ctx, matrix.shape, kind, sorted_rows(cast("Csr", validate_content(content, matrix.shape)))
        )
    raise ValueError(f"sparse.array: unexpected source of type {type(source_array)}; use mx.nd.array for dense arrays")


def _is_scipy(source: object) -> bool:
    scipy = sys.modules.get("scipy.sparse")
    return scipy is not None and bool(scipy.issparse(source))


def _create(stype: str, ctx: Context | None, shape: Any, kind: DType, content: Csr | Rows) -> NDArray:
    device = on_context(ctx)
    _require_host(device)
    return allocate_sparse(stype, device, tuple(int(n) for n in shape), kind, content)


def _from_parts(stype: str, ctx: Context | None, shape: object, content: Csr | Rows) -> NDArray:
    """Create an array from the user's parts. As in MXNet, invalid indices raise when the array is first used."""
    shape, kind = _as_lengths(shape), as_dtype(content.data.dtype)
    check_lengths(content, shape)
    try:
        return _create(stype, ctx, shape, kind, validate_content(content, shape))
    except DataError as error:
        cause = error.with_traceback(None)
    device = on_context(ctx)
    result = allocate_sparse(stype, device, shape, kind)

    def refuse() -> Any:
        raise cause

    late("ndarray.sparse.calls").compute(
        device, "csr_matrix" if stype == "csr" else "row_sparse_array", refuse, (), result
    )
    return result


def _as_lengths(shape: Any) -> tuple[int, ...]:
    """Convert a shape to ints.

    Raises:
        ShapeError: a length is not an integer, or negative.
    """
    for each in (shape,) if np.isscalar(shape) else tuple(shape):
        if isinstance(each, str) or each != int(each):
            raise ShapeError(f"shape is {shape!r}, expected whole numbers")
    return as_shape(shape)


def csr_matrix(arg1: Any, shape: Any = None, ctx: Context | None = None, dtype: object = None) -> NDArray:
    """Create a csr matrix.

    Args:
        arg1: ``(data, indices, indptr)``, ``(data, (rows, columns))``, the shape of an empty one, a csr matrix (also
            of SciPy), or anything dense.
        shape: the shape (default: inferred from the other arguments).
        ctx: the device (default: the current one).
        dtype: the element type (default: the source's, float32 for lists).

    Raises:
        ValueError: the parts are inconsistent, or ``shape`` is wrong.
    """
    if isinstance(arg1, tuple):
        if len(arg1) == 3:
            return _csr_from_parts(*arg1, shape, ctx, dtype)
        if len(arg1) != 2:
            raise ValueError(f"csr_matrix: unexpected length of the tuple: {len(arg1)}")
        if isinstance(arg1[1], tuple) and len(arg1[1]) == 2:
            return _csr_from_places(arg1[0], *arg1[1], shape, ctx, dtype)
        _check_shape(arg1, shape)
        return empty("csr", arg1, ctx, dtype)
    if isinstance(arg1, CSRNDArray) or _is_scipy(arg1):
        _check_shape(arg1.shape, shape)
        return array(arg1, ctx, dtype)
    if isinstance(arg1, RowSparseNDArray):
        raise ValueError("csr_matrix: unexpected input of type RowSparseNDArray")
    return _from_dense("csr", arg1, shape, ctx, dtype)


def _from_dense(stype: str, source: object, shape: object, ctx: Context | None, dtype: object) -> NDArray:
    if dtype is None:
        dtype = source.dtype if isinstance(source, (NDArray, np.ndarray)) else np.float32
    dense = dense_array(source, ctx, dtype)
    _check_shape(dense.shape, shape)
    return dense.tostype(stype)


def _check_shape(shape: Any, expected: Any) -> None:
    if shape and expected and tuple(shape) != tuple(expected):
        raise ValueError(f"Shape mismatch detected. {tuple(shape)} v.s. {tuple(expected)}")


def _elements(source: Any, dtype: Any) -> Array:
    """Return the elements to store, from an NDArray, a NumPy array or lists."""
    if isinstance(source, NDArray):
        return source.asnumpy() if dtype is None else source.asnumpy().astype(dtype, copy=False)
    if isinstance(source, np.ndarray):
        return np.array(source, dtype)
    try:
        return np.array(source, np.float32 if dtype is None else dtype)
    except (TypeError, ValueError):
        raise TypeError(f"data: values must be array like object, and is {str(source)[:80]}") from None


def _whole_numbers(name: str, source: object) -> Array:
    """Convert an array of any dtype to indices.

    Raises:
        TypeError: the values are not numbers.
        DataError: a value is not an integer, or exceeds int64.
    """
    try:
        values = source.asnumpy() if isinstance(source, NDArray) else np.asarray(source)
    except ValueError:
        values = np.empty(0, object)  # lists of different lengths
    if not values.size and values.dtype != object:
        return values.astype(INDEX)
    if values.dtype.kind not in "biuf":
        raise TypeError(f"{name}: values must be array like object of whole numbers, and is {str(source)[:80]}")
    with np.errstate(invalid="ignore"):
        indices = values.astype(INDEX)
    wrong = np.argwhere((indices != values) | ((indices < 0) != (values < 0)))
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise DataError(f"{name} has {values[at]} at position {at[0] if len(at) == 1 else at}, expected a whole number")
    return indices


def _csr_from_parts(
    data: Any, indices: object, indptr: object, shape: object, ctx: Context | None, dtype: Any
) -> NDArray:
    values = _elements(data, as_dtype(dtype) if dtype is not None else None)
    columns, starts = _whole_numbers("indices", indices), _whole_numbers("indptr", indptr)
    if shape is None:
        if not columns.size:
            raise ValueError("invalid shape: it cannot be inferred from a matrix with no stored elements: pass it")
        shape = (starts.size - 1, max(0, int(columns.max())) + 1)
    return _from_parts("csr", ctx, shape, Csr(values, columns, starts))


def _csr_from_places(data: object, row: object, col: object, shape: object, ctx: Context | None, dtype: Any) -> NDArray:
    values = data.asnumpy() if isinstance(data, NDArray) else np.asarray(data)
    if dtype is not None:
        values = values.astype(as_dtype(dtype))
    kind = as_dtype(values.dtype)
    rows, columns = _whole_numbers("row", row), _whole_numbers("col", col)
    if shape is None:
        shape = (int(rows.max(initial=-1)) + 1, int(columns.max(initial=-1)) + 1)
    shape = _as_lengths(shape)
    if values.ndim != 1 or not values.shape == rows.shape == columns.shape or len(shape) != 2:
        raise DataError(
            f"csr_matrix: data, row and col have shapes {values.shape}, {rows.shape} and {columns.shape}, expected one "
            f"axis of the same length, and the matrix {shape}, expected two"
        )
    for name, places, length in (("row", rows, shape[0]), ("col", columns, shape[1])):
        outside = np.flatnonzero((places < 0) | (places >= length))
        if len(outside):
            at = int(outside[0])
            raise DataError(f"csr_matrix: {name} has {places[at]} at position {at}, expected 0 to {length - 1}")
    order = np.argsort(rows, kind="stable")
    indptr = np.concatenate([np.zeros(1, INDEX), np.cumsum(np.bincount(rows, minlength=shape[0]))])
    content = sorted_rows(Csr(values[order], columns[order], indptr))
    return _create("csr", ctx, shape, kind, content._replace(data=content.data.astype(kind)))


def row_sparse_array(arg1: object, shape: object = None, ctx: Context | None = None, dtype: object = None) -> NDArray:
    """Create a row_sparse array.

    Args:
        arg1: ``(data, indices)``, the shape of an empty one, a row_sparse array, or anything dense.
        shape: the shape (default: inferred from the other arguments).
        ctx: the device (default: the current one).
        dtype: the element type (default: the source's, float32 for lists).

    Raises:
        ValueError: the parts are inconsistent, or ``shape`` is wrong.
    """
    if isinstance(arg1, tuple):
        if len(arg1) < 2:
            raise ValueError(f"row_sparse_array: unexpected length of the tuple: {len(arg1)}")
        if len(arg1) > 2 or all(isinstance(each, _whole) for each in arg1):
            _check_shape(arg1, shape)
            return empty("row_sparse", arg1, ctx, dtype)
        return _rows_from_parts(arg1[0], arg1[1], shape, ctx, dtype)
    if isinstance(arg1, RowSparseNDArray):
        _check_shape(arg1.shape, shape)
        return array(arg1, ctx, dtype)
    if isinstance(arg1, CSRNDArray):
        raise ValueError("row_sparse_array: unexpected input of type CSRNDArray")
    return _from_dense("row_sparse", arg1, shape, ctx, dtype)


def _rows_from_parts(data: Any, indices: object, shape: Any, ctx: Context | None, dtype: Any) -> NDArray:
    values = _elements(data, as_dtype(dtype) if dtype is not None else None)
    rows = _whole_numbers("indices", indices)
    if shape is None:
        if not rows.size:
            raise ValueError("invalid shape: it cannot be inferred if nothing is stored; pass shape")
        shape = (max(0, int(rows.max())) + 1, *values.shape[1:])
    if 0 in tuple(shape)[1:]:
        raise ValueError(f"invalid shape: {tuple(shape)}, expected rows that are not empty")
    return _from_parts("row_sparse", ctx, shape, Rows(values, rows))


def to_saved(x: NDArray) -> params.SparseParts:
    """Return a sparse array in the form that files store; blocks until it is computed."""
    content = cast("BaseSparseNDArray", x)._content()
    indices = (content.indptr, content.indices) if isinstance(content, Csr) else (content.indices,)
    return params.SparseParts(x.shape, content.data, indices)


def from_saved(saved: params.SparseParts) -> NDArray:
    """Create a sparse array on the CPU from a file's content."""
    shape, data, indices = saved
    content = Csr(data, indices[1], indices[0]) if len(indices) == 2 else Rows(data, indices[0])
    check_lengths(content, shape)
    kind = "csr" if len(indices) == 2 else "row_sparse"
    return _create(kind, devices.cpu(), shape, data.dtype, validate_content(content, shape))


def from_bytes(handle: Any) -> NDArray:
    """Create a sparse array from the bytes in an MXNet pickle."""
    return from_saved(params.loads_one(handle, keep_sparse=True))


__all__ = ["array", "csr_matrix", "empty", "row_sparse_array", "zeros"]
