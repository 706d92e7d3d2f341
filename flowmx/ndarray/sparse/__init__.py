"""``mx.nd.sparse``: sparse arrays, and the operators that support them."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from flowmx.errors import ParameterError
from flowmx.ndarray import binary, functions
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.sparse import calls
from flowmx.ndarray.sparse.arrays import BaseSparseNDArray, CSRNDArray, RowSparseNDArray, allocate_sparse
from flowmx.ndarray.sparse.creation import array, csr_matrix, empty, row_sparse_array, zeros
from flowmx.ops.registry.namespaces import SPARSE
from flowmx.ops.sparse.content import INDEX, Rows, distinct
from flowmx.ops.sparse.slicing import retain_rows

__all__ = [
    "BaseSparseNDArray", "CSRNDArray", "RowSparseNDArray", "add", "array", "csr_matrix", "divide", "empty", "multiply",
    "row_sparse_array", "subtract", "zeros",
]  # fmt: skip
__all__ += SPARSE


def _compute_two(name: str, swapped: str, lhs: Any, rhs: Any) -> NDArray:
    """Return the result of a function of two arrays or numbers."""
    sparse = isinstance(lhs, BaseSparseNDArray) or isinstance(rhs, BaseSparseNDArray)
    result: NDArray
    if not sparse:
        result = getattr(binary, name)(lhs, rhs)
    elif isinstance(lhs, BaseSparseNDArray):
        result = getattr(lhs, f"__{swapped}__")(rhs)
    elif isinstance(lhs, NDArray):
        same = tuple(lhs.dims) == tuple(rhs.dims)
        result = functions.op(("elemwise_" if same else "broadcast_") + _SHORT[name], lhs, rhs)
    else:
        result = getattr(rhs, f"__r{swapped}__")(lhs)
    return result


_SHORT = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div"}


def add(lhs: NDArray | float, rhs: NDArray | float) -> NDArray:
    """Elementwise add, with broadcasting; each side is an array or a number."""
    return _compute_two("add", "add", lhs, rhs)


def subtract(lhs: NDArray | float, rhs: NDArray | float) -> NDArray:
    """Elementwise subtract, with broadcasting; each side is an array or a number."""
    return _compute_two("subtract", "sub", lhs, rhs)


def multiply(lhs: NDArray | float, rhs: NDArray | float) -> NDArray:
    """Elementwise multiply, with broadcasting; each side is an array or a number."""
    return _compute_two("multiply", "mul", lhs, rhs)


def divide(lhs: NDArray | float, rhs: NDArray | float) -> NDArray:
    """Elementwise divide, with broadcasting; each side is an array or a number."""
    return _compute_two("divide", "truediv", lhs, rhs)


def retain(
    data: object = None, indices: object = None, out: object = None, name: object = None, **kwargs: object
) -> RowSparseNDArray:
    """Select rows of a row_sparse array by number, as a row_sparse array.

    Args:
        data: the array.
        indices: row numbers, an array of any dtype.
        out: an array to write into.
        name: kept for MXNet's scripts.
        kwargs: must be empty.
    """
    if kwargs:
        raise ParameterError(f"retain: unknown parameter {next(iter(kwargs))!r}, expected data and indices")
    rows: RowSparseNDArray = functions.op("_sparse_retain", data, indices, **({} if out is None else {"out": out}))
    return rows


def distinct_rows(array: NDArray, row_id: Any) -> RowSparseNDArray:
    """Select the rows of a row_sparse array whose numbers ``row_id`` (any shape) contains, each once, in order."""
    rows = cast(
        "RowSparseNDArray", allocate_sparse("row_sparse", array.storage.device, array.shape, array.element_type)
    )
    ids = row_id.as_in_context(array.context)
    calls.compute(array.storage.device, "retain", _distinct, (array, ids), rows)
    return rows


def _distinct(content: Any, row_id: Any) -> Rows:
    return retain_rows(None, content, distinct(row_id))


def with_all_rows(array: NDArray) -> RowSparseNDArray:
    """Create a row_sparse array with all rows of a dense one. It takes over the memory, which nothing else may use."""
    rows = cast(
        "RowSparseNDArray", allocate_sparse("row_sparse", array.storage.device, array.shape, array.element_type)
    )
    calls.compute(
        array.storage.device, "cast_storage", lambda x: Rows(x, np.arange(len(x), dtype=INDEX)), (array,), rows
    )
    return rows


def __getattr__(name: str) -> Any:
    return getattr(functions, "_sparse_adagrad_update" if name == "adagrad_update" else name)


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(functions)})
