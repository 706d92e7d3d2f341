"""Products of layers with their weights: FullyConnected, found once for each form of a layer."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from flowmx import ndarray as nd
from flowmx.ndarray import NDArray
from flowmx.ndarray.functions import apply
from flowmx.ops.registry.operators import Operator, lookup


def fully_connected(
    F: Any, data: Any, weight: Any, bias: Any, units: int, flatten: bool = True, name: str | None = None
) -> Any:  # fmt: skip
    """Return ``data · weightᵀ + bias``; see ``mx.nd.FullyConnected``.

    Args:
        F: ``mx.nd`` or ``mx.sym``.
        data: the data, an array or a symbol.
        weight: the weight, of shape (units, inputs).
        bias: the bias, of shape (units,), or None.
        units: the number of outputs.
        flatten: collapse all axes of the data except the first.
        name: the name of the symbol.
    """
    if F is nd and isinstance(data, NDArray):
        return apply(_product(units, bias is None, flatten), (data, weight) if bias is None else (data, weight, bias))
    return F.FullyConnected(data, weight, bias, no_bias=bias is None, num_hidden=units, flatten=flatten, name=name)


@lru_cache(1024)
def _product(units: int, no_bias: bool, flatten: bool) -> Operator:
    return lookup("FullyConnected").create(num_hidden=units, no_bias=no_bias, flatten=flatten)


@lru_cache(1024)
def activated_product(units: int, no_bias: bool, flatten: bool, act_type: str) -> Operator:
    """Return the operator of a product with an activation, which imperative layers call on small arrays."""
    return lookup("_dense").create(num_hidden=units, no_bias=no_bias, flatten=flatten, act_type=act_type)
