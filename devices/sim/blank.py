"""Arrays of simulated devices without numerics: they have a shape, a dtype and memory that is never touched.

Operators are not called on such a device. Other code that uses its arrays (assignments, sums in stores, update rules,
copies) gets :class:`Blank`, on which writing has no effect and reading returns zeros: system memory that was never
written is zero, and uses no physical memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np


class Blank(np.ndarray[Any, Any]):
    """An array without values; its views are blank too."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, out: Any = (), **options: object) -> Any:
        """Return blank results of the right shape and dtype; leave the arrays in ``out`` unchanged."""
        if out:
            for target in out:
                if type(target) is not Blank:
                    clear(target)
            return out[0] if len(out) == 1 else out
        if method != "__call__":
            return getattr(ufunc, method)(*map(_to_plain, inputs), **options)
        arrays = [np.asarray(value) for value in inputs]
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        result = ufunc(*(np.zeros((1,) * array.ndim, array.dtype) for array in arrays), **_result_options(options))
        parts = result if isinstance(result, tuple) else (result,)
        blanks = tuple([blank(shape, part.dtype) for part in map(np.asarray, parts)])
        return blanks if isinstance(result, tuple) else blanks[0]

    def __array_function__(self, func: Callable[..., Any], types: object, args: Iterable[Any], kwargs: Any) -> Any:
        """Call other NumPy functions with zeros; do nothing for a copy to a blank array."""
        if func is np.copyto:
            target = next(iter(args), kwargs.get("dst"))
            if type(target) is not Blank:
                clear(target)
            return None
        if isinstance(kwargs.get("out"), Blank):
            return kwargs["out"]
        return func(*map(_to_plain, args), **{name: _to_plain(value) for name, value in kwargs.items()})

    def __setitem__(self, key: object, value: object) -> None:
        """Do nothing: a blank array is not written."""

    def fill(self, value: object) -> None:
        """Do nothing: a blank array is not written."""


def blank(shape: tuple[int, ...], dtype: Any) -> Blank:
    """Return a blank array without separate memory."""
    return np.broadcast_to(np.zeros((), dtype), shape).view(Blank)


def clear(target: Any) -> None:
    """Set an array of the host to zero, without writing to memory that is already zero."""
    if target.any():
        target[...] = 0


def _result_options(options: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in options.items() if name in ("dtype", "casting")}


def _to_plain(value: Any) -> Any:
    """Convert the blank arrays in a value to plain ones."""
    if type(value) in (list, tuple):
        return type(value)(map(_to_plain, value))
    return value.view(np.ndarray) if type(value) is Blank else value
