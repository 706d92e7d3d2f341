"""Products with quantized weights, and rows of quantized tables; the weights are in one of the formats of GGUF files.

The forwards dequantize the weight and multiply in float32. If the weight is interleaved, and its format is one of
integers, data are rounded to 8 or 16 bits first, so that kernels (``kernels/llvm/packed_dense.py``) can multiply
integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from flowmx.errors import AutogradError, ParameterError, TypeInferenceError
from flowmx.ops.arrays.indexing import positions
from flowmx.ops.nn.common import expect_rank, expect_shape, needs_gradient, product
from flowmx.ops.quantization.block_formats import FORMATS, format_named
from flowmx.ops.quantization.interleaved_weights import GROUP, STEPS, dequantize_rows, interleave, tile_shape, values_of
from flowmx.ops.quantization.ranges import UINT8, Inferred, InferredTypes
from flowmx.ops.registry.dtypes import FLOAT32, DType, is_floating, name_of
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    family,
    operator,
    option,
    required,
)
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchWise, Precision

FormatName = Literal["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"]
assert set(FormatName.__args__) == set(FORMATS)  # type: ignore[attr-defined]


DataBits = Literal[8, 16]
_SMALLEST = {8: np.float32(2.0**-120), 16: np.float32(2.0**-112)}
"""The smallest value that is not rounded to 0, if it is the largest one of a block."""


def rounded(xp: ArrayNamespace, data: Array, bits: DataBits) -> Array:
    """Round rows of data, float32 (rows, columns), to 8 or 16 bits in blocks of 32 values.

    The largest absolute value of a block is 127 steps, or 32512 of 16 bits. A block with a NaN or an infinity becomes
    NaN; one of values below 2**-120, or 2**-112, becomes 0.
    """
    count = np.float32(STEPS[bits])
    blocks = data.reshape(len(data), data.shape[1] // GROUP, GROUP)
    largest = xp.abs(blocks).max(axis=2, keepdims=True)
    is_normal = (largest >= _SMALLEST[bits]) & (largest <= np.finfo(np.float32).max)
    steps = xp.where(is_normal, count / xp.where(is_normal, largest, 1), 0)
    scales = xp.where(is_normal, largest / count, xp.where(largest < 1, np.float32(0), np.float32(np.nan)))
    whole = xp.rint(xp.where(is_normal, blocks, 0) * steps)
    return (whole * scales).astype(np.float32).reshape(data.shape)


@family
class _OfBlocks(Operator):
    """Base of operators that read a weight in blocks."""

    format: FormatName = required("The format of the weight.")
    interleaved: bool = option(False, "The weight is the result of ``interleave_weight``.")

    def _check_columns(self, name: str, columns: int) -> None:
        """Check the number of values of a row.

        Raises:
            ParameterError: it is no multiple of the block's.
        """
        try:
            format_named(self.format).row_bytes(columns)
        except ValueError as error:
            raise ParameterError(f"{self.name}: {name} is {columns}: {error}") from None

    def _weight_shape(self, rows: int, columns: int) -> Shape:
        if self.interleaved:
            return tile_shape(self.format, rows, columns)
        return rows, format_named(self.format).row_bytes(columns)

    def _values(self, xp: ArrayNamespace, weight: Array, rows: int, columns: int) -> Array:
        """Return the weight in float32: (rows, columns)."""
        return values_of(format_named(self.format), weight, self.interleaved, rows, columns, xp)


def _expect_bytes(op: Operator, dtype: DType | None) -> DType:
    if dtype is not None and dtype != UINT8:  # None equals float64
        raise TypeInferenceError(
            f"{op.name}: input weight has dtype {name_of(dtype)}, expected uint8, the bytes of blocks"
        )
    return UINT8


@operator("_contrib_interleave_weight")
class InterleaveWeight(Operator, no_gradient=True, precision=Precision.GIVEN):
    """The rows of a quantized weight in the order in which products read them.

    Interleave a weight once, when it is loaded, and pass it to ``packed_dense`` and ``packed_embedding`` with
    ``interleaved=True``.
    """

    arguments: ClassVar[tuple[str, ...]] = ("weight",)
    input_docs = describe(weight="(rows, bytes of a row), uint8")
    output_doc = "(tiles of 16 rows, bytes of a tile), uint8"
    format: FormatName = required("The format of the weight.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        weight = shapes[0]
        expect_rank(self, "weight", weight, 2, 2)
        if weight is None or -1 in weight:
            return shapes, [None]
        try:
            columns = format_named(self.format).columns(weight[1])
        except ValueError as error:
            raise ParameterError(f"{self.name}: {error}") from None
        return [weight], [tile_shape(self.format, weight[0], columns)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return [_expect_bytes(self, dtypes[0])], [UINT8]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = interleave(self.format, inputs[0], run.xp)


_PARAMETERS = ("format", "interleaved", "num_hidden", "in_units", "data_bits")
"""The parameters that a product and its gradient share."""


@operator("_contrib_packed_dense")
class PackedDense(_OfBlocks, heavy=True, multiplies=True, precision=Precision.GIVEN, batch_wise=BatchWise.FIRST):
    """Multiply data by a quantized weight: Y = X Wᵀ + b.

    If the weight is interleaved and its format is one of integers, data are rounded to ``data_bits`` bits, with a scale
    for each block of 32 values; rows with a NaN or an infinity then have NaN as their result. The weight is constant:
    it has no gradient.
    """

    arguments: ClassVar[tuple[str, ...]] = ("data", "weight", "bias")
    input_docs = describe(
        data="(..., in_units), float32 or 16 bits",
        weight="(num_hidden, bytes of a row), or the result of ``interleave_weight``; uint8",
        bias="(num_hidden,), the dtype of data; not with no_bias",
    )
    output_doc = "(..., num_hidden), the dtype of data"
    num_hidden: int = required("Number of rows of the weight.", low=1)
    in_units: int = required("Number of values of a row of the weight.", low=1)
    no_bias: bool = option(True, "Leave the bias out.")
    data_bits: DataBits = option(
        16, "The number of bits to which data are rounded: 16 are as exact as float32, 8 are faster for many rows."
    )

    def __post_init__(self) -> None:
        self._check_columns("in_units", self.in_units)

    def inputs(self) -> tuple[str, ...]:
        return self.arguments[: 2 if self.no_bias else 3]

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, weight, *bias = shapes
        expect_rank(self, "data", data, 1)
        if data is not None and data[-1] not in (-1, self.in_units):
            expect_shape(self, "data", data, (*data[:-1], self.in_units))
        weight = expect_shape(self, "weight", weight, self._weight_shape(self.num_hidden, self.in_units))
        bias = [expect_shape(self, "bias", shape, (self.num_hidden,)) for shape in bias]
        complete = None if data is None else (*data[:-1], self.in_units)
        return [complete, weight, *bias], [None if data is None else (*data[:-1], self.num_hidden)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        data, weight, *bias = dtypes
        if data is not None and not is_floating(data):
            raise TypeInferenceError(
                f"{self.name}: input data has dtype {name_of(data)}, expected a floating-point one"
            )
        for dtype in bias:
            if dtype is not None and data is not None and dtype != data:
                raise TypeInferenceError(f"{self.name}: input bias has dtype {name_of(dtype)}, expected that of data")
        return [data, _expect_bytes(self, weight), *[data] * len(bias)], [data]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        return 2 * product(outputs[0]) * self.in_units, sum(map(product, (*inputs, *outputs)))

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (data, weight, *bias) = run.xp, inputs
        values = self._values(xp, weight, self.num_hidden, self.in_units)
        with np.errstate(all="ignore"):  # infinities become NaN
            matrix = data.reshape(-1, self.in_units).astype(np.float32)
            if self.interleaved and format_named(self.format).bits:
                matrix = rounded(xp, matrix, self.data_bits)
            result = matrix @ values.T
            if bias:
                result += bias[0].astype(np.float32)
            outputs[0][...] = result.reshape(outputs[0].shape)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        parameters = {name: getattr(self, name) for name in _PARAMETERS}
        data = F.op("_backward_packed_dense_data", heads[0], inputs[1], **parameters)
        weight = F.op("_backward_packed_dense_weight", inputs[1]) if needs_gradient(inputs, 1) else None
        if self.no_bias:
            return [data, weight]
        return [data, weight, F.op("sum", F.op("reshape", heads[0], shape=(-1, self.num_hidden)), axis=0)]


@operator("_backward_packed_dense_data")
class PackedDenseData(_OfBlocks, hidden=True, heavy=True, multiplies=True):
    """dX = H W, for a quantized weight."""

    arguments: ClassVar[tuple[str, ...]] = ("head", "weight")
    num_hidden: int = required("Number of rows of the weight.", low=1)
    in_units: int = required("Number of values of a row of the weight.", low=1)
    data_bits: DataBits = option(16, "That of the product.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        head = shapes[0]
        weight = self._weight_shape(self.num_hidden, self.in_units)
        return [head, weight], [None if head is None else (*head[:-1], self.in_units)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return [dtypes[0], UINT8], [dtypes[0]]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        return 2 * product(outputs[0]) * self.num_hidden, sum(map(product, (*inputs, *outputs)))

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        head, weight = inputs
        values = self._values(run.xp, weight, self.num_hidden, self.in_units)
        with np.errstate(all="ignore"):
            result = head.reshape(-1, self.num_hidden).astype(np.float32) @ values
            outputs[0][...] = result.reshape(outputs[0].shape)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        parameters = {name: getattr(self, name) for name in _PARAMETERS}
        return [F.op("_contrib_packed_dense", heads[0], inputs[1], **parameters), None]


@operator("_backward_packed_dense_weight")
class PackedDenseWeight(Operator, hidden=True, no_gradient=True):
    """The gradient of a quantized weight, which does not exist: requests for it are refused."""

    arguments: ClassVar[tuple[str, ...]] = ("weight",)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        raise AutogradError(
            "a quantized weight has no gradient, because its codes are integers; set grad_req='null' for it, or "
            "dequantize it and train the result"
        )


@operator("_contrib_packed_embedding")
class PackedEmbedding(_OfBlocks, no_gradient=True, precision=Precision.GIVEN, batch_wise=BatchWise.FIRST):
    """Rows of a quantized table at the indices, dequantized: shape data + (output_dim,).

    Indices out of range are clipped.
    """

    arguments: ClassVar[tuple[str, ...]] = ("data", "weight")
    input_docs = describe(
        data="any shape, int or float; row indices",
        weight="(input_dim, bytes of a row), or the result of ``interleave_weight``; uint8",
    )
    output_doc = "(*data.shape, output_dim), dtype `dtype`"
    input_dim: int = required("Number of rows of the table.", low=1)
    output_dim: int = required("Number of values of a row.", low=1)
    dtype: DType = option(FLOAT32, "The dtype of the output.")

    def __post_init__(self) -> None:
        self._check_columns("output_dim", self.output_dim)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        weight = expect_shape(self, "weight", shapes[1], self._weight_shape(self.input_dim, self.output_dim))
        return [data, weight], [None if data is None else (*data, self.output_dim)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return [dtypes[0], _expect_bytes(self, dtypes[1])], [self.dtype]

    def bytes_read(self, inputs: Sequence[int], output: int) -> int:
        return inputs[0] + output

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (data, weight) = run.xp, inputs
        rows = positions(xp, data, self.input_dim, "clip", self.name).reshape(-1)
        if self.interleaved:
            values = dequantize_rows(self.format, weight, rows, self.output_dim, xp)
        else:
            values = format_named(self.format).dequantize(weight[rows], xp)
        with np.errstate(over="ignore"):
            outputs[0][...] = values.reshape(outputs[0].shape)
