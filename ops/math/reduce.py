"""Reductions, and broadcasting, which is their reverse.

As in MXNet, reducing over all axes gives the shape (1,), and ``axis=()`` means all axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred, InferredTypes, Linear, bound, linear, shape_of
from flowmx.ops.arrays.reshaping import axes_of, axis_of, expect_elements
from flowmx.ops.registry.dtypes import DType, is_floating
from flowmx.ops.registry.operators import (
    Array,
    Bound,
    Form,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    described,
    family,
    operator,
    option,
)
from flowmx.ops.registry.traits import BatchParts, BatchWise, Passing, Precision


def wide(x: Array) -> Array:
    """Half-precision numbers as float32, to add them up in; others as they are."""
    return x.astype(np.float32) if is_floating(x.dtype) and x.dtype.itemsize < 4 else x


def reduce_into(function: Callable[..., Any], x: Array, axes: Shape, out: Array) -> None:
    """Reduce ``x`` over ``axes`` by a function of the array namespace, into ``out``."""
    values = wide(x)
    kept = tuple(1 if axis in axes else length for axis, length in enumerate(x.shape))
    if out.flags.c_contiguous and values is x:
        function(x, axis=axes, keepdims=True, out=out.reshape(kept))
    else:
        out[...] = function(values, axis=axes, keepdims=True).reshape(out.shape)


_ROWS = 32
"""As many rows are added one to another; NumPy adds all of them so, and float32 loses a digit for each ten thousand."""


def is_of_rows(xp: Any, x: Array, axes: Shape) -> bool:
    """Tell whether a sum over ``axes`` is one of many rows, none of them empty, which lie whole."""
    leading = len(axes) < x.ndim and axes == tuple(range(len(axes)))
    if xp is not np or not leading or not is_floating(x.dtype) or not x.flags.c_contiguous:
        return False
    rows: int = math.prod(x.shape[: len(axes)])
    return rows > 2 * _ROWS and x.size > 0


def add_into(run: Run, x: Array, axes: Shape, out: Array) -> None:
    """Add ``x`` up over ``axes``, into ``out``: many rows as sums of blocks of rows."""
    if is_of_rows(run.xp, x, axes):
        out[...] = added(run.xp, wide(x), axes).reshape(out.shape)
    else:
        reduce_into(run.xp.sum, x, axes, out)


def added(xp: Any, x: Array, axes: Shape) -> Array:
    """The sum of ``x`` over ``axes``, which stay with a length of 1; as :func:`add_into`."""
    if not is_of_rows(xp, x, axes):
        return xp.sum(x, axis=axes, keepdims=True)
    kept = tuple(1 if axis in axes else length for axis, length in enumerate(x.shape))
    return _added(x.reshape(math.prod(x.shape[: len(axes)]), -1)).reshape(kept)


def _added(rows: Array) -> Array:
    while len(rows) > 2 * _ROWS:
        whole = len(rows) // _ROWS * _ROWS
        blocks = np.add.reduce(rows[:whole].reshape(-1, _ROWS, rows.shape[1]), axis=1)
        rows = blocks if whole == len(rows) else np.concatenate([blocks, rows[whole:].sum(axis=0, keepdims=True)])
    return np.add.reduce(rows, axis=0)


@family
class Reduction(Operator, batch_wise=BatchWise.FIRST):
    """Base of reductions over some axes."""

    input_docs = described(data="any shape, any dtype")
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
        given = axes_of(self, self.axis, ndim)
        return tuple(axis for axis in range(ndim) if (axis in given) != self.exclude)

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
        """An output, broadcast over the axes that were reduced."""
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
        add_into(run, inputs[0], self.axes(inputs[0].ndim), outputs[0])

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        out[...] = self.spread(head, out.shape)


@linear("mean")
class Mean(Reduction, Linear, precision=Precision.FLOAT32):
    """The mean over the given axes."""

    onnx = "ReduceMean"

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        axes = self.axes(inputs[0].ndim)
        count = math.prod(inputs[0].shape[axis] for axis in axes)
        if count and run.xp is np and is_floating(inputs[0].dtype) and inputs[0].dtype.itemsize >= 4:
            add_into(run, inputs[0], axes, outputs[0])
            outputs[0][...] /= count
        else:  # of nothing, NumPy warns
            reduce_into(run.xp.mean, inputs[0], axes, outputs[0])

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        count = math.prod(out.shape[axis] for axis in self.axes(out.ndim))
        run.xp.divide(self.spread(head, out.shape), max(1, count), out=out, casting="unsafe")


class Row(NamedTuple):
    """One reduction: name, function of the namespace, gradient of (F, x, y, g), documentation.

    y and g come broadcast to the shape of x.
    """

    name: str
    function: str
    derivative: Callable[[Any, Any, Any, Any], Any]
    doc: str
    aliases: tuple[str, ...] = ()
    searches: bool = False
    """True where the result is one of the elements, so that the reduced axes must not be empty."""
    onnx: str = ""
    """The operator of ONNX, as in :class:`Operator`."""
    ufunc: str | None = None
    """The function of NumPy whose reduction it is."""
    summed: Callable[[Any, Array], Array] | None = None
    """The terms of a sum, of the namespace and the input; None for others."""


TABLE = [
    Row("prod", "prod", lambda F, x, y, g: g * y / x, "The product over the given axes.", onnx="ReduceProd"),
    Row("nansum", "nansum", lambda F, x, y, g: g * (x == x), "The sum over the given axes; NaN counts as 0.",
        summed=lambda xp, x: xp.where(x == x, x, x.dtype.type(0))),
    Row("nanprod", "nanprod",
        # What divides is a number everywhere, so that the gradient's own gradient is one too.
        lambda F, x, y, g: F.where(x == x, g * y / F.where(x == x, x, F.ones_like(x)), F.zeros_like(g)),
        "The product over the given axes; NaN counts as 1."),
    Row("max", "max", lambda F, x, y, g: g * (x == y), "The maximum over the given axes.", ("max_axis",), True,
        "ReduceMax", "maximum"),
    Row("min", "min", lambda F, x, y, g: g * (x == y), "The minimum over the given axes.", ("min_axis",), True,
        "ReduceMin", "minimum"),
]  # fmt: skip


def _register(row: Row) -> None:
    def forward(self: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, axes = inputs[0], self.axes(inputs[0].ndim)
        if row.summed is not None and is_of_rows(run.xp, x, axes):
            add_into(run, row.summed(run.xp, x), axes, outputs[0])
        else:
            reduce_into(getattr(run.xp, row.function), x, axes, outputs[0])

    def infer_shape(self: Any, shapes: list[ShapeOrNone]) -> Inferred:
        if row.searches and shapes[0] is not None:
            expect_elements(self, shapes[0], self.axes(len(shapes[0])))
        return Reduction.infer_shape(self, shapes)

    def bind(self: Any, xp: Any, given: Sequence[Form], made: Sequence[Form]) -> Bound | None:
        shape, dtype = given[0]
        if row.ufunc is None or xp is not np or dtype not in (np.float32, np.float64) or 0 in shape:
            return None
        axes = self.axes(len(shape))
        reduce: Any = getattr(np, row.ufunc).reduce
        kept = tuple([1 if axis in axes else length for axis, length in enumerate(shape)])

        def reduced(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            out = outputs[0]
            if out.flags.c_contiguous:
                reduce(inputs[0], axes, None, out.reshape(kept), True)
            else:
                self.forward(run, inputs, outputs)

        return reduced

    def gradient(self: Any, F: Any, inputs: Any, outputs: Any, heads: Any) -> list[Any]:
        y, g = (F.op("_backward_sum", each, inputs[0], **bound(self)) for each in (outputs[0], heads[0]))
        return [row.derivative(F, inputs[0], y, g)]

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

    input_docs = described(data="any shape, float")
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
        x, out = wide(inputs[0]), outputs[0]
        axes = self.axes(x.ndim)
        terms = run.xp.abs(x) if self.ord == 1 else run.xp.square(x)
        total = added(run.xp, terms, axes)
        out[...] = (total if self.ord == 1 else run.xp.sqrt(total)).reshape(out.shape)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        x = inputs[0]

        def spread(each: Any) -> Any:
            if self.out_dtype is not None:
                each = F.op("_cast_like", each, x)
            return F.op("_backward_sum", each, x, axis=self.axis, keepdims=self.keepdims)

        if self.ord == 1:
            return [spread(heads[0]) * F.sign(x)]
        return [spread(heads[0]) * x / spread(outputs[0])]


@family
class Position(Operator, no_gradient=True, batch_wise=BatchWise.FIRST):
    """Base of searches along an axis."""

    input_docs = described(data="any shape, any dtype")
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
        found = getattr(run.xp, self.function)(inputs[0], axis=self.axis)
        outputs[0][...] = found.reshape(outputs[0].shape)


@operator("argmax")
class ArgMax(Position):
    """The position of the maximum along an axis (the first one), in the input's dtype."""

    function = "argmax"
    onnx = "ArgMax"


