"""Sparse arrays: their content as NumPy arrays, and the operators on it."""
