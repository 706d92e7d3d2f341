"""``mx.nd.linalg``: the operators ``_linalg_*`` as functions on arrays."""

from __future__ import annotations

from flowmx.ndarray import functions
from flowmx.ops.registry.namespaces import prefixed_attributes

__getattr__, __dir__ = prefixed_attributes(functions, "_linalg_")
__all__ = [*__dir__()]
