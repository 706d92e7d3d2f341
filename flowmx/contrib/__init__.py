"""Modules of ``mx.contrib``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowmx.contrib import amp, onnx
from flowmx.lazy import lazy_attributes
from flowmx.ndarray import contrib as nd
from flowmx.ndarray import contrib as ndarray
from flowmx.symbol import contrib as sym
from flowmx.symbol import contrib as symbol

if TYPE_CHECKING:
    from flowmx.contrib import quantization, svrg_optimization, text, torch, tracking
    from flowmx.contrib import quantization as quant

__all__ = [
    "amp", "nd", "ndarray", "onnx", "quant", "quantization", "svrg_optimization", "sym", "symbol", "text", "torch",
    "tracking",
]  # fmt: skip

_LATER = {name: f"flowmx.contrib.{name}" for name in ("quantization", "svrg_optimization", "text", "torch", "tracking")}
__getattr__, __dir__ = lazy_attributes(__name__, {**_LATER, "quant": "flowmx.contrib.quantization"})
