"""``mx.sym.image``: the operators ``_image_*`` as functions on symbols."""

from __future__ import annotations

from flowmx.ops.registry.namespaces import prefixed_attributes
from flowmx.symbol import functions

__getattr__, __dir__ = prefixed_attributes(functions, "_image_")
__all__ = [*__dir__()]
