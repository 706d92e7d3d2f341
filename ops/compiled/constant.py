"""Constants of compiled graphs: they replace everything that does not depend on a variable."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.registry.dtypes import DType, name_of
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, operator


@operator("_constant")
class Constant(Operator, hidden=True, no_gradient=True, once=True):
    """An array computed when the graph was compiled.

    Args:
        value: a NumPy array; it becomes read-only.
    """

    arguments = ()

    def __init__(self, value: Array) -> None:
        value.flags.writeable = False
        super().__init__()
        self.__dict__.update(_value=value, _hash=hash((value.shape, value.dtype, value.tobytes())), _specs={})

    @property
    def value(self) -> Array:
        """The array."""
        result: Array = self.__dict__["_value"]
        return result

    @cached_property
    def number(self) -> float | None:
        """The number that all elements are equal to; None if they differ."""
        first = self.value.reshape(-1)[:1]
        is_full = self.value.size and self.value.tobytes() == first.tobytes() * self.value.size
        return float(first[0]) if is_full else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant) or hash(self) != hash(other):
            return False
        own, others = self.value, other.value
        # Compare bytes, so that NaN equals NaN, and -0.0 does not equal 0.0.
        return (own.shape, own.dtype, own.tobytes()) == (others.shape, others.dtype, others.tobytes())

    def __hash__(self) -> int:
        return int(self.__dict__["_hash"])

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [], [self.value.shape]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return [], [self.value.dtype]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = run.xp.asarray(self.value)

    def __repr__(self) -> str:
        return f"{self.name}({self.value.shape}, {name_of(self.value.dtype)})"
