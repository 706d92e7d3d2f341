"""``mx.onnx``: MXNet 1.9's place for writing ONNX files, which ``mx.contrib.onnx`` does, as it reads them."""

from __future__ import annotations

from flowmx.contrib.onnx import (
    export_model,
    get_model_metadata,
    get_operator_support,
    import_model,
    import_to_gluon,
)

__all__ = ["export_model", "get_model_metadata", "get_operator_support", "import_model", "import_to_gluon"]
