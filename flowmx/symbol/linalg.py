"""``mx.sym.linalg``: the operators ``_linalg_*`` as functions on symbols."""

from __future__ import annotations

from flowmx.ops.registry.namespaces import prefixed
from flowmx.symbol import functions

__getattr__, __dir__ = prefixed(functions, "_linalg_")
__all__ = [*__dir__()]
