"""Cumulative sums, moments, sums of squares and histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flowmx.errors import DataError, ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred, InferredTypes, shape_of
from flowmx.ops.arrays.shape_arithmetic import axis_of, length_product
from flowmx.ops.math.reduce import Reduction, Sum, sum_into, sum_keepdims, widen
from flowmx.ops.registry.dtypes import BY_NAME, FLOAT32, DType, is_floating
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    operator,
    option,
    required,
)
from flowmx.ops.registry.tensors import Functions, Gradients, Tensor, Tensors
from flowmx.ops.registry.traits import BatchWise, Precision


@operator("_np_cumsum", "cumsum")
class CumSum(Operator, precision=Precision.FLOAT32, batch_wise=BatchWise.FIRST):
    """The cumulative sums along an axis, or of the flattened array."""

    arguments = ("a",)
    input_docs = describe(a="any shape, any dtype")
    output_doc = "The shape of a, or flat if axis is None; dtype `dtype`, or that of a (int64 for bool)"
    axis: int | None = option(None, "The axis; None for the flattened array.")
    dtype: DType | None = option(None, "The output's dtype (default: the input's).")

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return self.axis is None or self.axis % len(inputs[0]) == 0

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if self.axis is None:
            return shapes, [(-1,) if shape is None else (length_product(*shape),)]
        if shape is not None:
            axis_of(self, self.axis, len(shape))
        return shapes, [shape]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        dtype = BY_NAME["int64"] if dtypes[0] is not None and dtypes[0].kind == "b" else dtypes[0]
        return dtypes, [self.dtype or dtype]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out = outputs[0]
        narrow = is_floating(out.dtype) and out.dtype.itemsize < 4
        out[...] = run.xp.cumsum(inputs[0], axis=self.axis, dtype=FLOAT32 if narrow else out.dtype)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        axis = 0 if self.axis is None else self.axis
        head = F.reverse(F.cumsum(F.reverse(heads[0], axis=axis), axis=axis), axis=axis)
        like = shape_of(inputs, 0)
        if self.axis is None:
            head = F.reshape_like(head, like)
        return [F.op("_cast_like", head, like) if self.dtype else head]


@operator("moments")
class Moments(Operator, precision=Precision.FLOAT32, input_named=True):
    """Mean and variance over the given axes."""

    input_docs = describe(data="any shape, float")
    output_doc = (
        "Mean and variance: the shape of data without the axes, or with length 1 there (keepdims); the dtype of data"
    )
    output_names = ("output0", "output1")
    axes: Shape | None = option(None, "The axes; None for all.")
    keepdims: bool = option(False, "Keep the reduced axes, with length 1.")

    def reduction_parameters(self) -> dict[str, object]:
        """Return the axes as parameters of a reduction."""
        return {"axis": self.axes, "keepdims": self.keepdims}

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        completed, (shape,) = Sum.create(**self.reduction_parameters()).infer_shape(shapes)
        return completed, [shape, shape]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x = widen(inputs[0])
        reduction = Sum.create(**self.reduction_parameters())
        assert isinstance(reduction, Reduction)
        axes = reduction.axes(x.ndim)
        count = math.prod(x.shape[axis] for axis in axes)
        mean = sum_keepdims(run.xp, x, axes) / count
        outputs[0][...] = mean.reshape(outputs[0].shape)
        if not is_floating(x.dtype):
            mean = run.xp.trunc(mean)  # as in the output
        outputs[1][...] = (sum_keepdims(run.xp, run.xp.square(x - mean), axes) / count).reshape(outputs[1].shape)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        x = inputs[0]
        mean_gradient, variance_gradient = (
            F.op("_backward_mean", head, x, **self.reduction_parameters()) for head in heads
        )
        centered = x - F.op("_backward_sum", outputs[0], x, **self.reduction_parameters())
        return [mean_gradient + variance_gradient * centered * 2.0]


@operator("_square_sum")
class SquareSum(Reduction, precision=Precision.FLOAT32):
    """The sum of squares over the given axes."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        squares = run.xp.square(widen(inputs[0]))
        sum_into(run, squares, self.axes(squares.ndim), outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        parameters = {"axis": self.axis, "keepdims": self.keepdims, "exclude": self.exclude}
        return [F.op("_backward_sum", heads[0], inputs[0], **parameters) * inputs[0] * 2.0]


@operator("_backward_square_sum")
class BackwardSquareSum(Reduction, hidden=True, precision=Precision.FLOAT32):
    """The gradient of _square_sum: 2 · data · head."""

    arguments = ("head", "data")
    input_docs = describe(head="the shape of the sums", data="any shape")
    output_doc = "The shape of data"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        head, data = inputs
        outputs[0][...] = data * 2 * self.spread(head, data.shape)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        head, data = inputs
        parameters = {"axis": self.axis, "keepdims": self.keepdims, "exclude": self.exclude}
        doubled = heads[0] * 2.0
        return [
            F.op("sum", doubled * data, **parameters),
            F.op("_backward_sum", head, data, **parameters) * doubled,
        ]


@operator("multi_sum_sq")
class MultiSumSq(Operator, precision=Precision.FLOAT32):
    """The sum of the squares of each input, in one float32 array (num_arrays,)."""

    variadic = "num_arrays"
    input_docs = describe(data="arrays of any shape and dtype")
    output_doc = "(num_arrays,), float32"
    num_arrays: int = required("Number of inputs.", low=1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [(self.num_arrays,)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [FLOAT32]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for index, array in enumerate(inputs):
            flat = widen(array).reshape(-1)
            outputs[0][index] = run.xp.dot(flat, flat)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [self._gradient_of(F, inputs[index], F.slice_axis(heads[0], axis=0, begin=index, end=index + 1))
                for index in range(self.num_arrays)]  # fmt: skip

    def _gradient_of(self, F: Functions, x: Tensor, head: Tensor) -> Tensor:
        spread_head = F.op("broadcast_like", F.op("Reshape", head, shape=(1,) * max(1, len(x.shape))), x)
        return F.op("_cast_like", spread_head, x) * x * 2.0


@operator("_histogram")
class Histogram(Operator, no_gradient=True):
    """The histogram of all elements: the counts between adjacent edges, and the edges.

    The edges are the second input, ascending, or ``bin_cnt`` bins of equal width that cover ``range``. Numbers outside
    the edges are not counted.
    """

    arguments = ("data", "bins")
    input_docs = describe(
        data="any shape, any dtype",
        bins="(edges,), the dtype of data, ascending; not with bin_cnt",
    )
    output_doc = "Counts (bins,), int64, and edges (bins + 1,), the dtype of data"
    output_names = ("output0", "output1")
    bin_cnt: int | None = option(None, "Number of bins of equal width; None to read the edges from an input.", low=1)
    range: tuple[float, ...] | None = option(None, "Lowest and highest edge, with bin_cnt.")

    def __post_init__(self) -> None:
        if (self.bin_cnt is None) != (self.range is None):
            raise ParameterError(
                f"{self.name}: bin_cnt is {self.bin_cnt} and range is {self.range}, expected both or neither"
            )
        if self.range is not None and not (len(self.range) == 2 and self.range[0] < self.range[1]):
            raise ParameterError(f"{self.name}: range is {self.range}, expected the lowest and a higher edge")

    def inputs(self) -> tuple[str, ...]:
        return self.arguments if self.bin_cnt is None else self.arguments[:1]

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        if self.bin_cnt is not None:
            return shapes, [(self.bin_cnt,), (self.bin_cnt + 1,)]
        edges = shapes[1]
        if edges is None or edges == (-1,):
            return shapes, [(-1,), edges]
        if len(edges) != 1 or edges[0] < 2:
            raise ShapeError(f"{self.name}: bins has shape {edges}, expected one axis of at least 2 edges")
        return shapes, [(edges[0] - 1,), edges]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        completed, (dtype, _) = super().infer_type(dtypes)
        return completed, [BY_NAME["int64"], dtype]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        # 16 bits are too coarse for the edges.
        data = widen(inputs[0]).reshape(-1)
        bins: Any = widen(inputs[1]) if self.bin_cnt is None else self.bin_cnt
        if self.bin_cnt is None and not bool((bins[1:] >= bins[:-1]).all()):
            raise DataError(f"{self.name}: input bins holds {bins}, expected edges in ascending order")
        if data.dtype.kind == "f":
            data = data[run.xp.isfinite(data)]
        outputs[0][...], edges = run.xp.histogram(data, bins=bins, range=self.range)
        outputs[1][...] = edges
