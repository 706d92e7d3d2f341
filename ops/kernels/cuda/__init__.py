"""Kernels for NVIDIA's GPUs: sources made here and compiled by NVRTC through CuPy, and cuDNN's.

From the ground up: ``source`` (formulas as CUDA C), ``program`` (a source as a kernel), ``elementwise`` (a formula as
one pass over arrays); ``formulas``, ``chain`` and ``optimizers`` register what is made of formulas. ``dnn`` makes
cuDNN's plans, ``layouts`` says how images lie, ``convolution`` and ``attention`` register what cuDNN does. Importing
this imports neither CuPy nor cuDNN: arrays bring their namespace along (``run.xp``).
"""

from __future__ import annotations

from flowmx.ops.kernels.cuda import attention, batch_norm, chain, convolution, formulas, linear, optimizers, pooling

__all__ = ["attention", "batch_norm", "chain", "convolution", "formulas", "linear", "optimizers", "pooling"]
