"""Formulas of elementwise operators and update rules, stated once.

=================  ======================================================================================
``expressions``    the language: small graphs of primitives
``arrays``         computes formulas with NumPy's or CuPy's functions
``updates``        the update rules of optimizers
=================  ======================================================================================

The loops (``ops/kernels/llvm/``) and the CUDA kernels (``ops/kernels/cuda/``) are compiled from the same graphs.
"""
