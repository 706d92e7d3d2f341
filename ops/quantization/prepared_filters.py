"""Operators that prepare the filters of quantized layers once, and layers that use prepared filters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from flowmx.ops.quantization.int8_filters import Filters
from flowmx.ops.quantization.ranges import (
    INT8,
    INT32,
    RANGE,
    Inferred,
    InferredTypes,
    magnitude,
    number,
    operator,
    scale_of,
)
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone

if TYPE_CHECKING:
    from flowmx.ops.quantization.subgraph_layers import SubgraphConvolution, SubgraphLayer, SubgraphProduct


@operator("_settled_filters")
class FusedFilters(Operator, hidden=True, no_gradient=True, once=True):
    """The parameters of a quantized layer in its kernel's form, for known ranges of data and output."""

    arguments = ()
    output_names = ("weight", "bias", "scale")
    part: ClassVar[SubgraphLayer]
    """The layer."""
    data_scale: ClassVar[np.float32]
    """The quantization steps of the data per unit."""
    unit: ClassVar[np.float32]
    """The quantization steps of the output per unit; 1 for a floating-point output."""

    @classmethod
    def of(cls, part: SubgraphLayer, data_scale: np.float32, unit: np.float32) -> FusedFilters:
        """Return the operator for a layer."""
        return _with_attributes(cls(), part=part, data_scale=data_scale, unit=unit)

    def inputs(self) -> tuple[str, ...]:
        return self.part.parameters_read()

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        weight = shapes[0]
        outputs = None if weight is None else weight[:1]
        return shapes, [weight, outputs, outputs]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [INT8, FLOAT32, FLOAT32]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        weight, bias, scale = outputs
        filters = self.part.filters(run.xp, dict(zip(self.inputs(), inputs, strict=True)), self.data_scale)
        weight[...] = filters.weight
        scale[...] = self.unit / (filters.scales * self.data_scale)
        bias[...] = 0 if filters.bias is None else filters.bias * scale

    def __repr__(self) -> str:
        return f"{self.name}({self.part!r})"


@operator("_whole_filters")
class RangeFreeFilters(Operator, hidden=True, no_gradient=True, once=True):
    """The folded int8 filters of a convolution whose output range is computed at each call."""

    arguments = ()
    output_names = ("weight", "scale", "size", "bias")
    part: ClassVar[SubgraphConvolution]
    """The layer."""

    @classmethod
    def of(cls, part: SubgraphConvolution) -> RangeFreeFilters:
        """Return the operator for a layer."""
        return _with_attributes(cls(), part=part)

    def inputs(self) -> tuple[str, ...]:
        return self.part.parameters_read()

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        weight = shapes[0]
        return shapes, [weight, RANGE, RANGE, None if weight is None else weight[:1]]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [INT8, FLOAT32, FLOAT32, FLOAT32]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        filters = self.part.range_free_filters(run.xp, dict(zip(self.inputs(), inputs, strict=True)))
        for out, value in zip(outputs, (filters.weight, filters.scales, filters.size, filters.bias), strict=True):
            out[...] = 0 if value is None else value


@operator("_convolution_by_filters")
class ConvolutionByFilters(
    Operator, hidden=True, no_gradient=True, heavy=True, multiplies=True, makes_channels_last=True
):
    """A quantized, fused convolution with prepared filters; its output range is computed at each call."""

    arguments = ()
    output_names = ("output", "output_min", "output_max")
    part: ClassVar[SubgraphConvolution]
    """The layer."""
    packed: ClassVar[bool] = False
    """Whether the weight is packed in a kernel's layout."""

    @classmethod
    def of(cls, part: SubgraphConvolution, packed: bool = False) -> ConvolutionByFilters:
        """Return the operator for a layer."""
        return _with_attributes(cls(), part=part, packed=packed)

    def inputs(self) -> tuple[str, ...]:
        return (
            "data",
            *RangeFreeFilters.output_names,
            *self.part.array_names()[-1:][not self.part.with_sum :],
            *self.part.range_names(),
        )

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [None if shapes[0] is None else self.part.layer.output_shape(shapes[0]), RANGE, RANGE]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [INT32, FLOAT32, FLOAT32]

    def cost(self, inputs: Sequence[object], outputs: Sequence[object]) -> tuple[int, int]:
        cost: tuple[int, int] = self.part.layer.cost(inputs[: len(self.part.layer.inputs())], outputs[:1])
        return cost

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        arrays = dict(zip(self.inputs(), inputs, strict=True))
        units = arrays["scale"] * scale_of(arrays["data"].dtype, magnitude(arrays["data_min"], arrays["data_max"]))
        bias = run.xp.rint(arrays["bias"] * units)
        filters = Filters(arrays["weight"], arrays["scale"], number(arrays["size"]), bias)
        self.part.compute_by(run, arrays, outputs, filters, self.packed)

    def __repr__(self) -> str:
        return f"{self.name}({self.part!r})"


@operator("_product_by_packed")
class ProductByPacked(Operator, hidden=True, no_gradient=True, heavy=True, multiplies=True):
    """A quantized product with a packed weight; its output range is computed at each call."""

    arguments = ()
    output_names = ("output", "min_output", "max_output")
    part: ClassVar[SubgraphProduct]
    """The layer."""

    @classmethod
    def of(cls, part: SubgraphProduct) -> ProductByPacked:
        """Return the operator for a layer."""
        return _with_attributes(cls(), part=part)

    def inputs(self) -> tuple[str, ...]:
        return (*self.part.inputs(), "packed")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        in_shapes, outputs = self.part.infer_shape(shapes[:-1])
        return [*in_shapes, shapes[-1]], outputs

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        in_dtypes, outputs = self.part.infer_type(dtypes[:-1])
        return [*in_dtypes, INT8], outputs

    def cost(self, inputs: Sequence[object], outputs: Sequence[object]) -> tuple[int, int]:
        return self.part.cost(inputs[:-1], outputs)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.part.compute(run, dict(zip(self.inputs(), inputs, strict=True)), outputs)

    def __repr__(self) -> str:
        return f"{self.name}({self.part!r})"


OpT = TypeVar("OpT", bound=Operator)


def _with_attributes(op: OpT, **attributes: object) -> OpT:
    """Set attributes of an operator that are not parameters."""
    for name, value in {**attributes, "_specs": {}}.items():
        object.__setattr__(op, name, value)
    return op
