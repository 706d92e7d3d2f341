"""The arrays in a pickle, read as plain data: no code of the pickle runs, and objects of other classes are searched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from flowmx.errors import MXNetError
from flowmx.ops.registry.operators import Array
from flowmx.serialization import params, plain_pickle
from flowmx.serialization.plain_pickle import Name, ObjectRecord
from flowmx.serialization.reading import FileFormatError
from flowmx.shape_limits import read_shape

__all__ = ["PickleFormatError", "loads"]

_MAX_VALUES = 1_000_000
_MAX_DEPTH = 64
_MAX_NAME = 200
_CODES = "?bBiufc"


class PickleFormatError(FileFormatError):
    """A pickle is damaged, or has no arrays."""


def loads(data: bytes | memoryview, *, source: str = "<bytes>") -> dict[str, Array]:
    """Return the arrays in a pickle, named by their place, such as ``layers.0.weight``.

    Raises:
        PickleFormatError: the pickle is damaged, or has no arrays of numbers.
    """
    try:
        content = plain_pickle.loads(bytes(data), _FUNCTIONS)
        arrays = dict(_arrays(content, "", _Budget(8 * len(data) + 4096), 0))
    except (ValueError, MXNetError, RecursionError, TypeError, KeyError) as error:
        raise PickleFormatError(source, 0, "a pickle of arrays", str(error)[:200]) from error
    if not arrays:
        raise PickleFormatError(source, 0, "a pickle of arrays", "a pickle without arrays of numbers")
    return arrays


def _mapping(*arguments: object) -> dict[Any, Any]:
    """Compute ``OrderedDict()`` or ``defaultdict(factory)``, which the pickle fills."""
    return {}


_FUNCTIONS = {Name("collections", name): _mapping for name in ("OrderedDict", "defaultdict")}


class _Budget:
    """The bytes and values that may still be read: a pickle may repeat a part many times."""

    def __init__(self, size: int) -> None:
        self._bytes, self._values = size, _MAX_VALUES

    def spend(self, size: int = 0) -> None:
        self._bytes -= size
        self._values -= 1
        if self._bytes < 0 or self._values < 0:
            raise ValueError("a pickle that repeats its parts too often")


def _arrays(value: Any, name: str, budget: _Budget, depth: int) -> Iterator[tuple[str, Array]]:
    """Yield the arrays in a value and their names."""
    budget.spend()
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, ObjectRecord):
        array = _array(value, budget)
        if array is not None:
            yield name or "0", array
            return
        value = {"": value.arguments, "state": value.state} if value.arguments else value.state
    for key, part in _parts(value):
        place = ".".join(text for text in (name, str(key)[:_MAX_NAME]) if text and text != "state")
        if isinstance(part, (ObjectRecord, Mapping, list, tuple)):
            yield from _arrays(part, place[:_MAX_NAME], budget, depth + 1)


def _parts(value: object) -> Iterable[tuple[object, Any]]:
    """Return the parts of a value with their keys."""
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, (list, tuple)) else ()


def _array(record: ObjectRecord, budget: _Budget) -> Array | None:
    """Return the array that a record describes; None for objects of other classes."""
    module, cls = record.cls
    if module.startswith("numpy") and cls == "_reconstruct":
        return _of_numpy(record.state, budget)
    if module.startswith("jax") and cls == "_reconstruct_array" and len(record.arguments) > 2:
        return _of_numpy(record.arguments[2], budget)
    if module.startswith("numpy") and cls == "_frombuffer":
        return _of_buffer(record.arguments, budget)
    if module.startswith("mxnet.") and cls == "NDArray" and isinstance(record.state, dict):
        content = record.state.get("handle")
        if isinstance(content, (bytes, bytearray)):
            budget.spend(len(content))
            array: Array = params.loads_one(bytes(content))
            return array
    return None


def _of_numpy(state: object, budget: _Budget) -> Array | None:
    """Return an array from the state that NumPy pickles; None for arrays of objects."""
    match state:
        case (int(), tuple(sizes), ObjectRecord() as record, bool(is_fortran), bytes(content)):
            return _built(content, record, sizes, is_fortran, budget)
    return None


def _of_buffer(arguments: object, budget: _Budget) -> Array | None:
    """Return an array from the arguments that NumPy pickles with protocol 5; None for arrays of objects."""
    match arguments:
        case (bytes(content) | bytearray(content), ObjectRecord() as record, tuple(sizes), str(order)):
            return _built(content, record, sizes, order == "F", budget)
    return None


def _built(
    content: bytes | bytearray, record: ObjectRecord, sizes: tuple[object, ...], is_fortran: bool, budget: _Budget
) -> Array | None:
    dtype = _dtype(record)
    if dtype is None:
        return None
    shape = read_shape(sizes, dtype.itemsize)
    budget.spend(len(content))
    flat = np.frombuffer(content, dtype)
    return flat.reshape(shape, order="F" if is_fortran else "C").astype(dtype.newbyteorder("="))


def _dtype(record: ObjectRecord) -> np.dtype[Any] | None:
    """Return a dtype of numbers; None for other dtypes."""
    code = record.arguments[0] if record.cls == Name("numpy", "dtype") and record.arguments else None
    if not isinstance(code, str) or code[:1] not in _CODES or not code[1:].isdigit():
        return None
    order = record.state[1] if isinstance(record.state, tuple) and len(record.state) > 1 else "<"
    return np.dtype(f"{'>' if order == '>' else '<'}{code}")
