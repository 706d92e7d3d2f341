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


def distinct(numbers: Array) -> Array:
    """The numbers of an array of any shape, each once, ascending, int64."""
    flat = numbers.astype(INDEX, copy=False).ravel()
    if not (flat[1:] > flat[:-1]).all():
        flat = np.sort(flat)  # np.unique hashes, which takes many times as long
        flat = flat[np.concatenate(([True], flat[1:] != flat[:-1]))]
    return flat.copy() if np.may_share_memory(flat, numbers) else flat


def union(*numbers: Array) -> Array:
    """The numbers that are in one of several arrays, each once, ascending."""
    return distinct(np.concatenate(numbers))


class Unordered(Rows):
    """Rows as they were given, in another order than that of their numbers; whoever computes reads them in order."""

    __slots__ = ()

    def in_order(self) -> Rows:
        """The rows in the order of their numbers."""
        order = np.argsort(self.indices)
        return Rows(self.data[order], self.indices[order])


def check_lengths(content: Content, shape: Shape) -> None:
    """Check that the parts of a content have the axes and lengths that fit each other and the array's shape.

    Raises:
        DataError: they do not.
    """
    if isinstance(content, Csr):
        data, indices, indptr = content
        if len(shape) != 2 or any(each.ndim != 1 for each in content):
            raise DataError(
                f"csr: invalid shape: data, indices and indptr have shapes {data.shape}, {indices.shape} and "
                f"{indptr.shape}, expected one axis each, and the matrix {tuple(shape)}, expected two"
            )
        if data.shape != indices.shape:
            raise DataError(
                f"csr: data has {len(data)} elements and indices {len(indices)}, expected a column for each element"
            )
        if len(indptr) != shape[0] + 1:
            raise DataError(
                f"csr: indptr has {len(indptr)} elements, expected {shape[0] + 1}: where each of {shape[0]} rows "
                "begins, and the last ends"
            )
        return
    data, indices = content
    if indices.ndim != 1 or not shape or data.shape != (len(indices), *shape[1:]):
        raise DataError(
            f"row_sparse: invalid shape: data has shape {data.shape} and indices {indices.shape}, expected "
            f"{(len(indices) if indices.ndim else 1, *shape[1:])} and one axis, for an array of shape {tuple(shape)}"
        )


def usable(content: Content, shape: Shape) -> Content:
    """A content made of parts that were given, whose lengths fit: all of it lies inside of the array.

    What follows the last element of a matrix is cut off. Columns may be in any order and repeated, as in MXNet: the
    last counts. Rows may be in any order.

    Raises:
        DataError: an index is none of the array, rows of a matrix overlap, or a row is stored twice.
    """
    if isinstance(content, Csr):
        data, indices, indptr = content
        if indptr[0] != 0:
            raise DataError(f"csr: indptr begins with {indptr[0]}, expected 0, where the first row begins")
        _refuse(np.flatnonzero(indptr[1:] < indptr[:-1]) + 1, "csr: indptr", indptr, "no less than the one before")
        count = int(indptr[-1])
        if count > len(indices):
            raise DataError(f"csr: indptr ends with {count}, expected at most {len(indices)}, the number of elements")
        content = Csr(data[:count], indices[:count], indptr)
        outside = np.flatnonzero((content.indices < 0) | (content.indices >= shape[1]))
        _refuse(outside, "csr: indices", indices, f"a column: it is not from 0 to {shape[1] - 1}")
        return content
    indices = content.indices
    outside = np.flatnonzero((indices < 0) | (indices >= shape[0]))
    _refuse(outside, "row_sparse: indices", indices, f"a row: it is not from 0 to {shape[0] - 1}")
    if (indices[1:] > indices[:-1]).all():
        return content
    order = np.argsort(indices, kind="stable")
    again = order[1:][indices[order[1:]] == indices[order[:-1]]]
    _refuse(again, "row_sparse: indices", indices, "each row once: sum rows of one number before")
    return Unordered(*content)


def _refuse(positions: Array, name: str, indices: Array, expected: str) -> None:
    """Raise where there are wrong indices, at some positions."""
    if len(positions):
        at = int(positions.min())
        raise DataError(f"{name} has {int(indices[at])} at position {at}, expected {expected}")


def check(content: Content, shape: Shape, full: bool) -> None:
    """Check the form of a content.

    Args:
        content: the content.
        shape: the array's.
        full: look at every index, not at the lengths alone.

    Raises:
        DataError: it is not that of such an array.
    """
    check_lengths(content, shape)
    if isinstance(content, Csr):
        indices, indptr = content.indices, content.indptr
        if indptr[0] != 0 or indptr[-1] != len(indices):
            raise DataError(f"csr: indptr goes from {indptr[0]} to {indptr[-1]}, expected from 0 to {len(indices)}")
    if not full:
        return
    if isinstance(usable(content, shape), Unordered):
        raise DataError("row_sparse: indices are not ascending row numbers")
    if isinstance(content, Csr):
        rows = row_numbers(content)
        if ((rows[1:] == rows[:-1]) & (indices[1:] <= indices[:-1])).any():
            raise DataError("csr: the columns of a row are not ascending")
