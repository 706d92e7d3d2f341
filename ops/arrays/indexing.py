"""Operators that pick elements by index arrays, and put them back.

Index arrays may have any dtype (MXNet's are float32); they are truncated to integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from flowmx.errors import IndexOutOfRange, ShapeError
from flowmx.ops.arrays.linear import Inferred, InferredTypes, Linear, linear, shape_of
from flowmx.ops.arrays.reshaping import axis_of, expect_elements, rebuild
from flowmx.ops.math.reduce import wide
from flowmx.ops.registry.dtypes import FLOAT32, DType
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    described,
    merge,
    operator,
    option,
    required,
)
from flowmx.ops.registry.traits import BatchParts, BatchWise, Quantization

Mode = Literal["clip", "wrap", "raise"]


def whole(index: Array) -> Array:
    """An index array in an integer dtype that holds any axis length: NumPy refuses comparisons beyond a dtype."""
    return index if index.dtype.kind in "iu" and index.dtype.itemsize >= 4 else index.astype(np.int64)


def positions(xp: Any, index: Array, length: int, mode: str, name: str) -> Array:
    """Indices as positions from 0 to ``length`` - 1; those outside go to the ends, or around, or are refused."""
    index = whole(index)
    if mode == "wrap":
        return index % max(1, length)
    if mode == "clip":
        return xp.minimum(xp.maximum(index, 0), max(0, length - 1))  # xp.clip would cost several times as much
    if index.size and not (index.min() >= 0 and index.max() < length):
        raise IndexOutOfRange(f"{name}: indices from {index.min()} to {index.max()}, expected 0 to {length - 1}")
    return index


def add_rows(xp: Any, rows: Array, index: Array, values: Array) -> None:
    """``rows[index[i]] += values[i]``, where positions repeat; ``rows`` are zeros."""
    if not index.size:
        return
    if xp is not np:
        xp.add.at(rows, index, values)
        return
    order = index.argsort(kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    rows[ordered[starts]] = np.add.reduceat(wide(values)[order], starts, axis=0)


class _Indexed(Linear):
    """The dtype of the first input goes to the output; index arrays keep theirs."""

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]


class _Picking(Operator, moves=True):
    """Only the elements that are picked are read of a table."""

    table: ClassVar[int]
    """Which input it is."""

    def bytes_read(self, inputs: Sequence[int], made: int) -> int:
        return sum(inputs) - inputs[self.table] + min(inputs[self.table], made)


@linear("take")
class Take(_Picking, _Indexed, batch_wise=BatchWise.OWN):
    """Slices of ``a`` along an axis, at the given indices: shape a[:axis] + indices + a[axis+1:]."""

    arguments = ("a", "indices")
    table = 0
    input_docs = described(
        a="any shape, any dtype",
        indices="any shape, int or float",
    )
    output_doc = "(*a.shape[:axis], *indices.shape, *a.shape[axis + 1:]), the dtype of a"
    axis: int = option(0, "The axis.")
    mode: Mode = option("clip", "For indices outside: clip them, wrap them around, or raise an error.")

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        by_index = self.axis % len(inputs[0]) == 0
        if self.traits.batch_wise is BatchWise.UNKNOWN or self.mode == "raise" or not inputs[by_index]:
            return None  # a message on indices speaks of all of them
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
        # Positions are in range: "clip" only spares NumPy a copy of the output.
        if out.flags.c_contiguous and run.xp is np:
            np.take(a, index, axis=self.axis, out=out, mode="clip")
        else:
            out[...] = a.take(index, axis=self.axis)

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        xp = run.xp
        axis = self.axis % out.ndim
        length = out.shape[axis]
        index = positions(xp, others[0], length, self.mode, "take").ravel()
        before, after = math.prod(out.shape[:axis]), math.prod(out.shape[axis + 1 :])
        values = head.reshape(before, index.size, after).swapaxes(0, 1).reshape(index.size, before * after)
        out[...] = 0
        if before == 1 and out.flags.c_contiguous:
            add_rows(xp, out.reshape(length, after), index, values)
            return
        rows = xp.zeros((length, before * after), out.dtype)
        add_rows(xp, rows, index, values)
        out[...] = rows.reshape(length, before, after).swapaxes(0, 1).reshape(out.shape)


@operator("Embedding")
class Embedding(
    _Picking, quantized=Quantization("_contrib_quantized_embedding", real=(0,)), batch_wise=BatchWise.FIRST
):
    """Rows of ``weight`` (input_dim, output_dim) at the given indices: shape data + (output_dim,).

    Indices outside are taken to the nearest row.
    """

    arguments: ClassVar[tuple[str, ...]] = ("data", "weight")
    table = 1
    input_docs = described(
        data="any shape, int or float; row indices",
        weight="(input_dim, output_dim), dtype `dtype`",
    )
    output_doc = "(*data.shape, output_dim), the dtype of weight"
    input_dim: int = required("Number of rows.", low=1)
    output_dim: int = required("Length of a row.", low=1)
    dtype: DType = option(FLOAT32, "The weight's dtype, where it does not follow from the array.")
    sparse_grad: bool = option(False, "Let the weight's gradient be row_sparse.")

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

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [None, F.op("_backward_take", heads[0], inputs[0], shape_of(inputs, 1))]


_TAKE = Take.create()


@linear("batch_take")
class BatchTake(_Indexed):
    """One element of each row of a matrix: ``out[i] = a[i, indices[i]]``."""

    arguments = ("a", "indices")
    input_docs = described(
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

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        index = positions(run.xp, others[0], out.shape[1], "clip", self.name)
        out[...] = 0
        out[run.xp.arange(out.shape[0]), index] = head


@linear("pick", "choose_element_0index")
class Pick(_Indexed, batch_wise=BatchWise.EACH):
    """One element along an axis for each position of the other axes, at ``index``."""

    arguments = ("data", "index")
    input_docs = described(
        data="any shape, any dtype",
        index="the shape of data without the axis, or with length 1 there, int or float",
    )
    output_doc = "The shape of data without the axis, or with length 1 there (keepdims), the dtype of data"
    axis: int | None = option(-1, "The axis to pick along; None for the flattened array.")
    keepdims: bool = option(False, "Keep the axis, with length 1.")
    mode: Literal["clip", "wrap"] = option("clip", "For indices outside: clip them, or wrap them around.")

    def _kept(self, shape: Shape) -> Shape:
        """The index's shape with the axis of length 1 in it."""
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
        kept = self._kept(data)
        axis = 0 if self.axis is None else axis_of(self, self.axis, len(data))
        dropped = (kept[:axis] + kept[axis + 1 :] if self.axis is not None else ()) or (1,)
        expect_elements(self, data, range(len(data)) if self.axis is None else [axis])
        if index is None:
            index = kept if self.keepdims else dropped
        elif (
            merge(index, kept) is False and merge(index, dropped) is False and index != (kept[:axis] + kept[axis + 1 :])
        ):
            raise ShapeError(f"{self.name}: index has shape {index}, expected {dropped} or {kept}")
        return [data, index], [kept if self.keepdims else dropped]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, out = inputs[0], outputs[0]
        axis = -1 if self.axis is None else self.axis
        shape = self._kept(x.shape)
        if self.axis is None:
            x, shape = x.reshape(-1), (1,)
        length = x.shape[axis]
        index = positions(run.xp, inputs[1], length, self.mode, self.name)
        if axis in (-1, x.ndim - 1) and x.flags.c_contiguous:
            starts = run.xp.arange(0, x.size, length)
            places = run.xp.add(starts, index.reshape(-1), dtype=np.int64, casting="unsafe")
            out[...] = x.reshape(-1)[places].reshape(out.shape)
        else:
            out[...] = run.xp.take_along_axis(x, index.reshape(shape), axis).reshape(out.shape)

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        xp = run.xp
        shape = self._kept(out.shape)
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
    """A new last axis with ``on_value`` at each index, ``off_value`` elsewhere (indices outside: nowhere)."""

    arguments = ("indices",)
    input_docs = described(indices="any shape, int or float")
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
        hit = whole(inputs[0])[..., None] == run.xp.arange(self.depth)
        outputs[0][...] = run.xp.where(hit, self.on_value, self.off_value)


