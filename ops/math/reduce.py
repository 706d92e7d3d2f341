"""Reductions, and broadcasting.

As in MXNet, a reduction over all axes has the shape (1,), and ``axis=()`` means all axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, cast

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred, InferredTypes, Linear, linear, parameters_of, shape_of
from flowmx.ops.arrays.shape_arithmetic import axes_of, axis_of, expect_elements
from flowmx.ops.registry.dtypes import DType, is_floating
from flowmx.ops.registry.operators import (
    Array,
    Bound,
    Form,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    family,
    operator,
    option,
)
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensor, Tensors
from flowmx.ops.registry.traits import BatchParts, BatchWise, Passing, Precision


def widen(x: Array) -> Array:
    """Return 16-bit floats as float32, for sums; other arrays unchanged."""
    return x.astype(np.float32) if is_floating(x.dtype) and x.dtype.itemsize < 4 else x


def reduce_into(function: Callable[..., Array], x: Array, axes: Shape, out: Array) -> None:
    """Reduce ``x`` over ``axes`` by a function of the array namespace, into ``out``."""
    values = widen(x)
    keepdims_shape = tuple(1 if axis in axes else length for axis, length in enumerate(x.shape))
    if out.flags.c_contiguous and values is x:
        function(x, axis=axes, keepdims=True, out=out.reshape(keepdims_shape))
    else:
        out[...] = function(values, axis=axes, keepdims=True).reshape(out.shape)


_BLOCK_ROWS = 32
"""Rows to sum one by one. NumPy sums all rows this way; float32 then loses a digit for each ten thousand."""


def is_row_sum(xp: ArrayNamespace, x: Array, axes: Shape) -> bool:
    """Return whether a sum over ``axes`` is a sum of many contiguous, nonempty rows."""
    leading = len(axes) < x.ndim and axes == tuple(range(len(axes)))
    if xp is not np or not leading or not is_floating(x.dtype) or not x.flags.c_contiguous:
        return False
    rows: int = math.prod(x.shape[: len(axes)])
    return rows > 2 * _BLOCK_ROWS and x.size > 0


def sum_into(run: Run, x: Array, axes: Shape, out: Array) -> None:
    """Sum ``x`` over ``axes`` into ``out``; many rows are summed in blocks, for precision."""
    if is_row_sum(run.xp, x, axes):
        out[...] = sum_keepdims(run.xp, widen(x), axes).reshape(out.shape)
    else:
        reduce_into(run.xp.sum, x, axes, out)


def sum_keepdims(xp: ArrayNamespace, x: Array, axes: Shape) -> Array:
    """Return the sum of ``x`` over ``axes``, which remain with length 1; many rows are summed in blocks."""
    if not is_row_sum(xp, x, axes):
        return xp.sum(x, axis=axes, keepdims=True)
    keepdims_shape = tuple(1 if axis in axes else length for axis, length in enumerate(x.shape))
    return _sum_blocks(x.reshape(math.prod(x.shape[: len(axes)]), -1)).reshape(keepdims_shape)


def _sum_blocks(rows: Array) -> Array:
    while len(rows) > 2 * _BLOCK_ROWS:
        full = len(rows) // _BLOCK_ROWS * _BLOCK_ROWS
        blocks = np.add.reduce(rows[:full].reshape(-1, _BLOCK_ROWS, rows.shape[1]), axis=1)
        rows = blocks if full == len(rows) else np.concatenate([blocks, rows[full:].sum(axis=0, keepdims=True)])
    result: Array = np.add.reduce(rows, axis=0)
    return result


@family
class Reduction(Operator, batch_wise=BatchWise.FIRST):
    """Base of reductions over some axes."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = (
        "The shape of data without the axes, or with length 1 there (keepdims); (1,) without any; the dtype of data"
    )
    axis: Shape | None = option(None, "The axes to reduce over; None or () for all.")
    keepdims: bool = option(False, "Keep the reduced axes, with length 1.")
    exclude: bool = option(False, "Reduce over the axes that are not in axis instead.")

    def axes(self, ndim: int) -> Shape:
        """The axes to reduce over."""
        if not self.axis:
            return tuple(range(ndim))
        named_axes = axes_of(self, self.axis, ndim)
        return tuple(axis for axis in range(ndim) if (axis in named_axes) != self.exclude)

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return 0 in self.axes(len(inputs[0]))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [None if self.axis or self.keepdims else (1,)]
        axes = self.axes(len(shape))
        if self.keepdims:
            return shapes, [tuple(1 if axis in axes else n for axis, n in enumerate(shape))]
        return shapes, [tuple(n for axis, n in enumerate(shape) if axis not in axes) or (1,)]

    def spread(self, head: Array, shape: Shape) -> Array:
        """Return an output as a view that broadcasts over the reduced axes."""
        axes = self.axes(len(shape))
        return head.reshape(tuple(1 if axis in axes else n for axis, n in enumerate(shape)))


