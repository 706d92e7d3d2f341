"""Fused loops for the CPU: a small compiler from formulas to machine code, and the kernels made with it.

From the ground up: ``functions`` (exp, log, erf, ... as formulas of :mod:`flowmx.ops.formulas.expressions`);
``code`` (LLVM's assembly) and ``lowering`` (from the one to the other); ``compiler`` (to machine code, with a
cache on disk), ``program`` (at the first use, away from event loops) and ``team``; ``elementwise``,
``walks`` and ``rows`` (a formula as a kernel). The tables are in the other modules, which register their kernels
when this is imported. Nothing here is compiled, and llvmlite is not imported, before the first big array comes.
"""

from __future__ import annotations

from flowmx.ops.kernels.llvm import (
    attention,
    casts,
    cells,
    chain,
    formulas,
    gather,
    normalization,
    optimizers,
    reductions,
    region_averages,
    resizing,
    softmax,
    suppression,
)

__all__ = [
    "attention",
    "casts",
    "cells",
    "chain",
    "formulas",
    "gather",
    "normalization",
    "optimizers",
    "reductions",
    "region_averages",
    "resizing",
    "softmax",
    "suppression",
]
