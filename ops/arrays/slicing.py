"""Operators that select a part of an array: slices and diagonals."""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred, InferredTypes, Linear, linear
from flowmx.ops.arrays.shape_arithmetic import axis_of
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Run, Shape, ShapeOrNone, describe, option, required
from flowmx.ops.registry.traits import BatchWise, Passing

Slices = tuple[slice, ...]


class _Slicing(Linear, moves=True):
    def key(self, shape: Shape, others: Sequence[Shape]) -> Slices:
        """Return the slice of each axis, from the shapes of the input and of the other inputs."""
        raise NotImplementedError

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        key = self.key(inputs[0].shape, [array.shape for array in inputs[1:]])
        run.xp.copyto(outputs[0], inputs[0][key])

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        out[...] = 0
        out[self.key(out.shape, [array.shape for array in others])] = head


def _count(part: slice, length: int) -> int:
    if length == -1:
        return -1
    return len(range(*part.indices(length)))


@linear("slice", "crop")
class Slice(_Slicing, passing=Passing.ALIKE, keeps_layout=True, batch_wise=BatchWise.FIRST):
    """A part of the input: on each axis from ``begin`` to before ``end``, in steps of ``step``."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "The shape of the part, the dtype of data"
    begin: tuple[int | None, ...] = required("First index on each axis; None for the start.")
    end: tuple[int | None, ...] = required("The index after the last on each axis; None for the end.")
    step: tuple[int | None, ...] = option((), "The step on each axis; None for 1, negative for backwards.")

    def __post_init__(self) -> None:
        if any(step is not None and step <= 0 for step in self.step):
            self.with_traits(passing=Passing.NEVER)

    def key(self, shape: Shape, others: Sequence[Shape] = ()) -> Slices:
        steps = self.step or (None,) * len(self.begin)
        if not len(self.begin) == len(self.end) == len(steps):
            raise ShapeError(
                f"{self.name}: begin is {self.begin}, end {self.end} and step {self.step}, expected equal lengths"
            )
        if len(self.begin) > len(shape):
            raise ShapeError(
                f"{self.name}: begin is {self.begin}, expected at most {len(shape)} numbers for the shape {shape}"
            )
        if 0 in steps:
            raise ShapeError(f"{self.name}: step is {self.step}, expected steps other than 0")
        return tuple(slice(*bounds) for bounds in zip(self.begin, self.end, steps, strict=True))

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return (self.step[:1] or (1,))[0] not in (None, 1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [None]
        key = self.key(shape)
        return shapes, [(*map(_count, key, shape), *shape[len(key) :])]


@linear("slice_axis")
class SliceAxis(_Slicing, passing=Passing.ALIKE, batch_wise=BatchWise.FIRST):
    """A part of the input along one axis, from ``begin`` to before ``end``."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "The shape of data with the axis end - begin long, the dtype of data"
    axis: int = required("The axis.")
    begin: int = required("First index.")
    end: int | None = required("The index after the last; None for the end.")

    def key(self, shape: Shape, others: Sequence[Shape] = ()) -> Slices:
        axis = axis_of(self, self.axis, len(shape))
        return (*((slice(None),) * axis), slice(self.begin, self.end))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [None]
        axis = axis_of(self, self.axis, len(shape))
        count = _count(slice(self.begin, self.end), shape[axis])
        return shapes, [(*shape[:axis], count, *shape[axis + 1 :])]


@linear("slice_like")
class SliceLike(_Slicing, passing=Passing.ALIKE, shapes_only=("shape_like",), batch_wise=BatchWise.FIRST):
    """The first elements of ``data`` along ``axes`` (default: all), as many as the lengths of ``shape_like``."""

    arguments = ("data", "shape_like")
    input_docs = describe(
        data="any shape, any dtype",
        shape_like="any shape, any dtype; only its shape is used",
    )
    output_doc = "The shape of data with the lengths of shape_like on the axes, the dtype of data"
    shape_only = True
    axes: Shape = option((), "The axes; () for all.")

    def key(self, shape: Shape, others: Sequence[Shape]) -> Slices:
        like = others[0]
        if not self.axes and len(like) != len(shape):
            raise ShapeError(
                f"{self.name}: shape_like has shape {like}, expected {len(shape)} axes, as in the shape {shape} of data"
            )
        key = [slice(None)] * len(shape)
        for axis in self.axes or range(len(shape)):
            position, like_axis = axis_of(self, axis, len(shape), "axes"), axis_of(self, axis, len(like), "axes")
            if -1 not in (shape[position], like[like_axis]) and like[like_axis] > shape[position]:
                raise ShapeError(
                    f"{self.name}: shape_like has shape {like}, expected at most {shape[position]} on axis {position}"
                )
            key[position] = slice(0, like[like_axis])
        return tuple(key)

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return not self.axes or any(axis % len(inputs[0]) == 0 for axis in self.axes)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape, like = shapes
        if shape is None or like is None:
            return shapes, [None]
        key = self.key(shape, [like])
        lengths = [n if part.stop is None else part.stop for part, n in zip(key, shape, strict=True)]
        return shapes, [tuple(lengths)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]


@linear("diag")
class Diag(Linear, input_named=True):
    """The k-th diagonal of the planes of two axes; for a vector, the square matrix with it on the diagonal."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = (
        "(n, n) for a vector, else the shape of data without the two axes, then the diagonal; the dtype of data"
    )
    k: int = option(0, "The diagonal: 0 the main one, above it from 1, below it from -1.")
    axis1: int = option(0, "First axis of the planes.")
    axis2: int = option(1, "Second axis of the planes.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [None]
        if len(shape) == 1:
            side = -1 if shape[0] == -1 else shape[0] + abs(self.k)
            return shapes, [(side, side)]
        first = axis_of(self, self.axis1, len(shape), "axis1")
        second = axis_of(self, self.axis2, len(shape), "axis2")
        if first == second:
            raise ShapeError(f"{self.name}: axis1 and axis2 are both {first}, expected two axes")
        others = tuple(n for axis, n in enumerate(shape) if axis not in (first, second))
        h, w = shape[first], shape[second]
        count = -1 if -1 in (h, w) else min(h, w - self.k) if self.k >= 0 else min(h + self.k, w)
        if count != -1 and count <= 0:
            raise ShapeError(f"{self.name}: k is {self.k}, but the planes are {h} by {w}")
        return shapes, [(*others, count)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, out = inputs[0], outputs[0]
        if x.ndim == 1:
            out[...] = run.xp.diag(x, self.k)
        else:
            out[...] = run.xp.diagonal(x, self.k, self.axis1, self.axis2)

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        if out.ndim == 1:
            out[...] = run.xp.diagonal(head, self.k)
            return
        out[...] = 0
        planes = run.xp.moveaxis(out, (self.axis1, self.axis2), (-2, -1))
        steps = run.xp.arange(head.shape[-1])
        planes[..., steps + max(0, -self.k), steps + max(0, self.k)] = head
