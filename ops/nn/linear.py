"""FullyConnected, and the two products of its gradient.

The three are each other's gradients: Y = X Wᵀ, dX = H W, dW = Hᵀ X.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flowmx.ops.arrays.linear import shape_of
from flowmx.ops.math.conversion import as_type, cast
from flowmx.ops.math.matmul import matmul, try_device_product
from flowmx.ops.nn.common import (
    Linear,
    LinearData,
    LinearWeight,
    computing_dtype,
    expect_rank,
    expect_shape,
    product,
    scratch,
)
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import (
    Array,
    Bound,
    Form,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    operator,
    option,
    required,
)
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchWise, Precision, Quantization


def as_matrix(array: Array, flatten: bool) -> Array:
    """Reshape the data to a matrix with one row per sample."""
    if array.ndim == 2:
        return array
    shape = array.shape
    return array.reshape((shape[0], product(shape[1:])) if flatten else (product(shape[:-1]), shape[-1]))


def multiply(run: Run, a: Array, b: Array, out: Array) -> None:
    """Compute ``out = a @ b`` for matrices; 16-bit dtypes in float32 if the host has no 16-bit product."""
    dtype = computing_dtype(out.dtype)
    # A GPU multiplies 16-bit matrices directly and accumulates in float32.
    if dtype == out.dtype or run.xp is not np:
        matmul(run, a, b, out)
    elif not try_device_product(run, a, b, out):
        product = scratch(run, "product", out.shape, dtype)
        matmul(run, as_type(run, a, dtype), as_type(run, b, dtype), product)
        cast(run, product, out)


def _is_plain(forms: Sequence[Form]) -> bool:
    """Return whether all dtypes are float32 or float64."""
    return all(dtype in (FLOAT32, np.float64) for _, dtype in forms)


@operator("FullyConnected")
class FullyConnected(
    Linear,
    precision=Precision.LOW,
    quantized=Quantization("_contrib_quantized_fully_connected", always=True),
    batch_wise=BatchWise.FIRST,
):
    """Apply a linear transformation: Y = X Wᵀ + b.

    Shapes: data (batch, ...), weight (num_hidden, inputs), bias (num_hidden,), output (batch, num_hidden);
    without ``flatten`` the transformation applies to the last axis: (..., inputs) to (..., num_hidden).
    """

    input_docs = describe(
        data="(batch, ...), or (..., inputs) without flatten, float",
        weight="(num_hidden, inputs), the dtype of data",
        bias="(num_hidden,), the dtype of data; not with no_bias",
    )
    output_doc = "(batch, num_hidden), or (..., num_hidden) without flatten, the dtype of data"
    num_hidden: int = required("Number of hidden nodes of the output.", low=1)
    no_bias: bool = option(False, "Leave the bias out.")
    flatten: bool = option(True, "Collapse all axes of the data except the first.")

    def bias_axis(self) -> int:
        return 1 if self.flatten else -1

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        data, weight, *bias = shapes
        if data is None:
            return shapes, [None]
        expect_rank(self, "data", data, 1)
        units = product(data[1:]) if self.flatten else data[-1]
        result = (data[0], self.num_hidden) if self.flatten else (*data[:-1], self.num_hidden)
        weight = expect_shape(self, "weight", weight, (self.num_hidden, units), data)
        bias = [expect_shape(self, "bias", shape, (self.num_hidden,)) for shape in bias]
        return [data, weight, *bias], [result]

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        # The begin states of an mx.rnn cell get their batch size from the other summand.
        data, *others = shapes
        if not data or data[0] != -1 or outputs[0] is None:
            return shapes
        return [(outputs[0][0], *data[1:]), *others]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        return 2 * product(outputs[0]) * inputs[1][1], sum(map(product, (*inputs, *outputs)))

    def bound(self, xp: ArrayNamespace, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
        if not _is_plain(in_forms) or len(in_forms[0][0]) != 2:
            return None
        product, add = xp.matmul, None if self.no_bias else xp.add

        def connect(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            out = outputs[0]
            product(inputs[0], inputs[1].T, out=out)
            if add is not None:
                add(out, inputs[2], out=out)

        return connect

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out = outputs[0]
        multiply(run, as_matrix(inputs[0], self.flatten), inputs[1].T, as_matrix(out, self.flatten))
        if not self.no_bias:
            run.xp.add(out, inputs[2], out=out)


@operator("_backward_FullyConnected_data")
class FullyConnectedData(LinearData, FullyConnected, batch_wise=BatchWise.OWN):
    """dX = H W."""

    infer_back = Operator.infer_back

    def bound(self, xp: ArrayNamespace, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
        if not _is_plain(in_forms) or len(in_forms[0][0]) != 2 or len(out_forms[0][0]) != 2:
            return None
        product = xp.matmul

        def multiply_by_weight(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            product(inputs[0], inputs[1], out=outputs[0])

        return multiply_by_weight

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        head, weight = inputs[:2]
        multiply(run, as_matrix(head, self.flatten), weight, outputs[0].reshape(-1, weight.shape[1]))


@operator("_backward_FullyConnected_weight")
class FullyConnectedWeight(LinearWeight, FullyConnected, batch_wise=BatchWise.SUM):
    """dW = Hᵀ X."""

    infer_back = Operator.infer_back

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        data = shapes[1]
        units = -1 if data is None else product(data[1:]) if self.flatten else data[-1]
        return shapes, [(self.num_hidden, units)]

    def bound(self, xp: ArrayNamespace, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
        if not _is_plain(in_forms) or len(in_forms[0][0]) != 2 or len(in_forms[1][0]) != 2:
            return None
        # A single sample gives an outer product, for which BLAS is several times slower.
        product = xp.multiply if in_forms[0][0][0] == 1 else xp.matmul

        def multiply_by_data(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            product(inputs[0].T, inputs[1], out=outputs[0])

        return multiply_by_data

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        multiply(run, as_matrix(inputs[0], self.flatten).T, as_matrix(inputs[1], self.flatten), outputs[0])


@operator("_backward_bias")
class BackwardBias(Operator, hidden=True, batch_wise=BatchWise.SUM):
    """The sum over all axes except one: the gradient of a bias along that axis."""

    arguments = ("head",)
    axis: int = 1

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return self.axis % len(inputs[0]) == 0

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, [None if shapes[0] is None else (shapes[0][self.axis],)]

    def bound(self, xp: ArrayNamespace, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
        if xp is not np or not _is_plain(in_forms) or len(in_forms[0][0]) != 2 or self.axis not in (-1, 1):
            return None
        total: Callable[..., object] = np.add.reduce

        def add_up(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            total(inputs[0], 0, None, outputs[0])

        return add_up

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        head, out = inputs[0], outputs[0]
        dtype: DType = computing_dtype(out.dtype)
        if self.axis == -1 or head.ndim == 2:
            out[...] = head.reshape(product(head.shape[:-1]), head.shape[-1]).sum(axis=0, dtype=dtype)
        else:
            # The contiguous axis first, so that the second sum is small.
            out[...] = head.reshape(*head.shape[:2], product(head.shape[2:])).sum(axis=2, dtype=dtype).sum(axis=0)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_spread_bias", heads[0], shape_of(inputs, 0), axis=self.axis)]


@operator("_spread_bias")
class SpreadBias(Operator, hidden=True):
    """A vector along one axis, repeated along the others to the shape of ``like``."""

    arguments = ("bias", "like")
    axis: int = 1

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, [shapes[1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out = outputs[0]
        shape = [1] * out.ndim
        shape[self.axis] = -1
        out[...] = inputs[0].reshape(shape)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_backward_bias", heads[0], axis=self.axis), None]
