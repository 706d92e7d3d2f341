"""16-bit parameters as float32, computed once for a bound graph."""

from __future__ import annotations

from flowmx.ops.math.casting import Cast
from flowmx.ops.registry.operators import operator


@operator("_widened")
class CastParameter(Cast, hidden=True, no_gradient=True, once=True):
    """A parameter cast to a different dtype."""
