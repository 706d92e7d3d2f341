"""The gradients of ``mx.np``'s functions, a file for each family; importing this registers them."""

from flowmx.numpy.rules import elementwise, fft, linalg, orders, products, reductions, series

__all__ = ["elementwise", "fft", "linalg", "orders", "products", "reductions", "series"]
