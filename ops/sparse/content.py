"""The content of sparse arrays: a few NumPy arrays each, and the ways from and to dense ones.

The arrays of indices never change once they are there, so several contents may have the same; ``data`` belongs to one
content alone, since updates of stored rows write into it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flowmx.errors import DataError
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Shape

Array = np.ndarray[Any, Any]
INDEX = np.dtype(np.int64)
"""The dtype of all indices, MXNet's only one."""


class Csr(NamedTuple):
    """A matrix in compressed sparse rows.

    Attributes:
        data: the stored elements, row by row.
        indices: the column of each, int64.
        indptr: where each row begins in both, and the end of the last, int64 of shape (rows + 1,).
    """

    data: Array
    indices: Array
    indptr: Array


class Rows(NamedTuple):
    """An array of which some rows (parts along axis 0) are stored, the others being zero.

    Attributes:
        data: the stored rows.
        indices: the number of each, int64, ascending.
    """

    data: Array
    indices: Array


Content = Csr | Rows


def nothing(stype: str, shape: Shape, dtype: DType) -> Content:
    """The content of zeros."""
    if stype == "csr":
        return Csr(np.empty(0, dtype), np.empty(0, INDEX), np.zeros(shape[0] + 1, INDEX))
    return Rows(np.empty((0, *shape[1:]), dtype), np.empty(0, INDEX))


def from_dense(array: Array, stype: str) -> Content:
    """Store what differs from zero of a dense array."""
    if stype == "csr":
        rows, columns = np.nonzero(array)
        return Csr(
            array[rows, columns], np.ascontiguousarray(columns), _starts(np.bincount(rows, minlength=len(array)))
        )
    flat = array.reshape(len(array), -1)
    rows = np.flatnonzero(flat.any(axis=1)) if flat.size else np.empty(0, INDEX)
    return Rows(array[rows], rows)


def to_dense(content: Content, shape: Shape) -> Array:
    """The dense array; where an element is stored twice, the last one counts."""
    made = np.zeros(shape, content.data.dtype)
    write_into(content, made)
    return made


def write_into(content: Content, target: Array) -> None:
    """Write the stored elements into a dense array."""
    if isinstance(content, Csr):
        target[row_numbers(content), content.indices] = content.data
    else:
        target[content.indices] = content.data


def copied(content: Content, dtype: DType | None = None) -> Content:
    """The content with elements of its own, as another dtype if one is given."""
    return content._replace(data=content.data.astype(dtype or content.data.dtype))


def row_numbers(content: Csr) -> Array:
    """The row of each stored element."""
    return np.repeat(np.arange(len(content.indptr) - 1), np.diff(content.indptr))


def sorted_rows(content: Csr) -> Csr:
    """The matrix with the columns of each row in ascending order, elements of one place summed."""
    rows = row_numbers(content)
    inside = rows[1:] == rows[:-1]
    if not (inside & (content.indices[1:] <= content.indices[:-1])).any():
        return content
    order = np.lexsort((content.indices, rows))
    rows, columns, data = rows[order], content.indices[order], content.data[order]
    first = np.concatenate(([True], (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])))
    if not first.all():
        data = np.add.reduceat(data, np.flatnonzero(first)).astype(data.dtype, copy=False)
        rows, columns = rows[first], columns[first]
    return Csr(data, columns, _starts(np.bincount(rows, minlength=len(content.indptr) - 1)))


def _starts(counts: Array) -> Array:
    starts = np.zeros(len(counts) + 1, INDEX)
    np.cumsum(counts, out=starts[1:])
    return starts


def check(content: Content, shape: Shape, full: bool) -> None:
    """Check the form of a content.

    Args:
        content: the content.
        shape: the array's.
        full: look at every index, not at the lengths alone.

    Raises:
        DataError: it is not that of such an array.
    """
    if isinstance(content, Csr):
        _check_csr(content, shape, full)
        return
    indices = content.indices
    if content.data.shape != (len(indices), *shape[1:]):
        raise DataError(f"row_sparse: data has shape {content.data.shape}, expected {(len(indices), *shape[1:])}")
    if full and len(indices):
        if indices[0] < 0 or (indices[1:] <= indices[:-1]).any():
            raise DataError("row_sparse: indices are not ascending row numbers from 0")
        if indices[-1] >= shape[0]:
            raise DataError(f"row_sparse: indices reach row {int(indices[-1])}, of {shape[0]} rows")


def _check_csr(content: Csr, shape: Shape, full: bool) -> None:
    data, indices, indptr = content
    if indptr.shape != (shape[0] + 1,):
        raise DataError(f"csr: indptr has shape {indptr.shape}, expected {(shape[0] + 1,)}")
    if data.shape != indices.shape:
        raise DataError(f"csr: data has shape {data.shape} and indices {indices.shape}, expected the same")
    if indptr[0] != 0 or indptr[-1] != len(indices):
        raise DataError(f"csr: indptr goes from {indptr[0]} to {indptr[-1]}, expected from 0 to {len(indices)}")
    if not full:
        return
    if (indptr[1:] < indptr[:-1]).any():
        raise DataError("csr: indptr is not ascending")
    if len(indices) and (indices.min() < 0 or indices.max() >= shape[1]):
        raise DataError(f"csr: indices are not columns from 0 to {shape[1] - 1}")
    rows = row_numbers(content)
    if ((rows[1:] == rows[:-1]) & (indices[1:] <= indices[:-1])).any():
        raise DataError("csr: the columns of a row are not ascending")
