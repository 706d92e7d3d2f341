"""Elementwise functions, reductions, transforms and casts."""
