"""``mx.sym.linalg``: the operators ``_linalg_*`` as functions on symbols."""

from __future__ import annotations

from flowmx.ops.registry.namespaces import prefixed_attributes
from flowmx.symbol import functions

__getattr__, __dir__ = prefixed_attributes(functions, "_linalg_")
__all__ = [*__dir__()]
