"""Operators whose output shapes depend on the values of their inputs.

Graphs with such operators are not planned: hybridized blocks and executors run them operator by operator.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred, InferredTypes, shape_of
from flowmx.ops.arrays.shape_arithmetic import axis_of
from flowmx.ops.nn.common import expect_shape
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, operator, option
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor, Tensors


@operator("_contrib_boolean_mask")
class BooleanMask(Operator, hidden=True, dynamic=True):  # mx.nd.contrib.boolean_mask is a function
    """The slices of ``data`` along an axis where ``index`` (one axis) is not 0."""

    arguments = ("data", "index")
    axis: int = option(0, "The axis.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, index = shapes
        if data is None:
            return shapes, [None]
        axis = axis_of(self, self.axis, len(data))
        index = expect_shape(self, "index", index, (data[axis],))
        return [data, index], [(*data[:axis], -1, *data[axis + 1 :])]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, dtypes[:1]

    def compute_eagerly(self, F: Functions, inputs: Tensors) -> Tensor:
        return F.contrib.boolean_mask(*inputs, axis=self.axis)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        raise ShapeError(
            f"{self.name}: the output shape depends on the values of the inputs, so a graph with it cannot be planned"
        )

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        data = F.op("_backward_contrib_boolean_mask", heads[0], shape_of(inputs, 0), inputs[1], axis=self.axis)
        return [data, F.zeros_like(shape_of(inputs, 1))]


@operator("_backward_contrib_boolean_mask")
class BackwardBooleanMask(Operator, hidden=True):
    """The gradient of boolean_mask: the head's slices at the positions of the mask, 0 elsewhere."""

    arguments = ("head", "like", "index")
    axis: int = option(0, "The axis.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[1]]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, dtypes[:1]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        head, _, index = inputs
        outputs[0].fill(0)
        run.xp.moveaxis(outputs[0], self.axis, 0)[index != 0] = run.xp.moveaxis(head, self.axis, 0)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        raise NotImplementedError  # no second order
