"""``mx.nd.contrib``: the operators ``_contrib_*`` as functions on arrays."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ndarray import functions
from flowmx.ndarray.array import NDArray, array
from flowmx.ndarray.control_flow import cond, foreach, while_loop
from flowmx.ops.registry import registered

__all__ = ["boolean_mask", "cond", "foreach", "while_loop"]


def boolean_mask(data: NDArray, index: NDArray, axis: int = 0) -> NDArray:
    """The slices of ``data`` along an axis where ``index`` (one axis) is not 0.

    The shape depends on the content of ``index``, so this blocks until that is there.

    Raises:
        ShapeError: the index is not as long as the axis.
    """
    if index.shape != data.shape[axis : axis + 1 or None]:
        raise ShapeError(f"boolean_mask: index has shape {index.shape}, expected ({data.shape[axis]},)")
    kept = array(np.flatnonzero(index.asnumpy()), data.context, np.int64)
    return cast("NDArray", functions.op("take", data, kept, axis=axis))


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(functions, f"_contrib_{name}")


def __dir__() -> list[str]:
    found = (name.removeprefix("_contrib_") for name in registered() if name.startswith("_contrib_"))
    return sorted({*__all__, *found})
