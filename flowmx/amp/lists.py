"""The operators of each precision, by the names that users see; the operators say it themselves (``Traits.precision``).

For float16 these are MXNet's lists, with the operators that it forgot. They hold for bfloat16 too, where MXNet has
longer lists of what stays float32: its kernels were fewer, not the bits.
"""

from __future__ import annotations

from flowmx.ops.registry.operators import Operator, registered
from flowmx.ops.registry.traits import Precision

LOSS_OUTPUTS = ("SoftmaxOutput", "LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput")
"""Output layers that make their gradient themselves, whatever the gradient of the loss: those that MXNet lists."""

KEEP = frozenset({"sequence_length", "lengths", "label_lengths", "data_lengths"})
"""Inputs that count something, and so are never cast."""


def computing_in(precision: Precision) -> list[str]:
    """The public operators that compute in a precision, whatever their parameters."""
    return [cls.name for cls in _public() if cls.traits.precision is precision]


def conditional_fp32() -> list[tuple[str, str, list[str]]]:
    """The operators that stay float32 where a parameter has one of some values."""
    found = [(cls.name, cls.traits.float32_where) for cls in _public()]
    return [(name, where[0], list(where[1])) for name, where in found if where is not None]


def lp16_fp32() -> list[str]:
    """The operators that compute in whatever they are given."""
    given = (None, Precision.GIVEN)
    return sorted(cls.name for cls in _public() if cls.traits.precision in given and cls.traits.float32_where is None)


def _public() -> list[type[Operator]]:
    """Each public operator, once."""
    return [cls for cls in dict.fromkeys(registered().values()) if not cls.traits.hidden]
