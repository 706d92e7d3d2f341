"""Copies of weights in the layout of a kernel; a bound graph makes each copy once.

The layout is private to the kernel. The copies of the fallback forwards are in C order.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.compiled.fused_layers import Fused, FusedConvolution, FusedFullyConnected, scaled_weight
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, family, operator, required


@family
class Pack(Fused, once=True, makes_channels_last=False, in_place=()):
    """Mixin: the weight of a layer, multiplied by its scale if there is one, in the layout of the layer's kernel.

    The parameters are those of the layer that reads the copy, plus the ones below.
    """

    # The first input is the weight, not data: the layer's methods do not apply.
    cost = Operator.cost
    infer_back = Operator.infer_back
    data_shape: Shape = required("The shape of the layer's data.")
    size: int = required("The number of elements of the copy.", low=0)

    def inputs(self) -> tuple[str, ...]:
        return ("weight", "scale") if self.scaled else ("weight",)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        weight = self.weight_shape(self.data_shape)
        return [weight, *[weight[:1]] * self.scaled], [(self.size,)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, dtypes[:1]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        weight = scaled_weight(*inputs)
        outputs[0][: weight.size] = weight.reshape(-1)


@operator("_pack_Convolution")
class PackConvolution(Pack, FusedConvolution):
    """The filters of a convolution."""


@operator("_order_Convolution")
class RepackConvolution(PackConvolution, once=False):
    """The filters of a convolution that runs slice by slice, packed in each run before the slices."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.with_traits(in_place=())


@operator("_pack_FullyConnected")
class PackFullyConnected(Pack, FusedFullyConnected):
    """The weight of FullyConnected."""
