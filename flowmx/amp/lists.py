"""The operators of each precision, by their public names. The operators define it (``Traits.precision``).

For float16 these are MXNet's lists, completed. They are also valid for bfloat16, for which MXNet has longer lists of
float32 operators, because it had fewer kernels.
"""

from __future__ import annotations

from flowmx.ops.registry.operators import Operator, registered_operators
from flowmx.ops.registry.traits import Precision

LOSS_OUTPUTS = ("SoftmaxOutput", "LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput")
"""Output layers that compute their own gradient, whatever the gradient of the loss, as listed by MXNet."""

KEEP = frozenset({"sequence_length", "lengths", "label_lengths", "data_lengths"})
"""Inputs that are counts, which are never cast."""


def computing_in(precision: Precision) -> list[str]:
    """Return the public operators that always compute in a precision."""
    return [cls.name for cls in _public() if cls.traits.precision is precision]


def conditional_fp32() -> list[tuple[str, str, list[str]]]:
    """Return the operators that stay in float32 for some values of a parameter."""
    conditions = [(cls.name, cls.traits.float32_where) for cls in _public()]
    return [(name, where[0], list(where[1])) for name, where in conditions if where is not None]


def lp16_fp32() -> list[str]:
    """Return the operators that compute in the dtype of their inputs."""
    precisions = (None, Precision.GIVEN)
    return sorted(
        cls.name for cls in _public() if cls.traits.precision in precisions and cls.traits.float32_where is None
    )


def _public() -> list[type[Operator]]:
    """Return the public operators without duplicates."""
    return [cls for cls in dict.fromkeys(registered_operators().values()) if not cls.traits.hidden]