# -- several axes at once ----------------------------------------------------------------------------------


def nd_rows(xp: Any, op: Operator, shape: Shape, indices: Array) -> Array:
    """The positions that a (m, ...) index array names, in the first m axes made one.

    Raises:
        IndexError: one lies outside.
    """
    flat = xp.zeros(indices.shape[1:], np.int64)
    for length, index in zip(shape, whole(indices), strict=False):
        if index.size and not (-length <= index.min() and index.max() < length):
            raise IndexOutOfRange(
                f"{op.name}: indices from {index.min()} to {index.max()}, expected {-length} to {length - 1}"
            )
        flat = flat * length + xp.where(index < 0, index + length, index)
    return flat


def nd_shape(op: Operator, whole_shape: Shape, indices: Shape) -> Shape:
    """The shape of what (m, ...) indices pick from an array."""
    if not indices or indices[0] > len(whole_shape):
        raise ShapeError(
            f"{op.name}: indices has shape {indices}, expected a first axis of at most {len(whole_shape)} "
            f"for the shape {whole_shape}"
        )
    return indices[1:] + whole_shape[indices[0] :]


def _gather(xp: Any, op: Operator, data: Array, indices: Array, out: Array) -> None:
    m = indices.shape[0]
    rows = data.reshape(math.prod(data.shape[:m]), *data.shape[m:])
    out[...] = rows[nd_rows(xp, op, data.shape, indices)]


