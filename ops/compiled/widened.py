"""Parameters of 16 bits as float32, which a bound graph keeps from run to run."""

from __future__ import annotations

from flowmx.ops.math.casting import Cast
from flowmx.ops.registry.operators import operator


@operator("_widened")
class Widened(Cast, hidden=True, no_gradient=True, once=True):
    """A parameter as another element type."""
