"""Input names of operators, as monitors and block hooks show them."""

from __future__ import annotations

from flowmx.ops.registry.operators import Operator

__all__ = ["input_labels"]


def input_labels(op: Operator) -> tuple[str, ...]:
    """Return the names of an operator's inputs, as MXNet's monitors and hooks show them."""
    has_only_data = op.arguments == ("data",) and not op.auxiliary and not op.variadic
    if has_only_data and not op.traits.input_named:
        return ("input0",)
    return (*op.inputs(), *op.auxiliary)