@linear("sum", "sum_axis")
class Sum(Reduction, Linear, precision=Precision.FLOAT32):
    """The sum over the given axes."""

    onnx = "ReduceSum"

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        if self.traits.batch_wise is not BatchWise.UNKNOWN and inputs[0] and self.mixes_batch(inputs):
            return BatchParts((0,), (), (0,))
        return super().batch_parts(inputs, outputs)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        sum_into(run, inputs[0], self.axes(inputs[0].ndim), outputs[0])

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        out[...] = self.spread(head, out.shape)


@linear("mean")
class Mean(Reduction, Linear, precision=Precision.FLOAT32):
    """The mean over the given axes."""

    onnx = "ReduceMean"

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        axes = self.axes(inputs[0].ndim)
        count = math.prod(inputs[0].shape[axis] for axis in axes)
        if count and run.xp is np and is_floating(inputs[0].dtype) and inputs[0].dtype.itemsize >= 4:
            sum_into(run, inputs[0], axes, outputs[0])
            outputs[0][...] /= count
        else:  # NumPy warns about the mean of an empty array
            reduce_into(run.xp.mean, inputs[0], axes, outputs[0])

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        count = math.prod(out.shape[axis] for axis in self.axes(out.ndim))
        run.xp.divide(self.spread(head, out.shape), max(1, count), out=out, casting="unsafe")


class GradientContext(NamedTuple):
    """The functions that the gradients of reductions use."""

    F: Functions
    spread: Callable[[Tensor], Tensor]
    """An output, or its gradient, broadcast to the shape of the input."""
    others: Callable[[Tensor], Tensor]
    """For each element, the product of all others that are reduced with it."""


class Row(NamedTuple):
    """One reduction: name, function of the namespace, gradient of (context, x, y, g), documentation.

    The output y and its gradient g have the output's shape.
    """

    name: str
    function: str
    derivative: Callable[[GradientContext, Tensor, Tensor, Tensor], Tensor]
    doc: str
    aliases: tuple[str, ...] = ()
    searches: bool = False
    """Whether the result is an element of the input. If so, the reduced axes must not be empty."""
    onnx: str = ""
    """The operator of ONNX, as in :class:`Operator`."""
    ufunc: str | None = None
    """The NumPy ufunc whose ``reduce`` is this reduction."""
    terms: Callable[[ArrayNamespace, Array], Array] | None = None
    """For sums: the terms, as a function of the namespace and the input."""


TABLE = [
    Row("prod", "prod", lambda ctx, x, y, g: ctx.spread(g) * ctx.others(x), "The product over the given axes.",
        onnx="ReduceProd"),
    Row("nansum", "nansum", lambda ctx, x, y, g: ctx.spread(g) * (x == x),
        "The sum over the given axes; NaN counts as 0.", terms=lambda xp, x: xp.where(x == x, x, x.dtype.type(0))),
    Row("nanprod", "nanprod",
        lambda ctx, x, y, g: ctx.spread(g) * ctx.others(ctx.F.where(x == x, x, ctx.F.ones_like(x))) * (x == x),
        "The product over the given axes; NaN counts as 1."),
    Row("max", "max", lambda ctx, x, y, g: ctx.spread(g) * (x == ctx.spread(y)),
        "The maximum over the given axes.", ("max_axis",), True, "ReduceMax", "maximum"),
    Row("min", "min", lambda ctx, x, y, g: ctx.spread(g) * (x == ctx.spread(y)),
        "The minimum over the given axes.", ("min_axis",), True, "ReduceMin", "minimum"),
]  # fmt: skip


