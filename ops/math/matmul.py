"""Matrix products: by the device's fast kernel, or else by the array namespace."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from flowmx.ops.math.conversion import as_type
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Array, Run, Shape
from flowmx.ops.registry.tensors import ArrayNamespace

SMALL = 1 << 18
"""Number of multiplications below which the array library is faster than a device's kernel: its call is cheaper and
runs on one thread."""
_PLAIN = (FLOAT32, np.dtype(np.float64))
_MIN_PREPARED = 4
"""Number of products from which a fixed factor is prepared."""

FixedFactorProduct = Callable[[Array, Array], None]
"""A product with a fixed right factor: ``function(a, out)``."""
Preparation = Callable[[Array, int, DType], "FixedFactorProduct | None"]
Product = Callable[[Array, Array, Array], bool]
F = TypeVar("F", bound=Product)
_products: dict[str, Product] = {}
_preparations: dict[str, Preparation] = {}
_mixed_support: dict[str, Callable[[DType], bool]] = {}
A = TypeVar("A", bound=Preparation)
H = TypeVar("H", bound=Callable[[DType], bool])


def product_kernel(device_type: str) -> Callable[[F], F]:
    """Register a faster product ``function(a, b, out)`` for a device type; it returns False for unsupported arrays."""

    def register(function: F) -> F:
        _products[device_type] = function
        return function

    return register


def try_device_product(run: Run, a: Array, b: Array, out: Array) -> bool:
    """Compute ``out = a @ b`` for matrices, or stacks of them, by the device's kernel; return False if unsupported."""
    fast = _products.get(run.device.kernels)
    return fast is not None and fast(a, b, out)


def matmul(run: Run, a: Array, b: Array, out: Array) -> None:
    """Compute ``out = a @ b`` for matrices, or stacks of them, of the same dtype."""
    if not try_device_product(run, a, b, out):
        run.xp.matmul(a, b, out=out)


Matrices = tuple[Shape, bool]
"""The shape of matrices in C order, and whether to transpose them before the product."""
FixedShapes = Callable[[Matrices, Matrices, Shape, DType], "Product | None"]
_fixed: dict[str, FixedShapes] = {}
X = TypeVar("X", bound=FixedShapes)


def fixed_shape_product(device_type: str) -> Callable[[X], X]:
    """Register ``function(a, b, out, dtype)``, which returns a product of C-ordered arrays of fixed shapes, or None."""

    def register(function: X) -> X:
        _fixed[device_type] = function
        return function

    return register


def bound_product(xp: ArrayNamespace, a: Matrices, b: Matrices, out: Shape, dtype: DType) -> Callable[..., None] | None:
    """Return a product ``function(a, b, out)`` of arrays of fixed shapes, or None if unsupported.

    Args:
        xp: the array namespace.
        a: the shape of a matrix, or a stack of matrices, and whether to transpose them.
        b: the same for the right factor, with equal rank.
        out: the shape of the product.
        dtype: the dtype of all arrays.
    """
    if xp is not np or dtype not in _PLAIN or 0 in (*a[0], *b[0]) or not len(a[0]) == len(b[0]) == len(out):
        return None
    multiply, (_, transpose_a), (_, transpose_b) = np.matmul, a, b

    def fallback(a: Array, b: Array, out: Array) -> None:
        multiply(a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b, out=out)

    make = _fixed.get("cpu")
    if make is None or dtype != FLOAT32:
        return fallback
    if math.prod(out) * a[0][-2 if transpose_a else -1] < SMALL:
        return fallback
    kernel = make(a, b, out, dtype)
    if kernel is None:
        return None

    def fast_or_fallback(a: Array, b: Array, out: Array) -> None:
        if not (a.flags.c_contiguous and b.flags.c_contiguous and out.flags.c_contiguous and kernel(a, b, out)):
            fallback(a, b, out)

    return fast_or_fallback


def product_preparation(device_type: str) -> Callable[[A], A]:
    """Register ``function(b, rows, dtype)``, which prepares products of ``rows`` rows with a fixed factor, or None."""

    def register(function: A) -> A:
        _preparations[device_type] = function
        return function

    return register


def mixed_product_support(device_type: str) -> Callable[[H], H]:
    """Register ``function(dtype)``, which returns whether a device multiplies a 16-bit dtype with float32 sums."""

    def register(function: H) -> H:
        _mixed_support[device_type] = function
        return function

    return register


def has_mixed_product(device_type: str, dtype: DType) -> bool:
    """Return whether a device multiplies a 16-bit dtype with float32 sums."""
    supports = _mixed_support.get(device_type)
    return supports is not None and supports(dtype)


def matmul_mixed(run: Run, a: Array, b: Array, out: Array) -> None:
    """Compute ``out = a @ b``; the factors may have 16 bits and the result more."""
    if not try_device_product(run, a, b, out):
        run.xp.matmul(as_type(run, a, out.dtype), as_type(run, b, out.dtype), out=out)


def fixed_factor_product(run: Run, b: Array, rows: int, dtype: DType, count: int) -> FixedFactorProduct:
    """Return the product ``a @ b`` for many left factors ``a``.

    Args:
        run: where to compute.
        b: the right factor; it may have 16 bits.
        rows: the number of rows of each ``a``.
        dtype: the dtype of ``a`` and the results.
        count: the number of products; preparing ``b`` only pays off for several.
    """
    prepare = _preparations.get(run.device.kernels)
    prepared = None if prepare is None or count < _MIN_PREPARED else prepare(b, rows, dtype)
    if prepared is not None:
        return prepared
    factor = as_type(run, b, dtype)
    return lambda a, out: matmul(run, a, factor, out)
