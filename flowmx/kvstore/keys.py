"""Arguments of keys and arrays in MXNet's forms, converted to pairs of a key and its arrays."""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.errors import KVStoreError
from flowmx.ndarray import NDArray

Key = int | str


def group_by_key(call: str, keys: object, values: object) -> dict[Key, list[NDArray]]:
    """Return the arrays of each key, in the order of the arguments; a repeated key gets all of its arrays.

    Args:
        call: the method, for messages.
        keys: a key, or a list of them.
        values: for one key an array or a list of arrays (one per device); for a list of keys, a list of those.

    Raises:
        TypeError: a key is neither int nor str, or a value is not an array.
        KVStoreError: int and str keys are mixed, or the numbers of values and keys differ.
    """
    if not isinstance(keys, (list, tuple)):
        return {check_key(call, keys): as_arrays(call, keys, values)}
    if not isinstance(values, (list, tuple)) or len(keys) != len(values):
        actual = f"{len(values)} values" if isinstance(values, (list, tuple)) else type(values).__name__
        raise KVStoreError(f"{call}: got {len(keys)} keys with {actual}, expected a list with one entry for each key")
    if len({isinstance(key, str) for key in keys}) > 1:
        raise KVStoreError(f"{call}: the keys {list(keys)!r} mix int and str, expected either all int or all str")
    groups: dict[Key, list[NDArray]] = {}
    for key, value in zip(keys, values, strict=True):
        arrays = [value] if isinstance(value, NDArray) else as_arrays(call, key, value)
        if key in groups:
            groups[key] += arrays
        else:
            groups[check_key(call, key)] = arrays
    return groups


def check_key(call: str, key: object) -> Key:
    """Return the key; raise TypeError if it is neither int nor str."""
    if isinstance(key, str) or type(key) is int:
        return key
    raise TypeError(f"{call}: the key is {key!r}, expected an int or a str")


def as_arrays(call: str, key: object, value: object) -> list[NDArray]:
    """Return the arrays for one key as a list."""
    arrays = [value] if isinstance(value, NDArray) else value
    if not isinstance(arrays, (list, tuple)) or not all(isinstance(array, NDArray) for array in arrays):
        raise TypeError(
            f"{call}: the value for key {key!r} is {type(value).__name__}, expected an NDArray or a list of them"
        )
    if not arrays:
        raise KVStoreError(f"{call}: the value for key {key!r} is an empty list, expected an array for each device")
    return list(arrays)


def pair_row_ids(call: str, keys: object, row_ids: object, outs: dict[Key, list[NDArray]]) -> dict[Key, list[NDArray]]:
    """Return the row ids for each output array: one array of ids for all outputs of a key, or one for each.

    Raises:
        KVStoreError: the numbers differ.
    """
    if isinstance(keys, (list, tuple)) and isinstance(row_ids, NDArray):
        row_ids = [row_ids] * len(keys)
    groups = group_by_key(call, keys, row_ids)
    for key, arrays in outs.items():
        ids: Sequence[NDArray] = groups[key]
        if len(ids) not in (1, len(arrays)):
            raise KVStoreError(
                f"{call}: got {len(ids)} arrays of row ids and {len(arrays)} outputs for key {key!r}, expected equal "
                "numbers, or one for all"
            )
        groups[key] = list(ids) * (len(arrays) if len(ids) == 1 else 1)
    return groups
