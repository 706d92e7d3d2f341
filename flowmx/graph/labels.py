"""Names of the inputs of operators for those who look at values: monitors, and hooks of blocks."""

from __future__ import annotations

from flowmx.ops.registry.operators import Operator

__all__ = ["input_labels"]


def input_labels(op: Operator) -> tuple[str, ...]:
    """Names of the inputs of an operator, as monitors and hooks of MXNet see them."""
    has_data_alone = op.arguments == ("data",) and not op.auxiliary and not op.variadic
    if has_data_alone and not op.traits.input_named:
        return ("input0",)
    return (*op.inputs(), *op.auxiliary)
