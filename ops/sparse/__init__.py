"""Sparse storage: what sparse arrays hold, and computations on it, over NumPy's arrays."""
