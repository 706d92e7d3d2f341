"""Conversion of tables to arrays: pandas, polars, Arrow, Hugging Face's ``datasets``; none of them is imported.

A table is recognized by its columns, which have names and can be read one by one; a column (pandas' and polars'
``Series``, Arrow's arrays) by its ``to_numpy``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flowmx.ops.registry.operators import Array

__all__ = ["as_array", "is_dataset", "is_table"]


def is_table(value: object) -> bool:
    """Return whether a value is a table or a column of another library."""
    if isinstance(value, np.ndarray) or hasattr(value, "asnumpy"):
        return False
    return _names(value) is not None or hasattr(value, "to_numpy")


def is_dataset(value: object) -> bool:
    """Return whether a value is a Hugging Face data set, whose rows are read by number."""
    return hasattr(value, "column_names") and hasattr(value, "with_format")


def as_array(where: str, value: object) -> Array:
    """Convert a table to an array (n, columns) in the columns' common dtype; a column to (n,).

    A column of arrays of the same shape has further axes, and must be the only column.

    Args:
        where: prefix of error messages.
        value: the table or column.

    Raises:
        TypeError: a column is not numeric.
        ValueError: a column has missing values, its elements differ in shape, or two columns have the same name.
    """
    names = _names(value)
    if names is None:
        return _column(f"{where}: column {_name(value)}", value)
    if not names:
        raise ValueError(f"{where}: the table has no columns, expected at least one")
    if len(set(names)) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{where}: two columns are called {duplicate!r}, expected different names")
    columns: dict[object, Array] = dict(_columns(where, value, names))
    nested = next((name for name, column in columns.items() if column.ndim > 1), None)
    if nested is None:
        return np.stack(list(columns.values()), axis=1)
    if len(names) > 1:
        raise ValueError(
            f"{where}: column {nested!r} holds arrays of shape {columns[nested].shape[1:]}, which cannot be combined "
            "with other columns in one array: pass the columns by name, as {name: table[name], ...}"
        )
    return columns[nested]


def _columns(where: str, value: Any, names: Sequence[object]) -> Iterator[tuple[Any, Array]]:
    source = value.with_format("numpy") if is_dataset(value) else value
    for name in names:
        # Newer versions of `datasets` return a lazy column; a slice makes it an array.
        column = source[:][name] if is_dataset(value) else source[name]
        yield name, _column(f"{where}: column {name!r}", column)


def _names(value: object) -> list[Any] | None:
    """Return the names of a table's columns; None if the value is not a table."""
    if isinstance(value, (np.ndarray, dict, list, tuple)):
        return None
    for attribute in ("column_names", "columns"):
        names = getattr(value, attribute, None)
        if names is not None and not callable(names):
            return list(names)
    return None


def _name(column: object) -> str:
    name = getattr(column, "name", None)
    return repr(name) if name is not None and not callable(name) else "(without a name)"


def _column(where: str, column: Any) -> Array:
    missing = _count_missing(column)
    if not missing:
        try:
            array: Array = np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)
        except ValueError as error:
            raise ValueError(
                f"{where} cannot be converted to an array, expected elements of the same shape ({error})"
            ) from error
        if array.dtype.kind not in "biufV" or array.dtype.names is not None:
            example = f", such as {array.reshape(-1)[0]!r}" if array.size else ""
            dtype = getattr(column, "dtype", getattr(column, "type", array.dtype))
            raise TypeError(
                f"{where} holds {dtype}{example}, expected numbers: drop it, or convert it to numbers "
                "(categories into their codes)"
            )
        missing = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
    if missing:
        raise ValueError(
            f"{where} has {missing} missing values of {len(column)}, expected none: fill them in or drop their rows"
        )
    return array


def _count_missing(column: object) -> int:
    """Return the number of missing values that a column reports."""
    if hasattr(column, "isna"):  # pandas
        return int(column.isna().sum())
    nulls = getattr(column, "null_count", 0)  # a method of polars', an attribute of Arrow's
    return int(nulls() if callable(nulls) else nulls)
