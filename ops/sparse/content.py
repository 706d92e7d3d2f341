"""The content of sparse arrays, as NumPy arrays, and its conversion from and to dense arrays.

Index arrays never change, so several contents may share them. ``data`` belongs to one content only, since updates of
stored rows write to it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from flowmx.errors import DataError
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Shape

INDEX = np.dtype(np.int64)
"""The dtype of all indices; MXNet supports no other."""


class Csr(NamedTuple):
    """A matrix in compressed sparse rows.

    Attributes:
        data: the stored elements, row by row.
        indices: the columns of the stored elements, int64.
        indptr: the start of each row in data and indices, and the end of the last row; int64 of shape (rows + 1,).
    """

    data: Array
    indices: Array
    indptr: Array


class Rows(NamedTuple):
    """An array that stores some of its rows (slices along axis 0); the other rows are zero.

    Attributes:
        data: the stored rows.
        indices: the row numbers, int64, ascending.
    """

    data: Array
    indices: Array


Content = Csr | Rows


def zero_content(stype: str, shape: Shape, dtype: DType) -> Content:
    """Return the content of an array of zeros."""
    if stype == "csr":
        return Csr(np.empty(0, dtype), np.empty(0, INDEX), np.zeros(shape[0] + 1, INDEX))
    return Rows(np.empty((0, *shape[1:]), dtype), np.empty(0, INDEX))


def from_dense(array: Array, stype: str) -> Content:
    """Return the content with the nonzero elements of a dense array."""
    if stype == "csr":
        rows, columns = np.nonzero(array)
        return Csr(
            array[rows, columns], np.ascontiguousarray(columns), _starts(np.bincount(rows, minlength=len(array)))
        )
    flat = array.reshape(len(array), math.prod(array.shape[1:]))
    rows = np.flatnonzero(flat.any(axis=1)) if flat.size else np.empty(0, INDEX)
    return Rows(array[rows], rows)


def to_dense(content: Content, shape: Shape) -> Array:
    """Return the dense array; if an element is stored twice, the last value is used."""
    array = np.zeros(shape, content.data.dtype)
    write_into(content, array)
    return array


def as_dense(content: Array | Content, shape: Shape) -> Array:
    """Return the dense array of a content, which may be dense already."""
    return content if isinstance(content, np.ndarray) else to_dense(content, shape)


def write_into(content: Content, target: Array) -> None:
    """Write the stored elements into a dense array."""
    if isinstance(content, Csr):
        target[row_numbers(content), content.indices] = content.data
    else:
        target[content.indices] = content.data


def copy_content(content: Content, dtype: DType | None = None) -> Content:
    """Return the content with a copy of its data, cast if ``dtype`` is given."""
    return content._replace(data=content.data.astype(dtype or content.data.dtype))


def row_numbers(content: Csr) -> Array:
    """Return the row of each stored element."""
    return np.repeat(np.arange(len(content.indptr) - 1), np.diff(content.indptr))


def sorted_rows(content: Csr) -> Csr:
    """Return the matrix with the columns of each row in ascending order, and duplicate elements summed."""
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
    """Return the distinct numbers of an array of any shape, ascending, int64."""
    flat = numbers.astype(INDEX, copy=False).ravel()
    if not (flat[1:] > flat[:-1]).all():
        flat = np.sort(flat)  # many times faster than np.unique, which hashes
        flat = flat[np.concatenate(([True], flat[1:] != flat[:-1]))]
    return flat.copy() if np.may_share_memory(flat, numbers) else flat


def union(*numbers: Array) -> Array:
    """Return the distinct numbers of several arrays, ascending."""
    return distinct(np.concatenate(numbers))


class Unordered(Rows):
    """Stored rows that are not in ascending order; sort them with :meth:`in_order` before a computation."""

    __slots__ = ()

    def in_order(self) -> Rows:
        """Return the rows in ascending order."""
        order = np.argsort(self.indices)
        return Rows(self.data[order], self.indices[order])


def check_lengths(content: Content, shape: Shape) -> None:
    """Check that the ranks and lengths of a content's arrays match each other and the array's shape.

    Raises:
        DataError: they do not match.
    """
    if isinstance(content, Csr):
        data, indices, indptr = content
        if len(shape) != 2 or any(part.ndim != 1 for part in content):
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
                f"csr: indptr has {len(indptr)} elements, expected {shape[0] + 1}: the start of each of "
                f"{shape[0]} rows, and the end of the last"
            )
        return
    data, indices = content
    if indices.ndim != 1 or not shape or data.shape != (len(indices), *shape[1:]):
        raise DataError(
            f"row_sparse: invalid shape: data has shape {data.shape} and indices {indices.shape}, expected "
            f"{(len(indices) if indices.ndim else 1, *shape[1:])} and one axis, for an array of shape {tuple(shape)}"
        )


def validate_content(content: Content, shape: Shape) -> Content:
    """Return a content from a user after a check of all its indices; its lengths must match.

    Elements after the last row of a matrix are dropped. Columns may be in any order and repeated, as in MXNet: the last
    value is used. Rows may be in any order.

    Raises:
        DataError: an index is out of range, rows of a matrix overlap, or a row is stored twice.
    """
    if isinstance(content, Csr):
        data, indices, indptr = content
        if indptr[0] != 0:
            raise DataError(f"csr: indptr begins with {indptr[0]}, expected 0, the start of the first row")
        _raise_invalid(
            np.flatnonzero(indptr[1:] < indptr[:-1]) + 1, "csr: indptr", indptr, "at least the number before"
        )
        count = int(indptr[-1])
        if count > len(indices):
            raise DataError(f"csr: indptr ends with {count}, expected at most {len(indices)}, the number of elements")
        content = Csr(data[:count], indices[:count], indptr)
        outside = np.flatnonzero((content.indices < 0) | (content.indices >= shape[1]))
        _raise_invalid(outside, "csr: indices", indices, f"a column from 0 to {shape[1] - 1}")
        return content
    indices = content.indices
    outside = np.flatnonzero((indices < 0) | (indices >= shape[0]))
    _raise_invalid(outside, "row_sparse: indices", indices, f"a row from 0 to {shape[0] - 1}")
    if (indices[1:] > indices[:-1]).all():
        return content
    order = np.argsort(indices, kind="stable")
    repeated = order[1:][indices[order[1:]] == indices[order[:-1]]]
    _raise_invalid(repeated, "row_sparse: indices", indices, "each row once; sum duplicate rows first")
    return Unordered(*content)


def _raise_invalid(positions: Array, name: str, indices: Array, expected: str) -> None:
    """Raise a DataError for the first invalid index, if there are positions of invalid ones."""
    if len(positions):
        index = int(positions.min())
        raise DataError(f"{name} has {int(indices[index])} at position {index}, expected {expected}")


def check_format(content: Content, shape: Shape, full: bool) -> None:
    """Check the format of a content.

    Args:
        content: the content.
        shape: the shape of the array.
        full: check every index, not only the lengths.

    Raises:
        DataError: the content is invalid for this shape.
    """
    check_lengths(content, shape)
    if isinstance(content, Csr):
        indices, indptr = content.indices, content.indptr
        if indptr[0] != 0 or indptr[-1] != len(indices):
            raise DataError(f"csr: indptr goes from {indptr[0]} to {indptr[-1]}, expected from 0 to {len(indices)}")
    if not full:
        return
    if isinstance(validate_content(content, shape), Unordered):
        raise DataError("row_sparse: indices are not ascending row numbers")
    if isinstance(content, Csr):
        rows = row_numbers(content)
        if ((rows[1:] == rows[:-1]) & (indices[1:] <= indices[:-1])).any():
            raise DataError("csr: the columns of a row are not ascending")
