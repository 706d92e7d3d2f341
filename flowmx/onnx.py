"""``mx.onnx``: the functions of ``mx.contrib.onnx`` under their path in MXNet 1.9."""

from __future__ import annotations

from flowmx.contrib.onnx import (
    export_model,
    get_model_metadata,
    get_operator_support,
    import_model,
    import_to_gluon,
)
from flowmx.lazy import lazy_attributes

__all__ = ["export_model", "get_model_metadata", "get_operator_support", "import_model", "import_to_gluon"]

__getattr__, __dir__ = lazy_attributes(__name__)
