"""Helpers of Gluon's users: batches split over devices, gradients clipped together; and of its own messages."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from flowmx import ndarray as nd
from flowmx.devices import Context
from flowmx.download import check_sha1, download
from flowmx.errors import ArgumentError
from flowmx.ndarray import NDArray

__all__ = [
    "HookHandle", "check_sha1", "clip_global_norm", "download", "replace_file", "shape_is_known", "split_and_load",
    "split_data",
]  # fmt: skip

Hooks = MutableMapping[int, Callable[..., Any]]


def split_data(data: NDArray, num_slice: int, batch_axis: int = 0, even_split: bool = True) -> list[NDArray]:
    """Split a batch into slices for several devices.

    Args:
        data: the batch.
        num_slice: into how many.
        batch_axis: along which axis.
        even_split: refuse slices of different lengths (otherwise the first ones are longer by one).

    Raises:
        ValueError: the batch can not be split so.
    """
    size = data.shape[batch_axis]
    if num_slice > size or (even_split and size % num_slice):
        raise ValueError(
            f"split_data: an axis of length {size} (axis {batch_axis} of shape {data.shape}) can not be split into "
            f"{num_slice} {'equal ' if even_split else ''}slices: use a batch size that is a multiple of {num_slice}"
            + (", or pass even_split=False" if even_split and num_slice <= size else "")
        )
    each, longer = divmod(size, num_slice)
    ends = [each * (i + 1) + min(i + 1, longer) for i in range(num_slice)]
    bounds = zip([0, *ends[:-1]], ends, strict=True)
    if batch_axis == 0 and data.stype == "csr":
        return [data[begin:end] for begin, end in bounds]
    return [nd.slice_axis(data, axis=batch_axis, begin=begin, end=end) for begin, end in bounds]


def split_and_load(
    data: Any, ctx_list: Sequence[Context], batch_axis: int = 0, even_split: bool = True
) -> list[NDArray]:
    """Split a batch, and put a slice on each device; the arguments are those of :func:`split_data`."""
    if not isinstance(data, NDArray):
        data = nd.array(data, ctx_list[0])
    if len(ctx_list) == 1:
        return [data.as_in_context(ctx_list[0])]
    slices = split_data(data, len(ctx_list), batch_axis, even_split)
    return [each.as_in_context(ctx) for each, ctx in zip(slices, ctx_list, strict=True)]


def clip_global_norm(arrays: Sequence[NDArray], max_norm: float, check_isfinite: bool = True) -> Any:
    """Scale arrays in place, so that the 2-norm of all of them together is at most ``max_norm``.

    Args:
        arrays: often the gradients of a model.
        max_norm: the bound.
        check_isfinite: warn where the norm is infinite or NaN, and return it as a number; this blocks until it is
            computed, so pass False in a coroutine.

    Returns:
        the norm before, as a number, or as an array without ``check_isfinite``.

    Raises:
        ValueError: there are no arrays.
    """
    if not arrays:
        raise ArgumentError("clip_global_norm: arrays is empty, expected at least one array")
    context = arrays[0].context
    squares = [nd.sum(nd.square(each)).as_in_context(context) for each in arrays]
    norm: NDArray = nd.sqrt(nd.add_n(*squares))
    number = float(norm.asscalar()) if check_isfinite else 0.0
    if not math.isfinite(number):
        warnings.warn(f"clip_global_norm: the norm is {number}, so the clipped arrays mean nothing", stacklevel=2)
    scale = nd.minimum(max_norm / (norm + 1e-8), 1.0)
    for each in arrays:
        each *= scale.as_in_context(each.context).astype(each.dtype)
    return number if check_isfinite else norm


def replace_file(src: str | os.PathLike[str], dst: str | os.PathLike[str]) -> None:
    """Move a file over another one, in one step.

    Raises:
        OSError: it can not be done; the file is then where it was.
    """
    Path(src).replace(dst)


def shape_is_known(shape: Sequence[int] | None) -> bool:
    """True where a shape is not empty and every length is known (neither 0 nor -1)."""
    return bool(shape) and all(length > 0 for length in shape or ())


class HookHandle:
    """Takes a hook off again: by :meth:`detach`, or at the end of a ``with`` block."""

    def __init__(self, hooks: Hooks, hook: Callable[..., Any]) -> None:
        self._hooks = hooks
        hooks[id(self)] = hook

    def detach(self) -> None:
        """Take the hook off."""
        self._hooks.pop(id(self), None)

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()


def indented(text: str, spaces: int) -> str:
    """A text with all its lines but the first moved to the right."""
    return text.replace("\n", "\n" + " " * spaces)


def brief_list(names: Iterable[str], limit: int = 7) -> str:
    """Names for a message, the middle ones left out where there are many."""
    shown = [repr(name) for name in names]
    if len(shown) > limit:
        shown[limit // 2 : -(limit // 2)] = ["..."]
    return ", ".join(shown)