def _register(row: Row) -> None:
    def forward(self: Reduction, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, axes = inputs[0], self.axes(inputs[0].ndim)
        if row.terms is not None and is_row_sum(run.xp, x, axes):
            sum_into(run, row.terms(run.xp, x), axes, outputs[0])
        else:
            reduce_into(getattr(run.xp, row.function), x, axes, outputs[0])

    def infer_shape(self: Reduction, shapes: list[ShapeOrNone]) -> Inferred:
        if row.searches and shapes[0] is not None:
            expect_elements(self, shapes[0], self.axes(len(shapes[0])))
        return Reduction.infer_shape(self, shapes)

    def bind(
        self: Reduction, xp: ArrayNamespace, input_forms: Sequence[Form], output_forms: Sequence[Form]
    ) -> Bound | None:
        shape, dtype = input_forms[0]
        if row.ufunc is None or xp is not np or dtype not in (np.float32, np.float64) or 0 in shape:
            return None
        axes = self.axes(len(shape))
        reduce: Callable[..., object] = getattr(np, row.ufunc).reduce
        keepdims_shape = tuple([1 if axis in axes else length for axis, length in enumerate(shape)])

        def reduce_forward(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            out = outputs[0]
            if out.flags.c_contiguous:
                reduce(inputs[0], axes, None, out.reshape(keepdims_shape), True)
            else:
                self.forward(run, inputs, outputs)

        return reduce_forward

    def gradient(self: Reduction, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        def spread(array: Tensor) -> Tensor:
            return F.op("_backward_sum", array, inputs[0], **parameters_of(self))

        def others(array: Tensor) -> Tensor:
            return F.op("_products_of_others", array, **parameters_of(self))

        return [row.derivative(GradientContext(F, spread, others), inputs[0], outputs[0], heads[0])]

    body = {
        "__doc__": row.doc,
        "__module__": __name__,
        "onnx": row.onnx,
        "infer_shape": infer_shape,
        "forward": forward,
        "bound": bind,
        "gradient": gradient,
    }
    operator(row.name, *row.aliases)(
        type(row.name, (Reduction,), body, precision=None if row.searches else Precision.FLOAT32)
    )


for _row in TABLE:
    _register(_row)


@operator("norm")
class Norm(Operator, precision=Precision.FLOAT32, batch_wise=BatchWise.FIRST):
    """The L1 or L2 norm over the given axes."""

    input_docs = describe(data="any shape, float")
    output_doc = (
        "The shape of data without the axes, or with length 1 there (keepdims); dtype `out_dtype`, or that of data"
    )
    ord: Literal[1, 2] = option(2, "The order of the norm.")
    axis: Shape | None = option(None, "The axes to reduce over; None for all.")
    out_dtype: DType | None = option(None, "The output's dtype (default: the input's).")
    keepdims: bool = option(False, "Keep the reduced axes, with length 1.")

    exclude = False

    def axes(self, ndim: int) -> Shape:
        """The axes to reduce over."""
        return Reduction.axes(cast("Reduction", self), ndim)

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return 0 in self.axes(len(inputs[0]))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return Reduction.infer_shape(cast("Reduction", self), shapes)

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [self.out_dtype or dtypes[0]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, out = widen(inputs[0]), outputs[0]
        x = x.astype(np.float64) if x.dtype.kind in "iu" else x  # squares of integers could overflow
        axes = self.axes(x.ndim)
        terms = run.xp.abs(x) if self.ord == 1 else run.xp.square(x)
        total = sum_keepdims(run.xp, terms, axes)
        out[...] = (total if self.ord == 1 else run.xp.sqrt(total)).reshape(out.shape)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        x = inputs[0]

        def spread(array: Tensor) -> Tensor:
            if self.out_dtype is not None:
                array = F.op("_cast_like", array, x)
            return F.op("_backward_sum", array, x, axis=self.axis, keepdims=self.keepdims)

        if self.ord == 1:
            return [spread(heads[0]) * F.sign(x)]
        y = outputs[0]
        return [spread(heads[0]) * x / spread(y + (y == 0))]  # the gradient of the norm is 0 for zeros


@family
class ArgReduction(Operator, no_gradient=True, batch_wise=BatchWise.FIRST):
    """Base of argmax and argmin."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = (
        "The shape of data without the axis, or with length 1 there (keepdims); (1,) without any; the dtype of data"
    )
    function = ""
    axis: int | None = option(None, "The axis to search; None for the flattened array.")
    keepdims: bool = option(False, "Keep the searched axis, with length 1.")

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return self.axis is None or self.axis % len(inputs[0]) == 0

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [None if self.axis is not None or self.keepdims else (1,)]
        if self.axis is None:
            expect_elements(self, shape, range(len(shape)))
            return shapes, [(1,) * len(shape) if self.keepdims else (1,)]
        axis = axis_of(self, self.axis, len(shape))
        expect_elements(self, shape, [axis])
        return shapes, [(*shape[:axis], *((1,) if self.keepdims else ()), *shape[axis + 1 :]) or (1,)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        positions = getattr(run.xp, self.function)(inputs[0], axis=self.axis)
        outputs[0][...] = positions.reshape(outputs[0].shape)


@operator("argmax")
class ArgMax(ArgReduction):
    """The position of the maximum along an axis (the first one), in the input's dtype."""

    function = "argmax"
    onnx = "ArgMax"


@operator("argmin")
class ArgMin(ArgReduction):
    """The position of the minimum along an axis (the first one), in the input's dtype."""

    function = "argmin"
    onnx = "ArgMin"


@operator("argmax_channel")
class ArgMaxChannel(Operator, no_gradient=True, batch_wise=BatchWise.FIRST):
    """The position of the maximum along axis 1, in the input's dtype."""

    input_docs = describe(data="(batch, channels, ...), any dtype")
    output_doc = "(batch, ...), the dtype of data"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [None]
        if len(shape) < 2:
            raise ShapeError(f"argmax_channel: data has shape {shape}, expected at least 2 axes")
        expect_elements(self, shape, [1])
        return shapes, [shape[:1] + shape[2:]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = inputs[0].argmax(axis=1)


# -- broadcasting ------------------------------------------------------------------------------------------


@operator("_sum_like")
class SumLike(Operator, hidden=True, passing=Passing.ALIKE, batch_wise=BatchWise.OWN):
    """Undo broadcasting: sum over the axes along which ``like`` was broadcast to the shape of ``data``."""

    arguments = ("data", "like")

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        data, like = inputs
        if self.traits.batch_wise is BatchWise.UNKNOWN or not data:
            return None
        if len(like) < len(data) or like[0] != data[0]:
            return BatchParts((0,), (), (0,))
        return BatchParts((0, 1), (0,))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, like = shapes
        if data is not None and like is not None:
            padded = (1,) * (len(data) - len(like)) + like
            if len(like) > len(data) or any(
                a != b and b != 1 and -1 not in (a, b) for a, b in zip(data, padded, strict=True)
            ):
                raise ShapeError(f"_sum_like: data has shape {data}, which {like} does not broadcast to")
        return shapes, [like]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0] if dtypes[0] is not None else dtypes[1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, out = inputs[0], outputs[0]
        lead = data.ndim - out.ndim
        axes = tuple(range(lead)) + tuple(
            axis + lead for axis, n in enumerate(out.shape) if n == 1 and data.shape[axis + lead] != 1
        )
        if axes:
            sum_into(run, data, axes, out)
        else:
            run.xp.copyto(out, data)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.broadcast_like(heads[0], shape_of(inputs, 0)), None]


class _Broadcast(Operator, repeats=True, passing=Passing.ALIKE, batch_wise=BatchWise.ALL):
    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_sum_like", heads[0], shape_of(inputs, 0)), *([None] * (len(self.arguments) - 1))]


@operator("broadcast_to")
class BroadcastTo(_Broadcast):
    """Broadcast axes of length 1 to ``shape``; a 0 in it keeps the input's axis."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "`shape`, the dtype of data"
    shape: Shape = option((), "The new shape.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, target = shapes[0], self.shape
        if data is None:
            return shapes, [None if 0 in target else target]
        padded = (1,) * (len(target) - len(data)) + data
        fits = len(data) <= len(target) and all(
            t == n or n in (1, -1) or t == 0 for n, t in zip(padded, target, strict=True)
        )
        if not fits:
            raise ShapeError(
                f"broadcast_to: shape is {target}, which the input's shape {data} does not broadcast to: "
                "each axis must be equal, or 1 in the input"
            )
        # 0 keeps an axis, as in MXNet; for an empty axis the result is the same.
        return shapes, [tuple(t or n for n, t in zip(padded, target, strict=True))]


@operator("broadcast_axis", "broadcast_axes")
class BroadcastAxis(_Broadcast):
    """Broadcast axes of length 1 to new sizes."""

    input_docs = describe(data="any shape with length 1 on the axes, any dtype")
    output_doc = "The shape of data with the new sizes, the dtype of data"
    axis: Shape = option((), "The axes.")
    size: Shape = option((), "Their sizes.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        if len(self.axis) != len(self.size):
            raise ShapeError(f"{self.name}: axis is {self.axis} and size {self.size}, expected equal lengths")
        if shapes[0] is None:
            return shapes, [None]
        shape = list(shapes[0])
        for axis, size in zip(axes_of(self, self.axis, len(shape)), self.size, strict=True):
            if shape[axis] not in (1, -1):
                raise ShapeError(
                    f"{self.name}: axis {axis} of the input's shape {shapes[0]} has length {shape[axis]}, expected 1"
                )
            shape[axis] = size
        return shapes, [tuple(shape)]


@operator("broadcast_like")
class BroadcastLike(_Broadcast, shapes_only=("rhs",)):
    """Broadcast axes of length 1 to the shape of ``rhs``; with ``lhs_axes``, only these, to the axes ``rhs_axes``."""

    arguments = ("lhs", "rhs")
    input_docs = describe(
        lhs="any shape, any dtype",
        rhs="any shape, any dtype; only its shape is used",
    )
    output_doc = "The shape of rhs, or of lhs with the lengths of rhs on the given axes; the dtype of lhs"
    lhs_axes: Shape | None = option(None, "Axes of lhs to broadcast; None for all.")
    rhs_axes: Shape | None = option(None, "The axes of rhs that give their lengths.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        lhs, rhs = shapes
        if (self.lhs_axes is None) != (self.rhs_axes is None):
            raise ShapeError(f"{self.name}: lhs_axes and rhs_axes must be given together")
        if self.lhs_axes == ():
            raise ShapeError(f"{self.name}: lhs_axes is (), expected at least one axis, or None for all")
        if lhs is None or rhs is None:
            return shapes, [rhs if self.lhs_axes is None else None]
        target = list(rhs)
        if self.lhs_axes is not None and self.rhs_axes is not None:
            target = list(lhs)
            if len(self.lhs_axes) != len(self.rhs_axes):
                raise ShapeError(
                    f"{self.name}: lhs_axes is {self.lhs_axes} and rhs_axes {self.rhs_axes}, expected equal lengths"
                )
            lefts = axes_of(self, self.lhs_axes, len(lhs), "lhs_axes")
            for left, right in zip(lefts, axes_of(self, self.rhs_axes, len(rhs), "rhs_axes"), strict=True):
                target[left] = rhs[right]
        padded = (1,) * (len(target) - len(lhs)) + lhs
        if len(lhs) > len(target) or any(
            n != t and n != 1 and -1 not in (n, t) for n, t in zip(padded, target, strict=True)
        ):
            raise ShapeError(
                f"{self.name}: lhs has shape {lhs}, which does not broadcast to {tuple(target)}: "
                "each axis must be equal, or 1 in lhs"
            )
        return shapes, [tuple(target)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]

    def without_shape_inputs(self, shape: Shape, dtype: DType) -> Operator:
        return BroadcastTo.create(shape=shape)
