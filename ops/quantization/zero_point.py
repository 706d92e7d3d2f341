"""int8 and uint8 with a zero point, as in ONNX: ``x = (q - zero) * scale``; and operators that quantization inserts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from flowmx.ops.nn.common import non_defaults
from flowmx.ops.nn.pooling import Pooling
from flowmx.ops.quantization.ranges import (
    INT8,
    INT32,
    UINT8,
    Inferred,
    InferredTypes,
    known_types,
    operator,
    round_into,
)
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.kernels import compute_operator
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, family, option, required

__all__ = [
    "BytesPooling",
    "DequantizeConstant",
    "DequantizeLinear",
    "FromBytes",
    "LinearEnds",
    "QuantizeLinear",
    "ToBytes",
]


@family
class _Linear(Operator, hidden=True, no_gradient=True, keeps_layout=True):
    """Base of conversions by one scale and one zero point."""

    arguments = ("data",)
    scale: float = required("The value of one quantization step.")
    zero: int = option(0, "The byte that represents 0.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[0]]

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        return [shapes[0] if outputs[0] is None else outputs[0]]


@operator("_quantize_linear")
class QuantizeLinear(_Linear):
    """Quantize to int8 or uint8 with a zero point, clipped to the type."""

    out_dtype: Literal["int8", "uint8"] = option("uint8", "The dtype of the output.")

    @property
    def dtype(self) -> DType:
        """The dtype of the output."""
        return UINT8 if self.out_dtype == "uint8" else INT8

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return known_types(self, dtypes, [(FLOAT32,)]), [self.dtype]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, ends = run.xp, np.iinfo(self.dtype)
        values = inputs[0] / np.float32(self.scale)
        xp.rint(values, out=values)
        values += np.float32(self.zero)
        xp.clip(values, ends.min, ends.max, out=values)
        xp.copyto(outputs[0], values, casting="unsafe")


@operator("_dequantize_linear")
class DequantizeLinear(_Linear):
    """Dequantize int8 or uint8 with a zero point."""

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return known_types(self, dtypes, [(INT8, UINT8)]), [FLOAT32]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        values = run.xp.subtract(inputs[0], np.float32(self.zero), dtype=np.float32)
        run.xp.multiply(values, np.float32(self.scale), out=outputs[0])


@family
class _Rescaling(Operator, hidden=True, no_gradient=True):
    """Base of conversions by a constant factor."""

    arguments = ("data",)
    factor: float = required("The factor of the data.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[0]]


@operator("_to_bytes")
class ToBytes(_Rescaling, makes_channels_last=True):
    """Floating-point numbers times a factor, rounded and clipped to int8 or uint8."""

    out_dtype: Literal["int8", "uint8"] = option("int8", "The dtype of the output.")

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return known_types(self, dtypes, [(FLOAT32,)]), [UINT8 if self.out_dtype == "uint8" else INT8]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        round_into(run.xp, inputs[0] * np.float32(self.factor), outputs[0])


@operator("_from_bytes")
class FromBytes(_Rescaling, keeps_layout=True):
    """int8 or uint8 values times a factor, as floating-point numbers."""

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return known_types(self, dtypes, [(INT8, UINT8)]), [FLOAT32]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.multiply(inputs[0], np.float32(self.factor), out=outputs[0], dtype=np.float32)


@operator("_pool_bytes")
class BytesPooling(Pooling, hidden=True, no_gradient=True, quantized=None, input_named=False):
    """The maxima or rounded means of windows of int8 or uint8 values."""

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        in_dtypes = known_types(self, dtypes, [(INT8, UINT8)])
        return in_dtypes, [in_dtypes[0]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        real = run.xp.empty(outputs[0].shape, np.float32)
        compute_operator(Pooling.create(**non_defaults(self)), run, [inputs[0].astype(np.float32)], [real])
        round_into(run.xp, real, outputs[0])


@operator("_dequantize_constant")
class DequantizeConstant(Operator, hidden=True, no_gradient=True, once=True):
    """Dequantize integer parameters, with one scale or one per position on an axis."""

    arguments = ("data", "scale")
    axis: int = option(0, "The axis along which scales differ.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[0]]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return known_types(self, dtypes, [(INT8, INT32), (FLOAT32,)]), [FLOAT32]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, scale = inputs
        column = [1] * data.ndim
        if scale.size > 1:
            column[self.axis] = -1
        run.xp.multiply(data, scale.reshape(column), out=outputs[0], dtype=np.float32)


@operator("_linear_ends")
class LinearEnds(Operator, hidden=True, no_gradient=True, once=True):
    """Bias and scale of a layer on data with zero points, for :class:`flowmx.ops.quantization.int8_layers.Int8`.

    With ``biased`` it reads a floating-point bias.
    """

    arguments = ("weight", "scale", "bias")
    output_names = ("bias", "scale")
    biased: bool = option(False, "There is a bias.")
    data_scale: float = required("The value of one quantization step of the data.")
    data_zero: int = required("The byte of the data that represents 0.")
    out_scale: float = required("The value of one quantization step of the output; 1 for a floating-point output.")
    shift: float = required("Added to each element of the output.")

    def inputs(self) -> tuple[str, ...]:
        return self.arguments if self.biased else self.arguments[:2]

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        outputs = None if shapes[0] is None else shapes[0][:1]
        return shapes, [outputs, outputs]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return known_types(self, dtypes, [(INT8,), *[(FLOAT32,)] * (len(dtypes) - 1)]), [FLOAT32, FLOAT32]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        (weight, units, *biases), (bias, scale) = inputs, outputs
        out_scale = np.float32(self.out_scale)
        scale[...] = units * np.float32(self.data_scale) / out_scale
        bias[...] = biases[0] / out_scale if biases else 0
        if self.data_zero:
            bias -= scale * (weight.reshape(len(weight), -1).sum(axis=1, dtype=np.int32) * np.float32(self.data_zero))
        bias += np.float32(self.shift)
