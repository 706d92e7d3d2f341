"""RMSNorm: each row is divided by the root of the mean of its squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from flowmx.ops.nn.common import computing_dtype, expect_shape, non_defaults, positive_axis
from flowmx.ops.nn.normalization.base_normalization import around_axis
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, describe, operator, option
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchParts, BatchWise, Precision

_PART = 1 << 16
"""Elements processed at a time."""


@operator("RMSNorm")
class RMSNorm(Operator, precision=Precision.FLOAT32, batch_wise=BatchWise.FIRST):
    """Divide by the root mean square along one axis, then scale by gamma: x/√(mean(x²) + eps) · gamma.

    Zhang and Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019.
    """

    arguments: ClassVar[tuple[str, ...]] = ("data", "gamma")
    output_names: ClassVar[tuple[str, ...]] = ("output", "root")
    input_docs = describe(
        data="any shape, float",
        gamma="(length of the axis,), float; float32 for data of 16 bits",
    )
    output_doc = "The shape and dtype of data"
    axis: int = option(-1, "The axis to normalize along.")
    eps: float = option(1e-6, "Added to the mean of the squares.", low=0)

    def visible_outputs(self) -> int:
        return 1

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return self.axis % len(inputs[0]) == 0

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        data = shapes[0]
        if data is None:
            return shapes, [None, None]
        axis = positive_axis(self, self.axis, data)
        gamma = expect_shape(self, "gamma", shapes[1], (data[axis],))
        return [data, gamma], [data, (*data[:axis], 1, *data[axis + 1 :])]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        # The root and gamma of 16-bit data are float32.
        data, gamma = dtypes
        wide = None if data is None else computing_dtype(data)
        return [data, wide if gamma is None else gamma], [data, wide]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (data, gamma) = run.xp, inputs
        shape = around_axis(data.shape, self.axis % data.ndim)
        x, out, root = data.reshape(shape), outputs[0].reshape(shape), outputs[1].reshape(shape[0], 1, shape[2])
        dtype, scale = outputs[1].dtype, gamma.reshape(-1, 1)
        for part in _parts(shape):
            root[part] = xp.sqrt(xp.square(x[part], dtype=dtype).mean(axis=1, keepdims=True) + dtype.type(self.eps))
            xp.multiply(x[part] / root[part], scale, out=out[part], casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return list(F.op("_backward_RMSNorm", heads[0], *inputs, outputs[1], **non_defaults(self)))


@operator("_backward_RMSNorm")
class BackwardRMSNorm(RMSNorm, hidden=True, batch_wise=BatchWise.OWN):
    """Gradients of RMSNorm for data and gamma."""

    arguments: ClassVar[tuple[str, ...]] = ("head", "data", "gamma", "root")
    output_names: ClassVar[tuple[str, ...]] = ("data_grad", "gamma_grad")

    def visible_outputs(self) -> int:
        return 2

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, [shapes[1], shapes[2]]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        return dtypes, [dtypes[1], dtypes[2]]

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        return None if self.axis % len(inputs[1]) == 0 else BatchParts((0, 1, 3), (0,), (1,))

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        # dx = (g - x̂ · mean(g · x̂))/root with g = head · gamma.
        xp, data = run.xp, inputs[1]
        shape = around_axis(data.shape, self.axis % data.ndim)
        head, x, out = (array.reshape(shape) for array in (inputs[0], data, outputs[0]))
        root, scale = inputs[3].reshape(shape[0], 1, shape[2]), inputs[2].reshape(-1, 1)
        total = xp.zeros(shape[1], root.dtype)
        for part in _parts(shape):
            hat = x[part] / root[part]
            product = head[part] * hat
            total += product.sum(axis=(0, 2))
            product *= scale
            hat *= product.mean(axis=1, keepdims=True)
            xp.divide(head[part] * scale - hat, root[part], out=out[part], casting="unsafe")
        outputs[1][...] = total

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        raise NotImplementedError  # there is no second derivative


def _parts(shape: Shape) -> list[slice]:
    """Return slices of the first axis, each small enough for the processor's caches."""
    step = max(1, _PART // max(1, shape[1] * shape[2]))
    return [slice(start, start + step) for start in range(0, shape[0], step)]
