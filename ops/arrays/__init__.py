"""Operators that create, reshape, slice, join and reorder arrays."""
