"""``mx.nd.contrib``: the operators ``_contrib_*`` as functions on arrays."""

from __future__ import annotations

from typing import cast

import numpy as np

from flowmx.devices import Context
from flowmx.errors import ShapeError
from flowmx.ndarray import functions, optimizer_updates
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.control_flow import cond, foreach, while_loop
from flowmx.ndarray.creation import array
from flowmx.ndarray.optimizer_updates import *  # noqa: F403
from flowmx.ops.random.zipfian import candidates
from flowmx.ops.registry.namespaces import prefixed_attributes
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = ["boolean_mask", "cond", "foreach", "isfinite", "isinf", "isnan", "rand_zipfian", "while_loop"]
__all__ += optimizer_updates.__all__


def boolean_mask(data: NDArray, index: NDArray, axis: int = 0, out: NDArray | None = None) -> NDArray:
    """Select the slices of ``data`` along an axis where ``index`` (one axis) is not 0.

    The shape depends on the content of ``index``, so this blocks until that is computed. The result is written into
    ``out`` if that is set.

    Raises:
        ShapeError: the lengths of the index and the axis differ.
    """
    if index.shape != data.shape[axis : axis + 1 or None]:
        raise ShapeError(f"boolean_mask: index has shape {index.shape}, expected ({data.shape[axis]},)")
    positions = array(np.flatnonzero(index.asnumpy()), data.context, np.int64)
    return cast("NDArray", functions.op("take", data, positions, axis=axis, out=out))


def isnan(data: NDArray) -> NDArray:
    """Return 1 where an element is NaN, else 0, in the array's dtype."""
    return cast("NDArray", functions.op("_not_equal", data, data))


def isinf(data: NDArray) -> NDArray:
    """Return 1 where an element is infinite, else 0, in the array's dtype."""
    return cast("NDArray", functions.op("_equal_scalar", functions.op("abs", data), scalar=np.inf))


def isfinite(data: NDArray) -> NDArray:
    """Return 1 where an element is neither NaN nor infinite, else 0, in the array's dtype."""
    return cast("NDArray", functions.op("_lesser_scalar", functions.op("abs", data), scalar=np.inf))


def rand_zipfian(
    true_classes: NDArray, num_sampled: int, range_max: int, ctx: Context | None = None
) -> tuple[NDArray, NDArray, NDArray]:
    """Draw ``num_sampled`` classes below ``range_max`` from a log-uniform distribution: P(c) ~ log((c + 2)/(c + 1)).

    Returns:
        the classes (int64), and the expected counts (float64) of ``true_classes`` and of the drawn classes.
    """
    if ctx is not None:
        true_classes = true_classes.as_in_context(ctx)
    results = candidates(
        cast("Functions", functions), cast("Tensor", true_classes), num_sampled, range_max, ctx=true_classes.context
    )
    return cast("tuple[NDArray, NDArray, NDArray]", results)


__getattr__, __dir__ = prefixed_attributes(functions, "_contrib_", __all__)
__all__ += sorted({*__dir__()} - {*__all__})
