"""Kernels for NVIDIA's GPUs: sources made here and compiled by NVRTC through CuPy, and cuDNN's.

From the ground up: ``source`` (formulas as CUDA C), ``program`` (a source as a kernel), ``elementwise`` (a formula as
one pass over arrays); ``formulas``, ``chain`` and ``optimizers`` register what is made of formulas. Importing this
imports no CuPy: arrays bring their namespace along (``run.xp``).
"""

from __future__ import annotations

from flowmx.ops.kernels.cuda import chain, formulas, optimizers

__all__ = ["chain", "formulas", "optimizers"]
