"""Operators that move elements without computing: reshape, slice, join, repeat, cast."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.dtypes import DType
from flowmx.ops.linear import Inferred, InferredTypes, Linear, linear, shape_of
from flowmx.ops.registry import Array, Operator, Run, Shape, ShapeOrNone, merge, operator, option, required
from flowmx.ops.reshaping import axes_of, axis_of, resolve_reshape, times

Slices = tuple[slice, ...]


class View(Operator):
    """Base of operators whose output is a NumPy view of the input, copied."""

    def view(self, x: Array, shape: Shape) -> Array:
        """The input, seen with the output's shape."""
        return x.reshape(shape)

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], self.view(inputs[0], outputs[0].shape))

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.reshape_like(heads[0], shape_of(inputs, 0)), *([None] * (len(self.arguments) - 1))]


# -- other shapes ------------------------------------------------------------------------------------------


@operator("Reshape", "reshape")
class Reshape(View):
    """The same elements with another shape.

    In ``shape`` 0 keeps the input's axis, -1 infers one axis, -2 copies all the rest, -3 merges two axes, and
    -4 splits one axis into the two lengths that follow.
    """

    in_place = ((0, 0),)
    shape: Shape = option((), "The wanted shape, with the codes above.")
    reverse: bool = option(False, "Match the codes from the right.")
    target_shape: Shape = option((), "MXNet's older form: the wanted shape, 0 infers one axis.")
    keep_highest: bool = option(False, "With target_shape: keep the first axis.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        codes = self.shape
        if not codes and any(self.target_shape):
            codes = tuple(length or -1 for length in self.target_shape)
            if self.keep_highest:
                codes = (0, *codes[1:])
        given = shapes[0]
        if given is None:
            # Without -2 the number of axes is known, and with it most lengths.
            if not codes or min(codes) < -1:
                return shapes, [None]
            return shapes, [tuple(code or -1 for code in codes)]
        return shapes, [resolve_reshape(given, codes, self.reverse)]

    def infer_back(self, shapes: list[ShapeOrNone], output: ShapeOrNone) -> list[ShapeOrNone]:
        given = shapes[0]
        if given is None or given.count(-1) != 1 or output is None or -1 in output:
            return shapes
        rest = math.prod(length for length in given if length != -1)
        if not rest or math.prod(output) % rest:
            return shapes
        return [tuple(math.prod(output) // rest if length == -1 else length for length in given)]


@operator("Flatten", "flatten")
class Flatten(View):
    """All axes but the first made one: (n, a, b, ...) becomes (n, a·b·...)."""

    in_place = ((0, 0),)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [(-1, -1)]
        if not shape:
            raise ShapeError(f"{self.name}: data has shape (), expected at least 1 axis")
        return shapes, [(shape[0], times(*shape[1:]))]


@operator("reshape_like")
class ReshapeLike(View):
    """The elements of ``lhs`` with the shape of ``rhs``, or some of its axes replaced by some of rhs."""

    arguments = ("lhs", "rhs")
    in_place = ((0, 0),)
    lhs_begin: int | None = option(None, "First axis of lhs to replace.")
    lhs_end: int | None = option(None, "The axis of lhs after the last to replace.")
    rhs_begin: int | None = option(None, "First axis of rhs to take.")
    rhs_end: int | None = option(None, "The axis of rhs after the last to take.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        lhs, rhs = shapes
        whole = (self.lhs_begin, self.lhs_end, self.rhs_begin, self.rhs_end) == (None,) * 4
        if rhs is None or (lhs is None and not whole):
            return shapes, [None]
        if whole or lhs is None:
            wanted = rhs
        else:
            start, stop, _ = slice(self.lhs_begin, self.lhs_end).indices(len(lhs))
            wanted = lhs[:start] + rhs[slice(self.rhs_begin, self.rhs_end)] + lhs[stop:]
        if lhs is not None and -1 not in (*lhs, *wanted) and math.prod(lhs) != math.prod(wanted):
            raise ShapeError(
                f"{self.name}: lhs has shape {lhs} ({math.prod(lhs)} elements), expected as many as {wanted} has"
            )
        return shapes, [wanted]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]


@operator("expand_dims")
class ExpandDims(View):
    """A new axis of length 1 at position ``axis`` of the output."""

    in_place = ((0, 0),)
    axis: int = required("Position of the new axis.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [None]
        axis = axis_of(self, self.axis, len(shape) + 1)
        return shapes, [(*shape[:axis], 1, *shape[axis:])]


@operator("squeeze")
class Squeeze(View):
    """The input without its axes of length 1, or without the given ones."""

    in_place = ((0, 0),)
    axis: Shape | None = option(None, "The axes to drop; None for all of length 1.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None or (self.axis is None and -1 in shape):
            return shapes, [None]
        if self.axis is None:
            dropped = tuple(axis for axis, length in enumerate(shape) if length == 1)
        else:
            dropped = axes_of(self, self.axis, len(shape))
            for axis in dropped:
                if shape[axis] not in (1, -1):
                    raise ShapeError(
                        f"{self.name}: axis {axis} of the input's shape {shape} has length {shape[axis]}, expected 1"
                    )
        return shapes, [tuple(n for axis, n in enumerate(shape) if axis not in dropped) or (1,)]


# -- other orders ------------------------------------------------------------------------------------------


@operator("transpose")
class Transpose(View):
    """The axes in another order; reversed where none is given."""

    axes: Shape = option((), "The input's axes in the order of the output's.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [(-1,) * len(self.axes) if self.axes else None]
        if not self.axes:
            return shapes, [shape[::-1]]
        axes = axes_of(self, self.axes, len(shape), "axes")
        if len(axes) != len(shape):
            raise ShapeError(f"{self.name}: axes is {self.axes}, expected each of the {len(shape)} axes once")
        return shapes, [tuple(shape[axis] for axis in axes)]

    def view(self, x: Array, shape: Shape) -> Array:
        return x.transpose(self.axes or None)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        axes = [axis % len(self.axes) for axis in self.axes]
        return [F.transpose(heads[0], axes=tuple(axes.index(at) for at in range(len(axes))))]


@operator("SwapAxis", "swapaxes")
class SwapAxis(View):
    """Two axes exchanged."""

    dim1: int = option(0, "The one axis.")
    dim2: int = option(0, "The other axis.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        if shapes[0] is None:
            return shapes, [None]
        shape = list(shapes[0])
        one = axis_of(self, self.dim1, len(shape), "dim1")
        other = axis_of(self, self.dim2, len(shape), "dim2")
        shape[one], shape[other] = shape[other], shape[one]
        return shapes, [tuple(shape)]

    def view(self, x: Array, shape: Shape) -> Array:
        return x.swapaxes(self.dim1, self.dim2)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.SwapAxis(heads[0], dim1=self.dim1, dim2=self.dim2)]


@operator("reverse", "flip")
class Reverse(View):
    """The elements in reverse order along the given axes."""

    axis: Shape = required("The axes.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        if shapes[0] is not None:
            axes_of(self, self.axis, len(shapes[0]))
        return shapes, [shapes[0]]

    def view(self, x: Array, shape: Shape) -> Array:
        axes = axes_of(self, self.axis, x.ndim)
        return x[tuple(slice(None, None, -1 if axis in axes else 1) for axis in range(x.ndim))]

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.reverse(heads[0], axis=self.axis)]


def _image(op: Operator, shape: Shape) -> tuple[int, int, int, int]:
    if len(shape) != 4:
        raise ShapeError(f"{op.name}: data has shape {shape}, expected 4 axes (batch, channel, height, width)")
    n, c, h, w = shape
    return n, c, h, w


def _divided(op: Operator, length: int, by: int, what: str) -> int:
    if length == -1:
        return -1
    if length % by:
        raise ShapeError(f"{op.name}: the {what} is {length}, expected a multiple of {by}")
    return length // by


@operator("depth_to_space")
class DepthToSpace(View):
    """Blocks of channels spread over space: (n, c·b², h, w) becomes (n, c, h·b, w·b)."""

    block_size: int = required("b, the side of a block.", low=1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        if shapes[0] is None:
            return shapes, [None]
        n, c, h, w = _image(self, shapes[0])
        b = self.block_size
        return shapes, [(n, _divided(self, c, b * b, "number of channels"), times(h, b), times(w, b))]

    def view(self, x: Array, shape: Shape) -> Array:
        n, c, h, w = x.shape
        b = self.block_size
        blocks = x.reshape(n, b, b, c // (b * b), h, w)
        return blocks.transpose(0, 3, 4, 1, 5, 2).reshape(shape)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.space_to_depth(heads[0], block_size=self.block_size)]


@operator("space_to_depth")
class SpaceToDepth(View):
    """Blocks of space gathered into channels: (n, c, h·b, w·b) becomes (n, c·b², h, w)."""

    block_size: int = required("b, the side of a block.", low=1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        if shapes[0] is None:
            return shapes, [None]
        n, c, h, w = _image(self, shapes[0])
        b = self.block_size
        return shapes, [
            (n, times(c, b * b), _divided(self, h, b, "height"), _divided(self, w, b, "width")),
        ]

    def view(self, x: Array, shape: Shape) -> Array:
        n, c, h, w = x.shape
        b = self.block_size
        blocks = x.reshape(n, c, h // b, b, w // b, b)
        return blocks.transpose(0, 3, 5, 1, 2, 4).reshape(shape)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.depth_to_space(heads[0], block_size=self.block_size)]


# -- parts -------------------------------------------------------------------------------------------------


class _Slicing(Linear):
    def key(self, shape: Shape, others: Sequence[Shape]) -> Slices:
        """The slice of each axis, from the shapes of the input and of the other inputs."""
        raise NotImplementedError

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        key = self.key(inputs[0].shape, [each.shape for each in inputs[1:]])
        run.xp.copyto(outputs[0], inputs[0][key])

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        out[...] = 0
        out[self.key(out.shape, [each.shape for each in others])] = head


def _count(part: slice, length: int) -> int:
    if length == -1:
        return -1
    return len(range(*part.indices(length)))


@linear("slice", "crop")
class Slice(_Slicing):
    """A part of the input: on each axis from ``begin`` to before ``end``, in steps of ``step``."""

    begin: tuple[int | None, ...] = required("First index on each axis; None for the start.")
    end: tuple[int | None, ...] = required("The index after the last on each axis; None for the end.")
    step: tuple[int | None, ...] = option((), "The step on each axis; None for 1, negative for backwards.")

    def key(self, shape: Shape, others: Sequence[Shape] = ()) -> Slices:
        steps = self.step or (None,) * len(self.begin)
        if not len(self.begin) == len(self.end) == len(steps):
            raise ShapeError(
                f"{self.name}: begin is {self.begin}, end {self.end} and step {self.step}, expected as many of each"
            )
        if len(self.begin) > len(shape):
            raise ShapeError(
                f"{self.name}: begin is {self.begin}, expected at most {len(shape)} numbers for the shape {shape}"
            )
        if 0 in steps:
            raise ShapeError(f"{self.name}: step is {self.step}, expected no 0")
        return tuple(slice(*each) for each in zip(self.begin, self.end, steps, strict=True))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [None]
        key = self.key(shape)
        return shapes, [(*map(_count, key, shape), *shape[len(key) :])]


@linear("slice_axis")
class SliceAxis(_Slicing):
    """A part of the input along one axis, from ``begin`` to before ``end``."""

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
class SliceLike(_Slicing):
    """The first elements of ``data``, as many on the given axes as ``shape_like`` has (default: all axes)."""

    arguments = ("data", "shape_like")
    shape_only = True
    axes: Shape = option((), "The axes; () for all.")

    def key(self, shape: Shape, others: Sequence[Shape]) -> Slices:
        like = others[0]
        if not self.axes and len(like) != len(shape):
            raise ShapeError(
                f"{self.name}: shape_like has shape {like}, expected {len(shape)} axes as data {shape} has"
            )
        key = [slice(None)] * len(shape)
        for axis in self.axes or range(len(shape)):
            at, there = axis_of(self, axis, len(shape), "axes"), axis_of(self, axis, len(like), "axes")
            if -1 not in (shape[at], like[there]) and like[there] > shape[at]:
                raise ShapeError(f"{self.name}: shape_like has shape {like}, expected at most {shape[at]} on axis {at}")
            key[at] = slice(0, like[there])
        return tuple(key)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape, like = shapes
        if shape is None or like is None:
            return shapes, [None]
        key = self.key(shape, [like])
        cut = [n if part.stop is None else part.stop for part, n in zip(key, shape, strict=True)]
        return shapes, [tuple(cut)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]


@linear("diag")
class Diag(Linear):
    """The k-th diagonal of the planes of two axes, or the square matrix with a vector on its diagonal."""

    k: int = option(0, "Which diagonal: above the main one from 1, below it from -1.")
    axis1: int = option(0, "First axis of the planes.")
    axis2: int = option(1, "Second axis of the planes.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [None]
        if len(shape) == 1:
            side = -1 if shape[0] == -1 else shape[0] + abs(self.k)
            return shapes, [(side, side)]
        one = axis_of(self, self.axis1, len(shape), "axis1")
        other = axis_of(self, self.axis2, len(shape), "axis2")
        if one == other:
            raise ShapeError(f"{self.name}: axis1 and axis2 are both {one}, expected two axes")
        rest = tuple(n for axis, n in enumerate(shape) if axis not in (one, other))
        h, w = shape[one], shape[other]
        count = -1 if -1 in (h, w) else min(h, w - self.k) if self.k >= 0 else min(h + self.k, w)
        if count != -1 and count <= 0:
            raise ShapeError(f"{self.name}: k is {self.k}, but the planes are {h} by {w}")
        return shapes, [(*rest, count)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, out = inputs[0], outputs[0]
        if x.ndim == 1:
            out[...] = run.xp.diag(x, self.k)
        else:
            out[...] = run.xp.diagonal(x, self.k, self.axis1, self.axis2)

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        if out.ndim == 1:
            out[...] = run.xp.diagonal(head, self.k)
            return
        out[...] = 0
        planes = run.xp.moveaxis(out, (self.axis1, self.axis2), (-2, -1))
        steps = run.xp.arange(head.shape[-1])
        planes[..., steps + max(0, -self.k), steps + max(0, self.k)] = head


# -- more of the same --------------------------------------------------------------------------------------


@linear("tile")
class Tile(Linear):
    """The whole input repeated ``reps`` times along each axis."""

    reps: Shape = required("How often, for each axis; matched from the right.", low=0)

    def _pairs(self, shape: Shape) -> list[tuple[int, int]]:
        ndim = max(len(shape), len(self.reps))
        lengths = (1,) * (ndim - len(shape)) + shape
        return list(zip((1,) * (ndim - len(self.reps)) + self.reps, lengths, strict=True))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        if shapes[0] is None:
            return shapes, [None]
        return shapes, [tuple(times(*pair) for pair in self._pairs(shapes[0]))]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = run.xp.tile(inputs[0], self.reps)

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        pairs = self._pairs(out.shape)
        split = head.reshape([n for pair in pairs for n in pair])
        out[...] = split.sum(axis=tuple(range(0, 2 * len(pairs), 2))).reshape(out.shape)


@linear("repeat")
class Repeat(Linear):
    """Each element repeated ``repeats`` times along an axis, or of the flattened input."""

    repeats: int = required("How often.", low=0)
    axis: int | None = option(None, "The axis; None for the flattened input.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [(-1,) if self.axis is None else None]
        if self.axis is None:
            return shapes, [(times(*shape, self.repeats),)]
        axis = axis_of(self, self.axis, len(shape))
        return shapes, [(*shape[:axis], times(shape[axis], self.repeats), *shape[axis + 1 :])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = run.xp.repeat(inputs[0], self.repeats, self.axis)

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        axis = out.ndim - 1 if self.axis is None else self.axis % out.ndim
        split = head.reshape(*out.shape[: axis + 1], self.repeats, *out.shape[axis + 1 :])
        out[...] = split.sum(axis=axis + 1)


@linear("Pad", "pad")
class Pad(Linear):
    """The input with elements added around it: a constant, the edge's, or the reflected content."""

    mode: Literal["constant", "edge", "reflect"] = required("What to add.")
    pad_width: Shape = required("How many, before and after on each axis in turn.", low=0)
    constant_value: float = option(0.0, "The constant.")

    def _pairs(self, ndim: int) -> list[tuple[int, int]]:
        if len(self.pad_width) != 2 * ndim:
            raise ShapeError(f"{self.name}: pad_width is {self.pad_width}, expected {2 * ndim} numbers for {ndim} axes")
        return list(zip(self.pad_width[::2], self.pad_width[1::2], strict=True))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [(-1,) * (len(self.pad_width) // 2)]
        pairs = self._pairs(len(shape))
        for axis, (pair, length) in enumerate(zip(pairs, shape, strict=True)):
            if self.mode == "edge" and length == 0 and any(pair):
                raise ShapeError(f"{self.name}: pad_width is {pair} on axis {axis}, which has no elements to repeat")
            if self.mode == "reflect" and length != -1 and max(pair) >= max(1, length):
                raise ShapeError(
                    f"{self.name}: pad_width is {pair} on axis {axis}, expected less than its length {length} "
                    "to reflect"
                )
        return shapes, [tuple(-1 if n == -1 else n + sum(pair) for n, pair in zip(shape, pairs, strict=True))]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x, out = inputs[0], outputs[0]
        pairs = self._pairs(x.ndim)
        if self.mode == "constant":
            out[...] = self.constant_value
            out[self._inner(x.shape)] = x
        else:
            out[...] = run.xp.pad(x, pairs, mode=self.mode)

    def _inner(self, shape: Shape) -> Slices:
        return tuple(slice(low, low + n) for (low, _), n in zip(self._pairs(len(shape)), shape, strict=True))

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        if self.mode == "constant":
            out[...] = head[self._inner(out.shape)]
            return
        for axis, (pair, length) in enumerate(zip(self._pairs(out.ndim), out.shape, strict=True)):
            if pair == (0, 0):
                continue
            # Where each padded position came from; all that came from one are added up.
            origin = np.pad(np.arange(length), pair, mode=self.mode)
            folded = run.xp.zeros((length, *head.shape[:axis], *head.shape[axis + 1 :]), head.dtype)
            run.xp.add.at(folded, run.xp.asarray(origin), run.xp.moveaxis(head, axis, 0))
            head = run.xp.moveaxis(folded, 0, axis)
        out[...] = head

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        # The transpose belongs to the linear part, without the constant.
        like = shape_of(inputs, 0)
        return [F.op("_backward_Pad", heads[0], like, mode=self.mode, pad_width=self.pad_width)]


# -- joining and splitting ---------------------------------------------------------------------------------


@operator("Concat", "concat")
class Concat(Operator):
    """The inputs joined along an axis; their other axes must be equal."""

    variadic = "num_args"
    keeps_layout = True
    num_args: int = required("Number of inputs.", low=1)
    dim: int = option(1, "The axis to join along.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        known = next((shape for shape in shapes if shape is not None), None)
        if known is None:
            return shapes, [None]
        axis = axis_of(self, self.dim, len(known), "dim")
        rest = known
        for position, shape in enumerate(shapes):
            if shape is None:
                continue
            like = (*shape[:axis], rest[axis], *shape[axis + 1 :])
            both: Any = merge(rest, like) if len(shape) == len(known) else False
            if both is False:
                raise ShapeError(
                    f"{self.name}: input {position} has shape {shape}, expected {known} but for axis {axis}"
                )
            rest = both
        lengths = [-1 if shape is None else shape[axis] for shape in shapes]
        total = -1 if -1 in lengths else sum(lengths)
        made = [(*rest[:axis], length, *rest[axis + 1 :]) for length in (*lengths, total)]
        return [*made[:-1]], [made[-1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.concatenate(inputs, axis=self.dim, out=outputs[0])

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        if self.num_args == 1:
            return [heads[0]]
        likes = [shape_of(inputs, at) for at in range(self.num_args)]
        return list(F.op("_backward_Concat", heads[0], *likes, dim=self.dim))


@operator("_backward_Concat")
class BackwardConcat(Operator):
    """A head split into parts of the shapes of the further inputs."""

    hidden = True
    keeps_layout = True
    variadic = "num_args"
    num_args: int = required("Number of inputs, the head first.", low=2)
    dim: int = option(1, "The axis to split.")

    def only_shapes(self) -> tuple[int, ...]:
        return tuple(range(1, self.num_args))

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"output{at}" for at in range(self.num_args - 1))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, list(shapes[1:])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        head, start = run.xp.moveaxis(inputs[0], self.dim, 0), 0
        for out in outputs:
            stop = start + out.shape[self.dim]
            out[...] = run.xp.moveaxis(head[start:stop], 0, self.dim)
            start = stop

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.Concat(*heads, dim=self.dim), *([None] * len(heads))]


@operator("stack")
class Stack(Operator):
    """Inputs of one shape joined along a new axis."""

    variadic = "num_args"
    axis: int = option(0, "Position of the new axis.")
    num_args: int = required("Number of inputs.", low=1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        completed, (shape,) = super().infer_shape(shapes)
        if shape is None:
            return completed, [None]
        axis = axis_of(self, self.axis, len(shape) + 1)
        return completed, [(*shape[:axis], self.num_args, *shape[axis:])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.stack(inputs, axis=self.axis, out=outputs[0])

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        parts = F.SliceChannel(heads[0], num_outputs=self.num_args, axis=self.axis, squeeze_axis=True)
        like = shape_of(inputs, 0)
        if getattr(like, "shape", None) == ():  # a split vector's parts have an axis
            return [F.reshape_like(part, like) for part in ([parts] if self.num_args == 1 else parts)]
        return [parts] if self.num_args == 1 else list(parts)


_SQUEEZE = "Drop the axis, where each part has length 1 on it."


class _Split(Operator):
    axis: int
    squeeze_axis: bool

    def count(self) -> int:
        """The number of parts."""
        raise NotImplementedError

    def bounds(self, length: int) -> list[int]:
        """Where the parts start and end on an axis of that length."""
        raise NotImplementedError

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"output{at}" for at in range(self.count()))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [None] * self.count()
        axis = axis_of(self, self.axis, len(shape))
        lengths = [-1] * self.count()
        if shape[axis] != -1:
            bounds = self.bounds(shape[axis])
            lengths = [max(0, stop - start) for start, stop in itertools.pairwise(bounds)]
        if not self.squeeze_axis:
            return shapes, [(*shape[:axis], n, *shape[axis + 1 :]) for n in lengths]
        if any(n not in (1, -1) for n in lengths):
            raise ShapeError(
                f"{self.name}: squeeze_axis needs parts of length 1, but axis {axis} of the shape {shape} "
                f"gives {self.count()} parts of lengths {lengths}"
            )
        return shapes, [(*shape[:axis], *shape[axis + 1 :]) or (1,)] * self.count()

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x = inputs[0]
        axis = self.axis % x.ndim
        before = (slice(None),) * axis
        bounds = self.bounds(x.shape[axis])
        for out, start, stop in zip(outputs, bounds, bounds[1:], strict=False):
            out[...] = x[(*before, slice(start, max(start, stop)))].reshape(out.shape)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        if self.squeeze_axis:
            joined = F.stack(*heads, axis=self.axis)
            # A vector's parts keep one axis, which stack then finds too many.
            return [F.reshape_like(joined, shape_of(inputs, 0))]
        return [F.Concat(*heads, dim=self.axis)]


@operator("SliceChannel", "split")
class SliceChannel(_Split):
    """The input split along an axis into equal parts."""

    num_outputs: int = required("Number of parts.", low=1)
    axis: int = option(1, "The axis to split.")
    squeeze_axis: bool = option(False, _SQUEEZE)

    def count(self) -> int:
        return self.num_outputs

    def bounds(self, length: int) -> list[int]:
        part = _divided(self, length, self.num_outputs, f"length of axis {self.axis}")
        return [part * at for at in range(self.num_outputs + 1)]


@operator("_split_v2")
class SplitV2(_Split):
    """The input split along an axis at the given indices, or into ``sections`` equal parts."""

    indices: Shape = option((), "Where the parts start (MXNet's JSON puts a 0 first).")
    axis: int = option(1, "The axis to split.")
    squeeze_axis: bool = option(False, _SQUEEZE)
    sections: int = option(0, "Number of equal parts, or 0 to go by the indices.", low=0)

    def _inner(self) -> Shape:
        return self.indices[1:] if self.indices[:1] == (0,) else self.indices

    def count(self) -> int:
        return self.sections or len(self._inner()) + 1

    def bounds(self, length: int) -> list[int]:
        if self.sections:
            part = _divided(self, length, self.sections, f"length of axis {self.axis}")
            return [part * at for at in range(self.sections + 1)]
        return [0, *(slice(at, None).indices(length)[0] for at in self._inner()), length]


# -- constants and other dtypes ----------------------------------------------------------------------------


class _Fill(Operator):
    value = 0

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = self.value

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.zeros_like(heads[0])]


@operator("zeros_like")
class ZerosLike(_Fill):
    """Zeros of the input's shape and dtype."""


@operator("ones_like")
class OnesLike(_Fill):
    """Ones of the input's shape and dtype."""

    value = 1


class _Shape(Operator):
    no_gradient = True

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [np.dtype(np.int64)]


@operator("shape_array")
class ShapeArray(_Shape):
    """The input's shape, as an int64 vector."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [(-1,) if shapes[0] is None else (len(shapes[0]),)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = run.xp.asarray(inputs[0].shape)


@operator("size_array")
class SizeArray(_Shape):
    """The input's number of elements, as an int64 vector of length 1."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [(1,)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = inputs[0].size


@operator("Cast", "cast")
class Cast(Operator):
    """The input as another element type."""

    dtype: DType = required("The wanted dtype.")

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [self.dtype]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0], casting="unsafe")

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.op("_cast_like", heads[0], shape_of(inputs, 0))]


@operator("_cast_like")
class CastLike(Operator):
    """The first input as the element type of the second."""

    hidden = True
    arguments = ("data", "like")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[0]]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0], casting="unsafe")

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.op("_cast_like", heads[0], shape_of(inputs, 0)), None]
