"""Formulas of elementwise operators and update rules, each written once.

====================  ===================================================================================
``expressions``       the language: small graphs of primitives
``unary_functions``   functions of one number, as primitives
``activations``       activations and their derivatives
``update_rules``      the update rules of optimizers
``array_formula``     computes formulas with NumPy's or CuPy's functions
``frontend_formula``  composes formulas of operators on arrays or symbols, for gradients
====================  ===================================================================================

The loops (``ops/kernels/llvm/``) and the CUDA kernels (``ops/kernels/cuda/``) are compiled from the same graphs.
"""
