"""Arrays of simulated devices without numerics: they have a shape, a dtype and memory that is never touched.

Operators are not called on such a device. What else works on its arrays by itself (assignments, sums of stores, update
rules, copies) meets :class:`Blank`, for which writing does nothing and reading gives zeros: memory of the system that
was never written is zeros, and takes up nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


class Blank(np.ndarray[Any, Any]):
    """An array without values; views of it are such arrays too."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        """Results that are given stay as they are; new ones have their shape and dtype, and no memory."""
        if out:
            for each in out:
                if type(each) is not Blank:
                    clear(each)
            return out[0] if len(out) == 1 else out
        if method != "__call__":
            return getattr(ufunc, method)(*map(_plain, inputs), **options)
        arrays = [np.asarray(each) for each in inputs]
        shape = np.broadcast_shapes(*(each.shape for each in arrays))
        found = ufunc(*(np.zeros((1,) * each.ndim, each.dtype) for each in arrays), **_untargeted(options))
        parts = found if isinstance(found, tuple) else (found,)
        made = tuple([blank(shape, part.dtype) for part in map(np.asarray, parts)])
        return made if isinstance(found, tuple) else made[0]

    def __array_function__(self, func: Callable[..., Any], types: Any, args: Iterable[Any], kwargs: Any) -> Any:
        """NumPy's other functions get zeros; a copy into a blank array does nothing."""
        if func is np.copyto:
            target = next(iter(args), kwargs.get("dst"))
            if type(target) is not Blank:
                clear(target)
            return None
        if type(kwargs.get("out")) is Blank:
            return kwargs["out"]
        return func(*map(_plain, args), **{name: _plain(each) for name, each in kwargs.items()})

    def __setitem__(self, key: Any, value: Any) -> None:
        """Do nothing: a blank array is not written."""

    def fill(self, value: Any) -> None:
        """Do nothing: a blank array is not written."""


def blank(shape: tuple[int, ...], dtype: Any) -> Blank:
    """A blank array that has no memory of its own."""
    return np.broadcast_to(np.zeros((), dtype), shape).view(Blank)


def clear(target: Any) -> None:
    """Make an array of the host's zeros, and touch none of its memory that is zeros."""
    if target.any():
        target[...] = 0


def _untargeted(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in ("dtype", "casting")}


def _plain(value: Any) -> Any:
    """A value with the blank arrays in it as plain ones."""
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value.view(np.ndarray) if type(value) is Blank else value
