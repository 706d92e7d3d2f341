"""Operators on the form of arrays: their shape, their parts, the order of their elements."""
