"""The arithmetic of quantized numbers with a range ``(low, high)``: ``real = number · magnitude / steps``.

The magnitude is ``max(|low|, |high|)``, so 0 maps to 0. As in MXNet with oneDNN, the number of steps of a type differs
between operators: most use half a step more than the type has, 127.5 and 255.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flowmx.errors import TypeInferenceError
from flowmx.ops.nn.common import expect_shape
from flowmx.ops.registry.dtypes import FLOAT32, DType, name_of
from flowmx.ops.registry.operators import Array, Operator, ShapeOrNone, merge, operator
from flowmx.ops.registry.tensors import ArrayNamespace

__all__ = [
    "INT8", "INT32", "RANGE", "UINT8", "Inferred", "InferredTypes", "Quantized", "Range", "backwards",
    "known_types", "largest", "magnitude", "number", "operator", "product_magnitude", "put_range", "range_of",
    "round_into", "scale_of",
]  # fmt: skip

INT8: DType = np.dtype(np.int8)
UINT8: DType = np.dtype(np.uint8)
INT32: DType = np.dtype(np.int32)
STEPS = {INT8: np.float32(127.5), UINT8: np.float32(255.5)}
"""The number of steps of a type, for most operators."""
_LARGEST = np.float32(2147483647)
_LEVELS = {INT8: np.float32(127), UINT8: np.float32(255)}
RANGE: ShapeOrNone = (1,)
"""The shape of one end of a range."""

Range = tuple[np.float32, np.float32]
"""The ends of a range."""
Inferred = tuple[list[ShapeOrNone], list[ShapeOrNone]]
InferredTypes = tuple[list[DType | None], list[DType | None]]


def number(array: Array) -> np.float32:
    """Return the number in an array of one element."""
    return np.float32(float(array.reshape(-1)[0]))


def range_of(low: Array, high: Array) -> Range:
    """Return the range in two arrays."""
    return number(low), number(high)


def largest(ends: Range) -> np.float32:
    """Return the magnitude of a range: the larger absolute value of its ends."""
    return np.float32(max(abs(ends[0]), abs(ends[1])))


def magnitude(low: Array, high: Array) -> np.float32:
    """Return the magnitude of a range in two arrays."""
    return largest(range_of(low, high))


def scale_of(dtype: DType, size: np.float32) -> np.float32:
    """Return the quantization steps per unit of a type, for a range of this magnitude."""
    return np.float32(STEPS[dtype] / size) if size else _LARGEST


def product_magnitude(first: np.float32, second: np.float32, second_dtype: DType = INT8) -> np.float32:
    """Return the magnitude of the int32 range for products of int8 with int8 or uint8, from the factors' magnitudes."""
    unit = np.float32(np.float32(first / _LEVELS[INT8]) * np.float32(second / _LEVELS[second_dtype]))
    return np.float32(unit * _LARGEST)


def put_range(outputs: Sequence[Array], low: object, high: object) -> None:
    """Write the range of a result into the second and third output."""
    outputs[1][...] = low
    outputs[2][...] = high


def round_into(xp: ArrayNamespace, values: Array, out: Array) -> None:
    """Round to the nearest integers, ties to even, and clip to the output's dtype; overwrite ``values``."""
    ends = np.iinfo(out.dtype)
    xp.rint(values, out=values)
    # float32 has no number between the largest int32 and 2**31.
    above = values >= 1 << 31 if ends.max >= 1 << 24 and values.dtype == FLOAT32 else None
    xp.clip(values, ends.min, ends.max if above is None else np.float32(2147483520), out=values)
    xp.copyto(out, values, casting="unsafe")
    if above is not None:
        out[above] = ends.max


def known_types(
    op: Operator, dtypes: Sequence[DType | None], choices: Sequence[tuple[DType, ...]]
) -> list[DType | None]:
    """Complete the dtypes of inputs from the allowed dtypes of each (empty: any).

    Unknown dtypes stay unknown if several are allowed.

    Raises:
        TypeInferenceError: a dtype is not allowed.
    """
    completed: list[DType | None] = []
    for name, dtype, allowed in zip((*op.inputs(), *op.auxiliary), dtypes, choices, strict=True):
        if dtype is not None and allowed and dtype not in allowed:
            raise TypeInferenceError(
                f"{op.name}: input {name} has dtype {name_of(dtype)}, expected {' or '.join(map(name_of, allowed))}"
            )
        completed.append(allowed[0] if dtype is None and len(allowed) == 1 else dtype)
    return completed


def backwards(shapes: list[ShapeOrNone], outputs: Sequence[ShapeOrNone]) -> list[ShapeOrNone]:
    """Return the input shapes of an operator whose first input and first output have the same shape."""
    merged = merge(shapes[0], outputs[0])
    return shapes if merged is False else [merged, *shapes[1:]]


class Quantized(Operator, no_gradient=True, quantized=None):
    """Base of operators whose first output is quantized; the other two are the ends of its range.

    The inputs from :meth:`ranges_from` on are ends of ranges.
    """

    output_names: ClassVar[tuple[str, ...]] = ("output", "min_output", "max_output")

    def ranges_from(self) -> int:
        """Return the number of inputs before the ranges."""
        return 1

    def known_range(self, dtypes: Sequence[DType], ranges: Sequence[Range | None]) -> Range | None:
        """Return the range of the output if it follows from the ranges of the inputs; None if it depends on the data.

        Args:
            dtypes: the dtypes of the inputs before the ranges, and of the output.
            ranges: the range of each pair of inputs from :meth:`ranges_from` on; None if unknown.
        """
        return None

    def put_range(self, outputs: Sequence[Array], ends: Range | None) -> None:
        """Write the range of the output, which must be known."""
        assert ends is not None
        put_range(outputs, *ends)

    def with_ranges(self, shapes: Sequence[ShapeOrNone], result: ShapeOrNone) -> Inferred:
        """Return the shapes of inputs and outputs, from the shapes before the ranges and the shape of the result."""
        names, first = self.inputs(), self.ranges_from()
        ends = [
            expect_shape(self, name, shape, RANGE) for name, shape in zip(names[first:], shapes[first:], strict=True)
        ]
        return [*shapes[:first], *ends], [result, *[RANGE] * (len(self.outputs()) - 1)]

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return self.with_ranges(shapes, shapes[0])

    def with_types(
        self: Operator, dtypes: Sequence[DType | None], expected: Sequence[tuple[DType, ...]], result: DType | None
    ) -> InferredTypes:
        """Return the dtypes of inputs and outputs, from the allowed dtypes of the inputs before the ranges."""
        ends = [(FLOAT32,)] * (len(dtypes) - len(expected))
        return known_types(self, dtypes, [*expected, *ends]), [result, *[FLOAT32] * (len(self.outputs()) - 1)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return self.with_types(dtypes, [(INT8, UINT8)], dtypes[0])
