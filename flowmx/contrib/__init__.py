"""Modules of ``mx.contrib``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowmx.contrib import amp, onnx
from flowmx.lazy import later
from flowmx.ndarray import contrib as nd
from flowmx.ndarray import contrib as ndarray
from flowmx.symbol import contrib as sym
from flowmx.symbol import contrib as symbol

if TYPE_CHECKING:
    from flowmx.contrib import text, torch, tracking

__all__ = ["amp", "nd", "ndarray", "onnx", "sym", "symbol", "text", "torch", "tracking"]

__getattr__, __dir__ = later(__name__, {each: f"flowmx.contrib.{each}" for each in ("text", "torch", "tracking")})
