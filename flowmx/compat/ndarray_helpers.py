"""Private helpers of ``mxnet.ndarray`` that packages import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.compat.frontends import _STORAGE_TYPE_STR_TO_ID
from flowmx.ndarray import NDArray

__all__ = [
    "NDArrayBase", "NDabs", "_as_classic", "_flatten_list", "_get_broadcast_shape", "_ndarray_cls", "_storage_type",
    "onehot_encode",
]  # fmt: skip

_ndarray_cls = NDArrayBase = NDArray
NDabs = nd.abs


def _storage_type(handle: object) -> int:
    """Return MXNet's number of an array's storage type."""
    return _STORAGE_TYPE_STR_TO_ID[handle.stype if isinstance(handle, NDArray) else "default"]


def _get_broadcast_shape(shape1: Sequence[int], shape2: Sequence[int]) -> tuple[int, ...]:
    """Return the broadcast shape of two arrays."""
    return tuple(np.broadcast_shapes(tuple(shape1), tuple(shape2)))


def onehot_encode(indices: NDArray, out: NDArray) -> NDArray:
    """Write one-hot rows for the indices into a matrix, and return it."""
    out[:] = indices.one_hot(depth=out.shape[1])
    return out


def _flatten_list(nested: Sequence[object]) -> list[Any]:
    """Return the items of nested lists."""
    return [item for part in nested for item in (_flatten_list(part) if isinstance(part, list) else [part])]


def _as_classic(a: object, allow_np: bool = True) -> Any:
    """Return an array of ``mx.nd``, or a tuple or list of arrays, unchanged."""
    del allow_np
    return a
