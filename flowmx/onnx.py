"""``mx.onnx``: MXNet 1.9's place for writing ONNX files, which ``mx.contrib.onnx`` does."""

from __future__ import annotations

from flowmx.contrib.onnx import export_model, get_operator_support

__all__ = ["export_model", "get_operator_support"]
