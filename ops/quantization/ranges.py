"""The arithmetic of quantized numbers: a number of a range ``(low, high)`` is ``real = number · magnitude / steps``.

Magnitude is the larger of ``low`` and ``high`` without their signs, so 0 is 0. How many steps a type has differs
between operators, as it does in MXNet with oneDNN: most count half a step more than the type has, 127.5 and 255.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from flowmx.errors import TypeInferenceError
from flowmx.ops.nn.common import expect_shape
from flowmx.ops.registry.dtypes import FLOAT32, DType, name_of
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, kernel_for, merge, operator

__all__ = [
    "INT8", "INT32", "RANGE", "UINT8", "Inferred", "InferredTypes", "Quantized", "Range", "backwards", "compute",
    "known_types", "largest", "magnitude", "number", "operator", "product_magnitude", "put_range", "range_of",
    "round_into", "scale_of",
]  # fmt: skip

INT8: DType = np.dtype(np.int8)
UINT8: DType = np.dtype(np.uint8)
INT32: DType = np.dtype(np.int32)
STEPS = {INT8: np.float32(127.5), UINT8: np.float32(255.5)}
"""The steps of a type, by which most operators scale."""
_LARGEST = np.float32(2147483647)
_LEVELS = {INT8: np.float32(127), UINT8: np.float32(255)}
RANGE: ShapeOrNone = (1,)
"""The shape of one end of a range."""

Range = tuple[np.float32, np.float32]
"""The ends of a range."""
Inferred = tuple[list[ShapeOrNone], list[ShapeOrNone]]
InferredTypes = tuple[list[DType | None], list[DType | None]]


def number(array: Array) -> np.float32:
    """The one number of an array."""
    return np.float32(float(array.reshape(-1)[0]))


def range_of(low: Array, high: Array) -> Range:
    """The range that two arrays hold."""
    return number(low), number(high)


def largest(ends: Range) -> np.float32:
    """The larger absolute value of the ends of a range."""
    return np.float32(max(abs(ends[0]), abs(ends[1])))


def magnitude(low: Array, high: Array) -> np.float32:
    """The same of a range in two arrays."""
    return largest(range_of(low, high))


def scale_of(dtype: DType, size: np.float32) -> np.float32:
    """The steps of a type for each unit of a real number, for a range of a magnitude."""
    return np.float32(STEPS[dtype] / size) if size else _LARGEST


def product_magnitude(one: np.float32, other: np.float32, second: DType = INT8) -> np.float32:
    """The magnitude of int32's range for products of int8 and int8 or uint8, from those of the factors."""
    unit = np.float32(np.float32(one / _LEVELS[INT8]) * np.float32(other / _LEVELS[second]))
    return np.float32(unit * _LARGEST)


def put_range(outputs: Sequence[Array], low: Any, high: Any) -> None:
    """Write the range of a result, the second and third of an operator's outputs."""
    outputs[1][...] = low
    outputs[2][...] = high


def round_into(xp: Any, values: Array, out: Array) -> None:
    """Round real numbers to the nearest whole ones, halves to even ones, those outside to the type's ends.

    The array of values is written over.
    """
    ends = np.iinfo(out.dtype)
    xp.rint(values, out=values)
    # float32 has no number between int32's last and 2**31.
    above = values >= 1 << 31 if ends.max >= 1 << 24 and values.dtype == FLOAT32 else None
    xp.clip(values, ends.min, ends.max if above is None else np.float32(2147483520), out=values)
    xp.copyto(out, values, casting="unsafe")
    if above is not None:
        out[above] = ends.max


def compute(op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Run another operator, by the device's kernel where there is one."""
    fast = kernel_for(run.device.kernels, op.name)
    if fast is None:
        op.forward(run, inputs, outputs)
    else:
        fast(op, run, inputs, outputs)


def known_types(
    op: Operator, given: Sequence[DType | None], expected: Sequence[tuple[DType, ...]]
) -> list[DType | None]:
    """Complete the dtypes of inputs, each of which may be one of a few (or any, where none is named).

    Unknown ones stay so where there is a choice.

    Raises:
        TypeInferenceError: one is none of those.
    """
    found: list[DType | None] = []
    for name, dtype, allowed in zip((*op.inputs(), *op.auxiliary), given, expected, strict=True):
        if dtype is not None and allowed and dtype not in allowed:
            raise TypeInferenceError(
                f"{op.name}: input {name} has dtype {name_of(dtype)}, expected {' or '.join(map(name_of, allowed))}"
            )
        found.append(allowed[0] if dtype is None and len(allowed) == 1 else dtype)
    return found


def backwards(shapes: list[ShapeOrNone], outputs: Sequence[ShapeOrNone]) -> list[ShapeOrNone]:
    """The shapes of the inputs, where the first has that of the first output."""
    both = merge(shapes[0], outputs[0])
    return shapes if both is False else [both, *shapes[1:]]


class Quantized(Operator, no_gradient=True, quantized=None):
    """Base of operators whose first output is quantized; the two others are the ends of its range.

    Of its inputs those from :meth:`ranges_from` on are ends of ranges.
    """

    output_names: ClassVar[tuple[str, ...]] = ("output", "min_output", "max_output")

    def ranges_from(self) -> int:
        """The number of inputs before the ranges."""
        return 1

    def known_range(self, dtypes: Sequence[DType], ranges: Sequence[Range | None]) -> Range | None:
        """The range of the output, where it follows from those of the inputs; None where it follows from data.

        Args:
            dtypes: those of the inputs before the ranges, and of the output.
            ranges: of each pair of inputs from :meth:`ranges_from` on; None where it is not known.
        """
        return None

    def put_range(self, outputs: Sequence[Array], ends: Range | None) -> None:
        """Write the range of the output, which must be known."""
        assert ends is not None
        put_range(outputs, *ends)

    def with_ranges(self, shapes: Sequence[ShapeOrNone], result: ShapeOrNone) -> Inferred:
        """The shapes of inputs and outputs, from those of the inputs before the ranges and that of the result."""
        names, first = self.inputs(), self.ranges_from()
        ends = [
            expect_shape(self, name, shape, RANGE) for name, shape in zip(names[first:], shapes[first:], strict=True)
        ]
        return [*shapes[:first], *ends], [result, *[RANGE] * (len(self.outputs()) - 1)]

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return self.with_ranges(shapes, shapes[0])

    def with_types(
        self, dtypes: Sequence[DType | None], expected: Sequence[tuple[DType, ...]], result: DType | None
    ) -> InferredTypes:
        """The dtypes of inputs and outputs, from those that the inputs before the ranges may have."""
        ends = [(FLOAT32,)] * (len(dtypes) - len(expected))
        return known_types(self, dtypes, [*expected, *ends]), [result, *[FLOAT32] * (len(self.outputs()) - 1)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return self.with_types(dtypes, [(INT8, UINT8)], dtypes[0])
