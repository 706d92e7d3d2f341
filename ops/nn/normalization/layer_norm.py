"""Normalizations within each example: LayerNorm, InstanceNorm, GroupNorm and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from flowmx.errors import ShapeError
from flowmx.ops.nn.common import expect_rank, positive_axis
from flowmx.ops.nn.normalization.base_normalization import BackwardNormalization, Frame, Normalization, around_axis
from flowmx.ops.registry.operators import Shape, describe, operator, option
from flowmx.ops.registry.traits import BatchWise, Precision


@operator("LayerNorm")
class LayerNorm(Normalization, precision=Precision.FLOAT32, batch_wise=BatchWise.FIRST):
    """Normalize along one axis, then scale by gamma and add beta (Ba et al., "Layer Normalization", 2016).

    Shapes: data of any shape; gamma and beta as long as the axis. Further outputs with
    ``output_mean_var``: mean and √(var + eps), with the axis 1 long.
    """

    input_docs = describe(
        data="any shape, float",
        gamma="(length of the axis,), float; float32 for data of 16 bits",
        beta="(length of the axis,), float; float32 for data of 16 bits",
    )
    output_doc = "The shape and dtype of data; with output_mean_var also mean and √(var + eps), with the axis 1 long"
    axis: int = option(-1, "The axis to normalize along.")
    eps: float = option(1e-5, "Added to the variance.", low=0)
    output_mean_var: bool = option(False, "Return the statistics as further outputs.")

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return self.axis % len(inputs[0]) == 0

    def frame(self, shape: Shape) -> Frame:
        axis = positive_axis(self, self.axis, shape)
        return Frame(around_axis(shape, axis), (1,), (1, shape[axis], 1))

    def scale_shape(self, shape: Shape) -> Shape:
        return (shape[positive_axis(self, self.axis, shape)],)

    def statistics_shape(self, shape: Shape) -> Shape:
        axis = positive_axis(self, self.axis, shape)
        return (*shape[:axis], 1, *shape[axis + 1 :])


@operator("_backward_LayerNorm")
class BackwardLayerNorm(BackwardNormalization, LayerNorm, batch_wise=BatchWise.OWN):
    """Gradients of LayerNorm."""


@operator("InstanceNorm")
class InstanceNorm(Normalization, precision=Precision.FLOAT32, batch_wise=BatchWise.FIRST):
    """Normalize each channel of each sample over its positions (Ulyanov et al., 2016).

    Shapes: data (batch, channels, *size), gamma and beta (channels,).
    """

    output_mean_var = False
    onnx = "InstanceNormalization"
    onnx_attributes: ClassVar[dict[str, str]] = {"epsilon": "eps"}
    eps: float = option(1e-3, "Added to the variance.", low=0)

    def frame(self, shape: Shape) -> Frame:
        return Frame((*shape[:2], math.prod(shape[2:])), (2,), (1, shape[1], 1))

    def scale_shape(self, shape: Shape) -> Shape:
        expect_rank(self, "data", shape, 3)
        return (shape[1],)

    def statistics_shape(self, shape: Shape) -> Shape:
        return shape[:2]


@operator("_backward_InstanceNorm")
class BackwardInstanceNorm(BackwardNormalization, InstanceNorm, batch_wise=BatchWise.OWN):
    """Gradients of InstanceNorm."""


@operator("GroupNorm")
class GroupNorm(Normalization, precision=Precision.FLOAT32, batch_wise=BatchWise.FIRST):
    """Normalize each group of channels of each sample (Wu and He, "Group Normalization", 2018).

    Shapes: data (batch, channels, ...), gamma and beta (num_groups,), as in MXNet 1.9. Further outputs with
    ``output_mean_var``: mean and √(var + eps), each (batch, num_groups).
    """

    input_docs = describe(
        gamma="(num_groups,), float; float32 for data of 16 bits",
        beta="(num_groups,), float; float32 for data of 16 bits",
    )
    output_doc = "The shape and dtype of data; with output_mean_var also mean and √(var + eps), (batch, num_groups)"
    num_groups: int = option(1, "Number of groups; divides the channels.", low=1)
    eps: float = option(1e-5, "Added to the variance.", low=0)
    output_mean_var: bool = option(False, "Return the statistics as further outputs.")

    def frame(self, shape: Shape) -> Frame:
        groups = self.num_groups
        return Frame((shape[0], groups, math.prod(shape[1:]) // groups), (2,), (1, groups, 1))

    def scale_shape(self, shape: Shape) -> Shape:
        expect_rank(self, "data", shape, 3)
        if shape[1] > 0 and shape[1] % self.num_groups:
            raise ShapeError(
                f"{self.name}: input data has shape {shape}, expected a multiple of num_groups "
                f"{self.num_groups} channels"
            )
        return (self.num_groups,)

    def statistics_shape(self, shape: Shape) -> Shape:
        return (shape[0], self.num_groups)


@operator("_backward_GroupNorm")
class BackwardGroupNorm(BackwardNormalization, GroupNorm, batch_wise=BatchWise.OWN):
    """Gradients of GroupNorm."""
