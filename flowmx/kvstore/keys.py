"""Keys and the arrays that are given with them: MXNet's forms of arguments, as pairs of a key and its arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.errors import KVStoreError
from flowmx.ndarray import NDArray

Key = int | str


def grouped(call: str, keys: Any, values: Any) -> dict[Key, list[NDArray]]:
    """The arrays of each key, in the order given; those of a key that is named twice stand together.

    Args:
        call: the method, for messages.
        keys: a key, or a list of them.
        values: for one key an array or a list of arrays (one for each device); for a list of keys, a list of those.

    Raises:
        TypeError: a key is neither int nor str, or something is no array.
        KVStoreError: keys of both kinds, or not as many values as keys.
    """
    if not isinstance(keys, (list, tuple)):
        return {checked(call, keys): listed(call, keys, values)}
    if not isinstance(values, (list, tuple)) or len(keys) != len(values):
        given = f"{len(values)} values" if isinstance(values, (list, tuple)) else type(values).__name__
        raise KVStoreError(f"{call}: {len(keys)} keys came with {given}, expected a list with one entry for each key")
    if len({isinstance(key, str) for key in keys}) > 1:
        raise KVStoreError(f"{call}: the keys {list(keys)!r} are of both kinds, expected either all int or all str")
    found: dict[Key, list[NDArray]] = {}
    for key, value in zip(keys, values, strict=True):
        arrays = [value] if isinstance(value, NDArray) else listed(call, key, value)
        if key in found:
            found[key] += arrays
        else:
            found[checked(call, key)] = arrays
    return found


def checked(call: str, key: Any) -> Key:
    """The key, if it is one."""
    if isinstance(key, str) or type(key) is int:
        return key
    raise TypeError(f"{call}: the key is {key!r}, expected an int or a str")


def listed(call: str, key: Any, value: Any) -> list[NDArray]:
    """The arrays given for one key."""
    arrays = [value] if isinstance(value, NDArray) else value
    if not isinstance(arrays, (list, tuple)) or not all(isinstance(each, NDArray) for each in arrays):
        raise TypeError(f"{call}: for key {key!r} came {type(value).__name__}, expected an NDArray or a list of them")
    if not arrays:
        raise KVStoreError(f"{call}: for key {key!r} came an empty list, expected an array for each device")
    return list(arrays)


def paired(call: str, keys: Any, row_ids: Any, outs: dict[Key, list[NDArray]]) -> dict[Key, list[NDArray]]:
    """The ids of rows for each of the arrays that go out: one for all of a key's, or one for each.

    Raises:
        KVStoreError: there are more or fewer.
    """
    if isinstance(keys, (list, tuple)) and isinstance(row_ids, NDArray):
        row_ids = [row_ids] * len(keys)
    found = grouped(call, keys, row_ids)
    for key, arrays in outs.items():
        ids: Sequence[NDArray] = found[key]
        if len(ids) not in (1, len(arrays)):
            raise KVStoreError(
                f"{call}: for key {key!r} came {len(ids)} arrays of row ids and {len(arrays)} out, expected as many, "
                "or one for all"
            )
        found[key] = list(ids) * (len(arrays) if len(ids) == 1 else 1)
    return found
