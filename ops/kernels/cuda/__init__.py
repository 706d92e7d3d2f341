"""Kernels for NVIDIA's GPUs: sources made here and compiled by NVRTC through CuPy, and cuDNN's.

From the ground up: ``source`` (formulas as CUDA C), ``program`` (a source as a kernel), ``elementwise`` (a formula as
one pass over arrays), ``row_source`` and ``rows`` (one that looks at sums of its row), ``channels`` (sums over all but
the channels); ``formulas``, ``chain``, ``optimizers``, ``softmax``, ``layer_norm`` and ``batch_norm`` register what is
made of formulas. ``dnn`` makes cuDNN's plans, ``layouts`` says how images lie, ``convolution`` and ``attention``
register what cuDNN does. Importing this imports neither CuPy nor cuDNN: arrays bring their namespace (``run.xp``).
"""

from __future__ import annotations

from flowmx.ops.kernels.cuda import (
    attention,
    batch_norm,
    chain,
    convolution,
    formulas,
    layer_norm,
    linear,
    optimizers,
    pooling,
    softmax,
)

__all__ = [
    "attention", "batch_norm", "chain", "convolution", "formulas", "layer_norm", "linear", "optimizers", "pooling",
    "softmax",
]  # fmt: skip
