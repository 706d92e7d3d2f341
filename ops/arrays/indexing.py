"""Operators that gather elements by index arrays, and scatter them.

Index arrays may have any dtype (MXNet's are float32); they are truncated to integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from flowmx.errors import IndexOutOfRange, ShapeError
from flowmx.ops.arrays.linear import Inferred, InferredTypes, Linear, linear, shape_of
from flowmx.ops.arrays.scatter import add_at, add_rows
from flowmx.ops.arrays.shape_arithmetic import axis_of, expect_elements, key_from_template
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    merge,
    operator,
    option,
    required,
)
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchParts, BatchWise, Quantization

Mode = Literal["clip", "wrap", "raise"]


def as_integers(index: Array) -> Array:
    """Return an index array in an integer dtype that holds any axis length.

    NumPy refuses to compare an integer dtype with numbers outside its range.
    """
    return index if index.dtype.kind in "iu" and index.dtype.itemsize >= 4 else index.astype(np.int64)


def positions(xp: ArrayNamespace, index: Array, length: int, mode: str, name: str) -> Array:
    """Return indices as positions from 0 to ``length`` - 1: clipped, wrapped around, or checked.

    Raises:
        IndexOutOfRange: an index is out of range in mode "raise".
    """
    index = as_integers(index)
    if mode == "wrap":
        return index % max(1, length)
    if mode == "clip":
        return xp.minimum(xp.maximum(index, 0), max(0, length - 1))  # several times faster than xp.clip
    if index.size and not (index.min() >= 0 and index.max() < length):
        raise IndexOutOfRange(f"{name}: indices from {index.min()} to {index.max()}, expected 0 to {length - 1}")
    return index


class _Indexed(Linear):
    """Base of linear operators with index arrays; outputs have the dtype of the first input."""

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]


class _TableLookup(Operator, moves=True):
    """Base of operators that read only the picked elements of a table."""

    table: ClassVar[int]
    """The position of the table among the inputs."""

    def bytes_read(self, inputs: Sequence[int], output_bytes: int) -> int:
        return sum(inputs) - inputs[self.table] + min(inputs[self.table], output_bytes)


@linear("take")
class Take(_TableLookup, _Indexed, batch_wise=BatchWise.OWN):
    """Slices of ``a`` along an axis at the indices: shape a[:axis] + indices + a[axis+1:]."""

    arguments = ("a", "indices")
    table = 0
    input_docs = describe(
        a="any shape, any dtype",
        indices="any shape, int or float",
    )
    output_doc = "(*a.shape[:axis], *indices.shape, *a.shape[axis + 1:]), the dtype of a"
    axis: int = option(0, "The axis.")
    mode: Mode = option("clip", "For indices out of range: clip, wrap around, or raise an error.")

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        by_index = self.axis % len(inputs[0]) == 0
        if self.traits.batch_wise is BatchWise.UNKNOWN or self.mode == "raise" or not inputs[by_index]:
            return None  # the error message gives the range of all indices
        return BatchParts((int(by_index),), (0,))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        a, indices = shapes
        if a is None or indices is None:
            return shapes, [None]
        axis = axis_of(self, self.axis, len(a))
        if 0 not in indices:
            expect_elements(self, a, [axis], "a")
        return shapes, [a[:axis] + indices + a[axis + 1 :]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        a, out = inputs[0], outputs[0]
        index = positions(run.xp, inputs[1], a.shape[self.axis], self.mode, "take")
        # Positions are in range: mode="clip" only avoids a copy of the output in NumPy.
        if out.flags.c_contiguous and run.xp is np:
            np.take(a, index, axis=self.axis, out=out, mode="clip")
        else:
            out[...] = a.take(index, axis=self.axis)

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        xp = run.xp
        axis = self.axis % out.ndim
        length = out.shape[axis]
        index = positions(xp, others[0], length, self.mode, "take").ravel()
        outer, inner = math.prod(out.shape[:axis]), math.prod(out.shape[axis + 1 :])
        values = head.reshape(outer, index.size, inner).swapaxes(0, 1).reshape(index.size, outer * inner)
        out[...] = 0
        if outer == 1 and out.flags.c_contiguous:
            add_rows(xp, out.reshape(length, inner), index, values)
            return
        rows = xp.zeros((length, outer * inner), out.dtype)
        add_rows(xp, rows, index, values)
        out[...] = rows.reshape(length, outer, inner).swapaxes(0, 1).reshape(out.shape)


@operator("Embedding")
class Embedding(
    _TableLookup, quantized=Quantization("_contrib_quantized_embedding", real=(0,)), batch_wise=BatchWise.FIRST
):
    """Rows of ``weight`` (input_dim, output_dim) at the indices: shape data + (output_dim,).

    Indices out of range are clipped.
    """

    arguments: ClassVar[tuple[str, ...]] = ("data", "weight")
    table = 1
    input_docs = describe(
        data="any shape, int or float; row indices",
        weight="(input_dim, output_dim), dtype `dtype`",
    )
    output_doc = "(*data.shape, output_dim), the dtype of weight"
    input_dim: int = required("Number of rows.", low=1)
    output_dim: int = required("Length of a row.", low=1)
    dtype: DType = option(FLOAT32, "The weight's dtype if it cannot be inferred.")
    sparse_grad: bool = option(False, "Store the weight's gradient as row_sparse.")

    def __post_init__(self) -> None:
        if self.sparse_grad:
            self.with_traits(sparse=True)
        if self.dtype != FLOAT32:
            self.with_traits(quantized=None)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, weight = shapes
        expected = (self.input_dim, self.output_dim)
        if merge(weight, expected) is False:
            raise ShapeError(f"{self.name}: weight has shape {weight}, expected {expected}")
        return [data, expected], [None if data is None else (*data, self.output_dim)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        weight = dtypes[1] or self.dtype
        return [dtypes[0], weight], [weight]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        _TAKE.forward(run, (inputs[1], inputs[0]), outputs)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [None, F.op("_backward_take", heads[0], inputs[0], shape_of(inputs, 1))]


_TAKE = Take.create()


@linear("batch_take")
class BatchTake(_Indexed):
    """One element of each row of a matrix: ``out[i] = a[i, indices[i]]``."""

    arguments = ("a", "indices")
    input_docs = describe(
        a="(n, m), any dtype",
        indices="(n,), int or float; column indices",
    )
    output_doc = "(n,), the dtype of a"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        a, indices = shapes
        if a is not None and len(a) != 2:
            raise ShapeError(f"{self.name}: a has shape {a}, expected 2 axes")
        rows = merge(None if a is None else a[:1], indices)
        if rows is False:
            raise ShapeError(f"{self.name}: indices has shape {indices}, expected {a[:1] if a else a}")
        if a is not None:
            expect_elements(self, a, [1], "a")
        return [a, rows], [rows]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        a = inputs[0]
        index = positions(run.xp, inputs[1], a.shape[1], "clip", self.name)
        outputs[0][...] = a[run.xp.arange(a.shape[0]), index]

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        index = positions(run.xp, others[0], out.shape[1], "clip", self.name)
        out[...] = 0
        out[run.xp.arange(out.shape[0]), index] = head


@linear("pick", "choose_element_0index")
class Pick(_Indexed, batch_wise=BatchWise.EACH):
    """One element along an axis for each position of the other axes, at ``index``."""

    arguments = ("data", "index")
    input_docs = describe(
        data="any shape, any dtype",
        index="the shape of data without the axis, or with length 1 there, int or float",
    )
    output_doc = "The shape of data without the axis, or with length 1 there (keepdims), the dtype of data"
    axis: int | None = option(-1, "The axis to pick along; None for the flattened array.")
    keepdims: bool = option(False, "Keep the axis, with length 1.")
    mode: Literal["clip", "wrap"] = option("clip", "For indices out of range: clip or wrap around.")

    def _keepdims_shape(self, shape: Shape) -> Shape:
        """Return the shape of the index with the picked axis as length 1."""
        if self.axis is None:
            return (1,) * len(shape)
        axis = axis_of(self, self.axis, len(shape))
        return (*shape[:axis], 1, *shape[axis + 1 :])

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return self.axis is None or self.axis % len(inputs[0]) == 0

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, index = shapes
        if data is None:
            return shapes, [None]
        keepdims_shape = self._keepdims_shape(data)
        axis = 0 if self.axis is None else axis_of(self, self.axis, len(data))
        dropped_shape = (keepdims_shape[:axis] + keepdims_shape[axis + 1 :] if self.axis is not None else ()) or (1,)
        expect_elements(self, data, range(len(data)) if self.axis is None else [axis])
        if index is None:
            index = keepdims_shape if self.keepdims else dropped_shape
        elif (
            merge(index, keepdims_shape) is False
            and merge(index, dropped_shape) is False
            and index != (keepdims_shape[:axis] + keepdims_shape[axis + 1 :])
        ):
            raise ShapeError(f"{self.name}: index has shape {index}, expected {dropped_shape} or {keepdims_shape}")
        return [data, index], [keepdims_shape if self.keepdims else dropped_shape]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, out = inputs[0], outputs[0]
        axis = -1 if self.axis is None else self.axis
        shape = self._keepdims_shape(x.shape)
        if self.axis is None:
            x, shape = x.reshape(-1), (1,)
        length = x.shape[axis]
        index = positions(run.xp, inputs[1], length, self.mode, self.name)
        if axis in (-1, x.ndim - 1) and x.flags.c_contiguous:
            starts = run.xp.arange(0, x.size, length)
            flat_index = run.xp.add(starts, index.reshape(-1), dtype=np.int64, casting="unsafe")
            out[...] = x.reshape(-1)[flat_index].reshape(out.shape)
        else:
            out[...] = run.xp.take_along_axis(x, index.reshape(shape), axis).reshape(out.shape)

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        xp = run.xp
        shape = self._keepdims_shape(out.shape)
        axis = 0 if self.axis is None else self.axis % out.ndim
        length = out.size if self.axis is None else out.shape[axis]
        index = positions(xp, others[0], length, self.mode, self.name).reshape(shape)
        if self.axis is None:
            steps = xp.arange(length).reshape(out.shape)
        else:
            steps = xp.arange(length).reshape((length, *((1,) * (out.ndim - axis - 1))))
        out[...] = xp.where(steps == index, head.reshape(shape), xp.zeros((), head.dtype))


@operator("one_hot")
class OneHot(Operator, no_gradient=True, batch_wise=BatchWise.FIRST):
    """A new last axis with ``on_value`` at the index and ``off_value`` elsewhere; ``off_value`` if out of range."""

    arguments = ("indices",)
    input_docs = describe(indices="any shape, int or float")
    output_doc = "(*indices.shape, depth), dtype `dtype`"
    depth: int = required("Length of the new axis.", low=0)
    on_value: float = option(1.0, "The value at the index.")
    off_value: float = option(0.0, "The value elsewhere.")
    dtype: DType = option(FLOAT32, "The output's dtype.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [None if shapes[0] is None else (*shapes[0], self.depth)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [self.dtype]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        mask = as_integers(inputs[0])[..., None] == run.xp.arange(self.depth)
        outputs[0][...] = run.xp.where(mask, self.on_value, self.off_value)


# -- several axes at once ----------------------------------------------------------------------------------


def nd_rows(xp: ArrayNamespace, op: Operator, shape: Shape, indices: Array) -> Array:
    """Return the positions of coordinates (m, ...) in the first m axes, flattened to one axis.

    Raises:
        IndexOutOfRange: a coordinate is out of range.
    """
    flat_index = xp.zeros(indices.shape[1:], np.int64)
    for length, index in zip(shape, as_integers(indices), strict=False):
        if index.size and not (-length <= index.min() and index.max() < length):
            raise IndexOutOfRange(
                f"{op.name}: indices from {index.min()} to {index.max()}, expected {-length} to {length - 1}"
            )
        flat_index = flat_index * length + xp.where(index < 0, index + length, index)
    return flat_index


def nd_shape(op: Operator, array_shape: Shape, indices: Shape) -> Shape:
    """Return the shape of the elements that (m, ...) indices pick from an array."""
    if not indices or indices[0] > len(array_shape):
        raise ShapeError(
            f"{op.name}: indices has shape {indices}, expected a first axis of at most {len(array_shape)} "
            f"for the shape {array_shape}"
        )
    return indices[1:] + array_shape[indices[0] :]


def _gather(xp: ArrayNamespace, op: Operator, data: Array, indices: Array, out: Array) -> None:
    m = indices.shape[0]
    rows = data.reshape(math.prod(data.shape[:m]), *data.shape[m:])
    out[...] = rows[nd_rows(xp, op, data.shape, indices)]


@linear("gather_nd")
class GatherND(_Indexed):
    """The slices of ``data`` at the coordinates ``indices`` (m, ...) along the first m axes."""

    arguments = ("data", "indices")
    input_docs = describe(
        data="any shape, any dtype",
        indices="(m, ...), int or float; coordinates along the first m axes of data",
    )
    output_doc = "(*indices.shape[1:], *data.shape[m:]), the dtype of data"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, indices = shapes
        if data is None or indices is None or indices[:1] == (-1,):
            return shapes, [None]
        return shapes, [nd_shape(self, data, indices)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        _gather(run.xp, self, inputs[0], inputs[1], outputs[0])

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        xp, indices = run.xp, others[0]
        m = indices.shape[0]
        rows = xp.zeros((math.prod(out.shape[:m]), math.prod(out.shape[m:])), out.dtype)
        index = nd_rows(xp, self, out.shape, indices).ravel()
        add_rows(xp, rows, index, head.reshape(index.size, rows.shape[1]))
        out[...] = rows.reshape(out.shape)


@linear("scatter_nd")
class ScatterND(_Indexed):
    """Zeros of ``shape`` with ``data`` at the coordinates ``indices`` (m, ...).

    If coordinates repeat, one of the values is stored.
    """

    arguments = ("data", "indices")
    input_docs = describe(
        data="(*indices.shape[1:], *shape[m:]), any dtype",
        indices="(m, ...), int or float; coordinates along the first m axes of the output",
    )
    output_doc = "`shape`, the dtype of data"
    shape: Shape = required("The output's shape.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, indices = shapes
        if indices is not None and indices[:1] != (-1,):
            expected = nd_shape(self, self.shape, indices)
            merged = merge(data, expected)
            if merged is False:
                raise ShapeError(f"{self.name}: data has shape {data}, expected {expected}")
            data = merged
        return [data, indices], [self.shape]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, indices = inputs
        out = outputs[0]
        m = indices.shape[0]
        rows = run.xp.zeros((math.prod(out.shape[:m]), *out.shape[m:]), out.dtype)
        rows[nd_rows(run.xp, self, out.shape, indices)] = data
        out[...] = rows.reshape(out.shape)

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        _gather(run.xp, self, head, others[0], out)


@linear("_advanced_index")
class AdvancedIndex(_Indexed, hidden=True):
    """``data[key]`` for a key with index arrays, which are the other inputs."""

    variadic = "num_args"
    num_args: int = required("Number of inputs.", low=1)
    key: str = required("The key, with @ for each index array.")
    shape: Shape = required("The output's shape.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [self.shape]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = inputs[0][key_from_template(self.key, inputs[1:])]

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        out[...] = 0
        add_at(run.xp, out, key_from_template(self.key, others), head)


class _Coordinates(Operator, no_gradient=True):
    pass


@operator("_ravel_multi_index", "ravel_multi_index")
class RavelMultiIndex(_Coordinates, input_named=True):
    """Coordinates (m, ...) in an array of ``shape`` as positions in the flattened array."""

    input_docs = describe(data="(number of axes, ...), int or float; coordinates")
    output_doc = "data.shape[1:], the dtype of data"
    shape: Shape = required("The array's shape; the first length may be -1.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        if data is None:
            return shapes, [None]
        if not data or data[0] not in (len(self.shape), -1):
            raise ShapeError(f"{self.name}: data has shape {data}, expected {len(self.shape)} on the first axis")
        return [(len(self.shape), *data[1:])], [data[1:]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        flat_index = run.xp.zeros(inputs[0].shape[1:], np.int64)
        for length, index in zip(self.shape, as_integers(inputs[0]), strict=True):
            flat_index = flat_index * length + index
        outputs[0][...] = flat_index


@operator("_unravel_index", "unravel_index")
class UnravelIndex(_Coordinates, input_named=True):
    """Positions in the flattened array as coordinates (m, ...)."""

    input_docs = describe(data="any shape, int or float; positions in the flattened array")
    output_doc = "(number of axes, *data.shape), the dtype of data"
    shape: Shape = required("The array's shape; the first length may be -1.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [None if shapes[0] is None else (len(self.shape), *shapes[0])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        flat_index = as_integers(inputs[0])
        for axis in reversed(range(len(self.shape))):
            length = self.shape[axis]
            if axis == 0:
                outputs[0][axis] = flat_index if length == -1 else flat_index % length
            else:
                outputs[0][axis] = flat_index % length
                flat_index = flat_index // length
