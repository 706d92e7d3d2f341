"""Kernels for NVIDIA GPUs: generated sources, compiled by NVRTC through CuPy, and cuDNN.

From the bottom up: ``elementwise_source`` (formulas as CUDA C), ``source_kernels`` (a source as a kernel),
``elementwise`` (a formula as one pass over arrays), ``row_source`` and ``row_kernels`` (formulas with reductions over
rows), ``channel_sums`` (sums over all axes except the channels). ``formula_kernels``, ``chain``, ``optimizers``,
``softmax``, ``layer_norm`` and ``batch_norm`` register kernels made of formulas. ``dnn`` makes cuDNN's plans,
``layouts`` describes memory layouts, ``convolution`` and ``attention`` register kernels of cuDNN. Importing this
package imports neither CuPy nor cuDNN: arrays bring their namespace (``run.xp``).
"""

from __future__ import annotations

from flowmx.ops.kernels.cuda import (
    attention,
    batch_norm,
    chain,
    convolution,
    formula_kernels,
    layer_norm,
    linear,
    optimizers,
    pooling,
    rms_norm,
    softmax,
)

__all__ = [
    "attention", "batch_norm", "chain", "convolution", "formula_kernels", "layer_norm", "linear", "optimizers",
    "pooling", "rms_norm", "softmax",
]  # fmt: skip
