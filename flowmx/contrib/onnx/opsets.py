"""ONNX opsets: those that are supported, and the schemas of operators in them."""

from __future__ import annotations

from functools import cache
from typing import Any

from flowmx.contrib.onnx.converters import Unsupported, need_onnx

NEWEST = 21
"""The newest opset for export; import also accepts later ones."""
OLDEST = 13
"""The oldest opset for export, and the oldest that import is tested with."""


@cache
def definition(kind: str, opset: int) -> Any:
    """Return ONNX's schema of an operator in an opset.

    Raises:
        Unsupported: the opset does not have it.
    """
    defs = need_onnx().defs
    try:
        return defs.get_schema(kind, opset)
    except defs.SchemaError:
        raise Unsupported(f"{kind} needs opset {first_opset(kind)}, not {opset}: set opset_version") from None


@cache
def first_opset(kind: str) -> int:
    """Return the first opset that has an ONNX operator."""
    schemas = need_onnx().defs.get_all_schemas_with_history()
    return min([int(schema.since_version) for schema in schemas if schema.name == kind])
