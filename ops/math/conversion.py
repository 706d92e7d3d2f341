"""Copies of arrays as another element type: by what is fastest on the device, else by the array namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Run

Caster = Callable[[Array, Array], bool]
F = TypeVar("F", bound=Caster)
_casters: dict[str, Caster] = {}


def caster(device_type: str) -> Callable[[F], F]:
    """Register a faster cast ``function(source, out)`` for a device type; it returns False where it is of no use."""

    def register(function: F) -> F:
        _casters[device_type] = function
        return function

    return register


def cast(run: Run, source: Array, out: Array) -> None:
    """Copy an array into one of its shape and another element type."""
    fast = _casters.get(run.device.kernels)
    if fast is None or not fast(source, out):
        run.xp.copyto(out, source, casting="unsafe")


def as_type(run: Run, array: Array, dtype: DType) -> Array:
    """The array as an element type; itself where it is of that type."""
    if array.dtype == dtype:
        return array
    made = run.xp.empty_like(array, dtype=dtype)
    cast(run, array, made)
    return made
