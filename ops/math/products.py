"""The matrix product that operators use: by what multiplies fastest on the device, else by the array namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flowmx.ops.registry.operators import Array, Run

Product = Callable[[Array, Array, Array], bool]
F = TypeVar("F", bound=Product)
_products: dict[str, Product] = {}


def product(device_type: str) -> Callable[[F], F]:
    """Register a faster product ``function(a, b, out)`` for a device type; it returns False where it is of no use."""

    def register(function: F) -> F:
        _products[device_type] = function
        return function

    return register


def multiplies(run: Run, a: Array, b: Array, out: Array) -> bool:
    """Compute ``out = a @ b`` for matrices, or stacks of them, by the device's own product; False where it can not."""
    fast = _products.get(run.device.kernels)
    return fast is not None and fast(a, b, out)


def matmul(run: Run, a: Array, b: Array, out: Array) -> None:
    """Compute ``out = a @ b`` for matrices, or stacks of them, of one dtype."""
    if not multiplies(run, a, b, out):
        run.xp.matmul(a, b, out=out)
