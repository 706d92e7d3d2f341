"""The gradients of ``mx.np``'s functions, a module for each family. Importing this package registers them."""

from flowmx.numpy.rules import (
    cumulative,
    elementwise,
    fft,
    interpolation,
    linalg,
    polynomials,
    products,
    quantiles,
    reductions,
    selection,
)

__all__ = [
    "cumulative",
    "elementwise",
    "fft",
    "interpolation",
    "linalg",
    "polynomials",
    "products",
    "quantiles",
    "reductions",
    "selection",
]
