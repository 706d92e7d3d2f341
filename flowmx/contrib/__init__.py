"""What MXNet keeps under ``mx.contrib``."""

from __future__ import annotations

from flowmx.contrib import amp, onnx
from flowmx.ndarray import contrib as nd
from flowmx.ndarray import contrib as ndarray
from flowmx.symbol import contrib as sym
from flowmx.symbol import contrib as symbol

__all__ = ["amp", "nd", "ndarray", "onnx", "sym", "symbol"]
