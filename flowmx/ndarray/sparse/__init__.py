"""``mx.nd.sparse``: sparse arrays, and the operators that support them."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.errors import ParameterError
from flowmx.ndarray import binary, functions
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.sparse import calls
from flowmx.ndarray.sparse.arrays import BaseSparseNDArray, CSRNDArray, RowSparseNDArray, allocated
from flowmx.ndarray.sparse.creation import array, csr_matrix, empty, row_sparse_array, zeros
from flowmx.ops.registry.namespaces import SPARSE
from flowmx.ops.sparse.content import INDEX, Rows, distinct
from flowmx.ops.sparse.slicing import retain_rows

__all__ = [
    "BaseSparseNDArray", "CSRNDArray", "RowSparseNDArray", "add", "array", "csr_matrix", "divide", "empty", "multiply",
    "row_sparse_array", "subtract", "zeros",
]  # fmt: skip
__all__ += SPARSE


def _two(name: str, swapped: str) -> Any:
    def function(lhs: Any, rhs: Any) -> Any:
        sparse = isinstance(lhs, BaseSparseNDArray) or isinstance(rhs, BaseSparseNDArray)
        if not sparse:
            return getattr(binary, name)(lhs, rhs)
        if isinstance(lhs, BaseSparseNDArray):
            return getattr(lhs, f"__{swapped}__")(rhs)
        if isinstance(lhs, NDArray):
            same = tuple(lhs.dims) == tuple(rhs.dims)
            return functions.op(("elemwise_" if same else "broadcast_") + _SHORT[name], lhs, rhs)
        return getattr(rhs, f"__r{swapped}__")(lhs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Elementwise {name}, with broadcasting; each side is an array or a number."
    return function


_SHORT = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div"}
add, subtract = _two("add", "add"), _two("subtract", "sub")
multiply, divide = _two("multiply", "mul"), _two("divide", "truediv")


def retain(
    data: object = None, indices: object = None, out: object = None, name: object = None, **kwargs: object
) -> Any:
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
    return functions.op("_sparse_retain", data, indices, **({} if out is None else {"out": out}))


def distinct_rows(array: NDArray, row_id: Any) -> Any:
    """Select the rows of a row_sparse array whose numbers ``row_id`` (any shape) contains, each once, in order."""
    rows = allocated("row_sparse", array.storage.device, array.shape, array.element_type)
    ids = row_id.as_in_context(array.context)
    calls.compute(array.storage.device, "retain", _distinct, (array, ids), rows)
    return rows


def _distinct(content: Any, row_id: Any) -> Rows:
    return retain_rows(None, content, distinct(row_id))


def with_all_rows(array: NDArray) -> Any:
    """Create a row_sparse array with all rows of a dense one. It takes over the memory, which nothing else may use."""
    rows = allocated("row_sparse", array.storage.device, array.shape, array.element_type)
    calls.compute(
        array.storage.device, "cast_storage", lambda x: Rows(x, np.arange(len(x), dtype=INDEX)), (array,), rows
    )
    return rows


def __getattr__(name: str) -> Any:
    return getattr(functions, "_sparse_adagrad_update" if name == "adagrad_update" else name)


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(functions)})
