"""Fused loops for the CPU: a small compiler from formulas to machine code, and the kernels that it compiles.

From the bottom up: ``math_functions`` (exp, log, erf, ... as formulas of :mod:`flowmx.ops.formulas.expressions`);
``assembly`` (writes LLVM assembly) and ``lowering`` (from formulas to assembly); ``compiler`` (to machine code, with a
cache on disk), ``background_compilation`` (at the first use, outside event loops) and ``team`` (threads);
``elementwise``, ``strided_loops`` and ``row_loops`` (a formula as a kernel). The other modules hold the tables of
operators and register their kernels when they are imported. llvmlite is imported, and anything compiled, only when the
first big array comes.
"""

from __future__ import annotations

MODULES = (
    "attention",
    "casts",
    "chain",
    "cross_entropy",
    "formulas",
    "gather",
    "joined_normalization",
    "normalization",
    "optimizers",
    "packed_dense",
    "packed_rows",
    "paged_attention",
    "recurrent",
    "recurrent_cells",
    "reductions",
    "region_averages",
    "resizing",
    "rms_norm",
    "softmax",
    "splitting",
    "suppression",
)
"""The modules that register kernels."""
