"""Tables of other libraries as arrays: pandas, polars, Arrow, Hugging Face's ``datasets``; none of them is imported.

A table is told by its columns, which have names and can be asked for one by one; a column (pandas' and polars'
``Series``, Arrow's arrays) by its ``to_numpy``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["as_array", "is_dataset", "is_table"]

Array = npt.NDArray[Any]


def is_table(value: Any) -> bool:
    """True for tables and columns of other libraries."""
    if isinstance(value, np.ndarray) or hasattr(value, "asnumpy"):
        return False
    return _names(value) is not None or hasattr(value, "to_numpy")


def is_dataset(value: Any) -> bool:
    """True for a data set of Hugging Face's, which gives its rows by number."""
    return hasattr(value, "column_names") and hasattr(value, "with_format")


def as_array(where: str, value: Any) -> Array:
    """The content of a table, (n, columns), in the dtype that its columns share; of a column (n,).

    A column of arrays of one shape has further axes, and stands alone.

    Args:
        where: begins the errors.
        value: the table or column.

    Raises:
        TypeError: a column holds no numbers.
        ValueError: a column has missing values, its elements differ in shape, or two columns have one name.
    """
    names = _names(value)
    if names is None:
        return _column(f"{where}: column {_name(value)}", value)
    if not names:
        raise ValueError(f"{where}: the table has no columns, expected at least one")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{where}: two columns are called {twice!r}, expected names that differ")
    found: dict[Any, Array] = dict(_columns(where, value, names))
    deep = next((name for name, column in found.items() if column.ndim > 1), None)
    if deep is None:
        return np.stack(list(found.values()), axis=1)
    if len(names) > 1:
        raise ValueError(
            f"{where}: column {deep!r} holds arrays of shape {found[deep].shape[1:]}, which can not stand beside the "
            "other columns in one array: give the columns by name, as {name: table[name], ...}"
        )
    return found[deep]


def _columns(where: str, value: Any, names: list[Any]) -> Iterator[tuple[Any, Array]]:
    source = value.with_format("numpy") if is_dataset(value) else value
    for name in names:
        # Newer versions of `datasets` give a column that reads as it is asked: a slice makes it an array.
        column = source[:][name] if is_dataset(value) else source[name]
        yield name, _column(f"{where}: column {name!r}", column)


def _names(value: Any) -> list[Any] | None:
    """The names of a table's columns; None of what is no table."""
    if isinstance(value, (np.ndarray, dict, list, tuple)):
        return None
    for attribute in ("column_names", "columns"):
        names = getattr(value, attribute, None)
        if names is not None and not callable(names):
            return list(names)
    return None


def _name(column: Any) -> str:
    name = getattr(column, "name", None)
    return repr(name) if name is not None and not callable(name) else "(without a name)"


def _column(where: str, column: Any) -> Array:
    lacking = _missing(column)
    if not lacking:
        try:
            array: Array = np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)
        except ValueError as error:
            raise ValueError(f"{where} can not be made an array, expected elements of one shape ({error})") from error
        if array.dtype.kind not in "biufV" or array.dtype.names is not None:
            example = f", such as {array.reshape(-1)[0]!r}" if array.size else ""
            dtype = getattr(column, "dtype", getattr(column, "type", array.dtype))
            raise TypeError(
                f"{where} holds {dtype}{example}, expected numbers: leave it out, or turn it into numbers "
                "(categories into their codes)"
            )
        lacking = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
    if lacking:
        raise ValueError(
            f"{where} has {lacking} missing values of {len(column)}, expected none: fill them in or drop their rows"
        )
    return array


def _missing(column: Any) -> int:
    """The number of values that a column says it lacks."""
    if hasattr(column, "isna"):  # pandas
        return int(column.isna().sum())
    nulls = getattr(column, "null_count", 0)  # a method of polars', an attribute of Arrow's
    return int(nulls() if callable(nulls) else nulls)
