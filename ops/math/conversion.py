"""Casts of arrays: by the device's fast kernel, or else by the array namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Run

Caster = Callable[[Array, Array], bool]
F = TypeVar("F", bound=Caster)
_casters: dict[str, Caster] = {}


def cast_kernel(device_type: str) -> Callable[[F], F]:
    """Register a faster cast ``function(source, out)`` for a device type; it returns False for unsupported arrays."""

    def register(function: F) -> F:
        _casters[device_type] = function
        return function

    return register


def cast(run: Run, source: Array, out: Array) -> None:
    """Copy an array into one of the same shape and a different dtype."""
    fast = _casters.get(run.device.kernels)
    if fast is None or not fast(source, out):
        run.xp.copyto(out, source, casting="unsafe")


def as_type(run: Run, array: Array, dtype: DType) -> Array:
    """Return an array cast to a dtype; the array itself if it has that dtype."""
    if array.dtype == dtype:
        return array
    out: Array = run.xp.empty_like(array, dtype=dtype)
    cast(run, array, out)
    return out