@operator("argmin")
class ArgMin(Position):
    """The position of the minimum along an axis (the first one), in the input's dtype."""

    function = "argmin"
    onnx = "ArgMin"


@operator("argmax_channel")
class ArgMaxChannel(Operator, no_gradient=True, batch_wise=BatchWise.FIRST):
    """The position of the maximum along axis 1, in the input's dtype."""

    input_docs = described(data="(batch, channels, ...), any dtype")
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
            add_into(run, data, axes, out)
        else:
            run.xp.copyto(out, data)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.broadcast_like(heads[0], shape_of(inputs, 0)), None]


class _Broadcast(Operator, repeats=True, passing=Passing.ALIKE, batch_wise=BatchWise.ALL):
    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0])

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.op("_sum_like", heads[0], shape_of(inputs, 0)), *([None] * (len(self.arguments) - 1))]


@operator("broadcast_to")
class BroadcastTo(_Broadcast):
    """Repeat axes of length 1 until the shape is ``shape``; a 0 in it keeps the input's axis."""

    input_docs = described(data="any shape, any dtype")
    output_doc = "`shape`, the dtype of data"
    shape: Shape = option((), "The wanted shape.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        given, wanted = shapes[0], self.shape
        if given is None:
            return shapes, [None if 0 in wanted else wanted]
        padded = (1,) * (len(wanted) - len(given)) + given
        fits = len(given) <= len(wanted) and all(
            w == g or g in (1, -1) or w == 0 for g, w in zip(padded, wanted, strict=True)
        )
        if not fits:
            raise ShapeError(
                f"broadcast_to: shape is {wanted}, which the input's shape {given} does not broadcast to: "
                "each axis must be equal, or 1 in the input"
            )
        # MXNet's 0 keeps an axis; for an axis of no elements that is the same.
        return shapes, [tuple(w or g for g, w in zip(padded, wanted, strict=True))]


@operator("broadcast_axis", "broadcast_axes")
class BroadcastAxis(_Broadcast):
    """Repeat the given axes, of length 1, to the given sizes."""

    input_docs = described(data="any shape with length 1 on the axes, any dtype")
    output_doc = "The shape of data with the new sizes, the dtype of data"
    axis: Shape = option((), "The axes.")
    size: Shape = option((), "Their sizes.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        if len(self.axis) != len(self.size):
            raise ShapeError(f"{self.name}: axis is {self.axis} and size {self.size}, expected as many of each")
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
    """Repeat axes of length 1 until the shape is that of ``rhs``, or only the given axes to given axes."""

    arguments = ("lhs", "rhs")
    input_docs = described(
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
        wanted = list(rhs)
        if self.lhs_axes is not None and self.rhs_axes is not None:
            wanted = list(lhs)
            if len(self.lhs_axes) != len(self.rhs_axes):
                raise ShapeError(
                    f"{self.name}: lhs_axes is {self.lhs_axes} and rhs_axes {self.rhs_axes}, expected as many of each"
                )
            lefts = axes_of(self, self.lhs_axes, len(lhs), "lhs_axes")
            for left, right in zip(lefts, axes_of(self, self.rhs_axes, len(rhs), "rhs_axes"), strict=True):
                wanted[left] = rhs[right]
        padded = (1,) * (len(wanted) - len(lhs)) + lhs
        if len(lhs) > len(wanted) or any(
            g != w and g != 1 and -1 not in (g, w) for g, w in zip(padded, wanted, strict=True)
        ):
            raise ShapeError(
                f"{self.name}: lhs has shape {lhs}, which does not broadcast to {tuple(wanted)}: "
                "each axis must be equal, or 1 in lhs"
            )
        return shapes, [tuple(wanted)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]

    def without_like(self, shape: Shape, dtype: DType) -> Operator:
        return BroadcastTo.create(shape=shape)
