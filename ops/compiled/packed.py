"""Copies of the weights of layers in the order that a kernel multiplies them in, which a bound graph makes once.

How elements lie in such a copy is the kernel's own affair; those of the plain forwards lie in C order.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.ops.compiled.fused import Fused, FusedConvolution, FusedFullyConnected, scaled_weight
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, family, operator, required


@family
class Pack(Fused, once=True, makes_channels_last=False, in_place=()):
    """The weight of a layer, multiplied by the scale where there is one, in the layout of the layer's kernel.

    It stands before the layer among the bases, whose other parameters are those of the layer that reads the copy.
    """

    # Its first input is the weight, for which the layer's facts about its data do not hold.
    cost = Operator.cost
    infer_back = Operator.infer_back
    data_shape: Shape = required("The shape of the layer's data.")
    size: int = required("The elements of the copy.", low=0)

    def inputs(self) -> tuple[str, ...]:
        return ("weight", "scale") if self.scaled else ("weight",)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        weight = self.weight_shape(self.data_shape)
        return [weight, *[weight[:1]] * self.scaled], [(self.size,)]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        return dtypes, dtypes[:1]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        weight = scaled_weight(*inputs)
        outputs[0][: weight.size] = weight.reshape(-1)


@operator("_pack_Convolution")
class PackConvolution(Pack, FusedConvolution):
    """The filters of a convolution."""


@operator("_order_Convolution")
class OrderConvolution(PackConvolution, once=False):
    """The filters of a convolution that runs slice by slice, brought into order in each run, before the slices."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.with_traits(in_place=())


@operator("_pack_FullyConnected")
class PackFullyConnected(Pack, FusedFullyConnected):
    """The weight of FullyConnected."""