@linear("gather_nd")
class GatherND(_Indexed):
    """The slices of ``data`` that ``indices`` (m, ...) name by their first m coordinates."""

    arguments = ("data", "indices")
    input_docs = described(
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

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        xp, indices = run.xp, others[0]
        m = indices.shape[0]
        rows = xp.zeros((math.prod(out.shape[:m]), math.prod(out.shape[m:])), out.dtype)
        index = nd_rows(xp, self, out.shape, indices).ravel()
        add_rows(xp, rows, index, head.reshape(index.size, rows.shape[1]))
        out[...] = rows.reshape(out.shape)


@linear("scatter_nd")
class ScatterND(_Indexed):
    """Zeros of the given shape with ``data`` at the places that ``indices`` (m, ...) name.

    Where a place is named twice, one of the two stays.
    """

    arguments = ("data", "indices")
    input_docs = described(
        data="(*indices.shape[1:], *shape[m:]), any dtype",
        indices="(m, ...), int or float; coordinates along the first m axes of the output",
    )
    output_doc = "`shape`, the dtype of data"
    shape: Shape = required("The output's shape.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data, indices = shapes
        if indices is not None and indices[:1] != (-1,):
            expected = nd_shape(self, self.shape, indices)
            both = merge(data, expected)
            if both is False:
                raise ShapeError(f"{self.name}: data has shape {data}, expected {expected}")
            data = both
        return [data, indices], [self.shape]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, indices = inputs
        out = outputs[0]
        m = indices.shape[0]
        rows = run.xp.zeros((math.prod(out.shape[:m]), *out.shape[m:]), out.dtype)
        rows[nd_rows(run.xp, self, out.shape, indices)] = data
        out[...] = rows.reshape(out.shape)

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        _gather(run.xp, self, head, others[0], out)


@linear("_advanced_index")
class AdvancedIndex(_Indexed, hidden=True):
    """``data[key]``, where the key holds index arrays; they are the further inputs."""

    variadic = "num_args"
    num_args: int = required("Number of inputs.", low=1)
    key: str = required("The key, with @ for each index array.")
    shape: Shape = required("The output's shape.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [self.shape]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = inputs[0][rebuild(self.key, inputs[1:])]

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        out[...] = 0
        run.xp.add.at(out, rebuild(self.key, others), head)


class _Coordinates(Operator, no_gradient=True):
    pass


@operator("_ravel_multi_index", "ravel_multi_index")
class RavelMultiIndex(_Coordinates, input_named=True):
    """Coordinates (m, ...) in an array of the given shape as positions in its flattened form."""

    input_docs = described(data="(number of axes, ...), int or float; coordinates")
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
        flat = run.xp.zeros(inputs[0].shape[1:], np.int64)
        for length, index in zip(self.shape, whole(inputs[0]), strict=True):
            flat = flat * length + index
        outputs[0][...] = flat


@operator("_unravel_index", "unravel_index")
class UnravelIndex(_Coordinates, input_named=True):
    """Positions in the flattened form of an array as coordinates (m, ...)."""

    input_docs = described(data="any shape, int or float; positions in the flattened array")
    output_doc = "(number of axes, *data.shape), the dtype of data"
    shape: Shape = required("The array's shape; the first length may be -1.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [None if shapes[0] is None else (len(self.shape), *shapes[0])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        flat = whole(inputs[0])
        for axis in reversed(range(len(self.shape))):
            length = self.shape[axis]
            if axis == 0:
                outputs[0][axis] = flat if length == -1 else flat % length
            else:
                outputs[0][axis] = flat % length
                flat = flat // length
