"""Gluon's utilities: splitting batches, clipping gradients, hooks, and text for messages."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

from flowmx import ndarray as nd
from flowmx.devices import Context
from flowmx.download import check_sha1, download
from flowmx.errors import ArgumentError
from flowmx.ndarray import NDArray

__all__ = [
    "HookHandle", "check_sha1", "clip_global_norm", "download", "replace_file", "shape_is_known", "split_and_load",
    "split_data",
]  # fmt: skip

Hooks = MutableMapping[int, Callable[..., object]]


def split_data(data: NDArray, num_slice: int, batch_axis: int = 0, even_split: bool = True) -> list[NDArray]:
    """Split a batch into slices for several devices.

    Args:
        data: the batch.
        num_slice: the number of slices.
        batch_axis: the axis to split.
        even_split: raise for slices of different lengths (otherwise the first ones are longer by one).

    Raises:
        ValueError: the batch cannot be split this way.
    """
    size = data.shape[batch_axis]
    if num_slice > size or (even_split and size % num_slice):
        raise ValueError(
            f"split_data: an axis of length {size} (axis {batch_axis} of shape {data.shape}) cannot be split into "
            f"{num_slice} {'equal ' if even_split else ''}slices: use a batch size that is a multiple of {num_slice}"
            + (", or pass even_split=False" if even_split and num_slice <= size else "")
        )
    length, longer = divmod(size, num_slice)
    ends = [length * (i + 1) + min(i + 1, longer) for i in range(num_slice)]
    bounds = zip([0, *ends[:-1]], ends, strict=True)
    if batch_axis == 0 and data.stype == "csr":
        return [data[begin:end] for begin, end in bounds]
    return [nd.slice_axis(data, axis=batch_axis, begin=begin, end=end) for begin, end in bounds]


def split_and_load(
    data: Any, ctx_list: Sequence[Context], batch_axis: int = 0, even_split: bool = True
) -> list[NDArray]:
    """Split a batch, and copy each slice to its device; the arguments are those of :func:`split_data`."""
    if not isinstance(data, NDArray):
        data = nd.array(data, ctx_list[0])
    if len(ctx_list) == 1:
        return [data.as_in_context(ctx_list[0])]
    slices = split_data(data, len(ctx_list), batch_axis, even_split)
    return [part.as_in_context(ctx) for part, ctx in zip(slices, ctx_list, strict=True)]


@overload
def clip_global_norm(arrays: Sequence[NDArray], max_norm: float, check_isfinite: Literal[True] = True) -> float: ...


@overload
def clip_global_norm(arrays: Sequence[NDArray], max_norm: float, check_isfinite: bool) -> float | NDArray: ...


def clip_global_norm(arrays: Sequence[NDArray], max_norm: float, check_isfinite: bool = True) -> float | NDArray:
    """Scale arrays in place, so that their joint 2-norm is at most ``max_norm``.

    Args:
        arrays: the arrays, often the gradients of a model.
        max_norm: the bound.
        check_isfinite: warn if the norm is infinite or NaN, and return it as a number; this blocks until it is
            computed, so pass False in a coroutine.

    Returns:
        The norm before scaling, as a number, or as an array without ``check_isfinite``.

    Raises:
        ValueError: there are no arrays.
    """
    if isinstance(arrays, NDArray):
        raise TypeError("clip_global_norm: arrays is an NDArray, expected a list of arrays: write [array]")
    if not arrays:
        raise ArgumentError("clip_global_norm: arrays is empty, expected at least one array")
    context = arrays[0].context
    squares = [nd.sum(nd.square(array)).as_in_context(context) for array in arrays]
    norm: NDArray = nd.sqrt(nd.add_n(*squares))
    number = float(norm.asscalar()) if check_isfinite else 0.0
    if not math.isfinite(number):
        warnings.warn(f"clip_global_norm: the norm is {number}, so the clipped arrays are invalid", stacklevel=2)
    scale = nd.minimum(max_norm / (norm + 1e-8), 1.0)
    for array in arrays:
        array *= scale.as_in_context(array.context).astype(array.dtype)
    return number if check_isfinite else norm


def replace_file(src: str | os.PathLike[str], dst: str | os.PathLike[str]) -> None:
    """Move a file over another one, atomically.

    Raises:
        OSError: the file cannot be moved, and stays in place.
    """
    Path(src).replace(dst)


def shape_is_known(shape: Sequence[int] | None) -> bool:
    """Return whether a shape is not empty and every length is known (neither 0 nor -1)."""
    return bool(shape) and all(length > 0 for length in shape or ())


class HookHandle:
    """A registered hook; remove it by :meth:`detach`, or at the end of a ``with`` block.

    A function that is registered twice is called once, as in MXNet.

    Attributes:
        changes: the number of hooks that were registered or removed, over all blocks.
    """

    changes = 0

    def __init__(self, hooks: Hooks, hook: Callable[..., object]) -> None:
        if not callable(hook):
            raise TypeError(f"the hook is a {type(hook).__name__}, expected a function of the block and its inputs")
        self._hooks, self._id = hooks, id(hook)  # unique, since the hooks refer to the function
        hooks[self._id] = hook
        HookHandle.changes += 1

    def detach(self) -> None:
        """Remove the hook."""
        if self._hooks.pop(self._id, None) is not None:
            HookHandle.changes += 1

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()


def indent(text: str, spaces: int) -> str:
    """Indent all lines of a text except the first."""
    return text.replace("\n", "\n" + " " * spaces)


def brief_list(names: Iterable[str], limit: int = 7) -> str:
    """Format names for a message; the middle of a long list is omitted."""
    reprs = [repr(name) for name in names]
    if len(reprs) > limit:
        reprs[limit // 2 : -(limit // 2)] = ["..."]
    return ", ".join(reprs)
