"""The matrix product that operators use: by what multiplies fastest on the device, else by the array namespace."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from flowmx.ops.math.conversion import as_type
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Array, Run, Shape

SMALL = 1 << 18
"""Multiplications below which the array library's product is faster than a device's own: its call is cheaper, and runs
on one thread."""
_PLAIN = (FLOAT32, np.dtype(np.float64))

Once = Callable[[Array, Array], None]
"""A product whose right factor is known: ``function(a, out)``."""
Again = Callable[[Array, int, DType], "Once | None"]
Product = Callable[[Array, Array, Array], bool]
F = TypeVar("F", bound=Product)
_products: dict[str, Product] = {}
_again: dict[str, Again] = {}
_halves: dict[str, Callable[[DType], bool]] = {}
A = TypeVar("A", bound=Again)
H = TypeVar("H", bound=Callable[[DType], bool])


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


Matrices = tuple[Shape, bool]
"""The shape of matrices in C order, and whether they are transposed before they are multiplied."""
Fixed = Callable[[Matrices, Matrices, Shape, DType], "Product | None"]
_fixed: dict[str, Fixed] = {}
X = TypeVar("X", bound=Fixed)


def fixing(device_type: str) -> Callable[[X], X]:
    """Register ``function(a, b, out, dtype)``, which makes a product of arrays in C order of known shapes, or not."""

    def register(function: X) -> X:
        _fixed[device_type] = function
        return function

    return register


def bound_product(xp: Any, a: Matrices, b: Matrices, out: Shape, dtype: DType) -> Callable[..., None] | None:
    """A product ``function(a, b, out)`` of arrays of known shapes, with nothing left to decide; None if there is none.

    Args:
        xp: the array namespace.
        a: the shape of a matrix, or of a stack of such, and whether they are transposed.
        b: likewise, of as many.
        out: the shape of the product.
        dtype: of all.
    """
    if xp is not np or dtype not in _PLAIN or 0 in (*a[0], *b[0]) or not len(a[0]) == len(b[0]) == len(out):
        return None
    multiply, (_, turn_a), (_, turn_b) = np.matmul, a, b

    def plainly(a: Array, b: Array, out: Array) -> None:
        multiply(a.swapaxes(-1, -2) if turn_a else a, b.swapaxes(-1, -2) if turn_b else b, out=out)

    fix = _fixed.get("cpu")
    if fix is None or dtype != FLOAT32:
        return plainly
    if math.prod(out) * a[0][-2 if turn_a else -1] < SMALL:
        return plainly
    fast = fix(a, b, out, dtype)
    if fast is None:
        return None

    def fixed(a: Array, b: Array, out: Array) -> None:
        if not (a.flags.c_contiguous and b.flags.c_contiguous and out.flags.c_contiguous and fast(a, b, out)):
            plainly(a, b, out)

    return fixed


def again(device_type: str) -> Callable[[A], A]:
    """Register ``function(b, rows, dtype)``, which prepares products of so many rows with one right factor, or not."""

    def register(function: A) -> A:
        _again[device_type] = function
        return function

    return register


def multiplying(device_type: str) -> Callable[[H], H]:
    """Register ``function(dtype)``, which tells whether a device has a product of numbers of 16 bits."""

    def register(function: H) -> H:
        _halves[device_type] = function
        return function

    return register


def has_product(device_type: str, dtype: DType) -> bool:
    """Tell whether a device multiplies numbers of 16 bits of this kind and adds up in float32."""
    ask = _halves.get(device_type)
    return ask is not None and ask(dtype)


def summed(run: Run, a: Array, b: Array, out: Array) -> None:
    """Compute ``out = a @ b`` where the factors may be of 16 bits beside a result of more."""
    if not multiplies(run, a, b, out):
        run.xp.matmul(as_type(run, a, out.dtype), as_type(run, b, out.dtype), out=out)


def repeated(run: Run, b: Array, rows: int, dtype: DType, times: int) -> Once:
    """The product ``a @ b`` for many a of so many rows, and results of a dtype, which a is of as well.

    Args:
        run: where.
        b: the matrix, perhaps of 16 bits.
        rows: of each a.
        dtype: of a and the results.
        times: how many products there will be: to bring a matrix into another order pays for several alone.
    """
    prepare = _again.get(run.device.kernels)
    made = None if prepare is None or times < _FEW else prepare(b, rows, dtype)
    if made is not None:
        return made
    wide = as_type(run, b, dtype)
    return lambda a, out: matmul(run, a, wide, out)


_FEW = 4
