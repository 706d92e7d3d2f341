"""Operators that join arrays into one and split one into many: concat, stack, split."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred, shape_of
from flowmx.ops.arrays.shape_arithmetic import axis_of, part_length
from flowmx.ops.registry.operators import (
    Array,
    Bound,
    Form,
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
from flowmx.ops.registry.traits import BatchWise, Passing, Precision, Quantization


@operator("Concat", "concat")
class Concat(
    Operator, keeps_layout=True, mirrored=False, moves=True, passing=Passing.ALONE, precision=Precision.WIDEST,
    quantized=Quantization("_contrib_quantized_concat"), batch_wise=BatchWise.EACH,
):  # fmt: skip
    """The inputs joined along an axis; their other axes must be equal."""

    variadic = "num_args"
    input_docs = describe(data="arrays of the same dtype, whose shapes differ along `dim` only")
    output_doc = "The shape of the inputs with their lengths summed along `dim`, their dtype"
    onnx = "Concat"
    onnx_attributes: ClassVar[dict[str, str]] = {"axis": "dim"}
    num_args: int = required("Number of inputs.", low=1)
    dim: int = option(1, "The axis to join along.")

    def __post_init__(self) -> None:
        if self.dim <= 0:
            self.with_traits(quantized=None)

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return self.dim % len(inputs[0]) == 0

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        first = next((shape for shape in shapes if shape is not None), None)
        if first is None:
            return shapes, [None]
        axis = axis_of(self, self.dim, len(first), "dim")
        common = first
        for position, shape in enumerate(shapes):
            if shape is None:
                continue
            like = (*shape[:axis], common[axis], *shape[axis + 1 :])
            merged: Any = merge(common, like) if len(shape) == len(first) else False
            if merged is False:
                raise ShapeError(
                    f"{self.name}: input {position} has shape {shape}, expected {first} except on axis {axis}"
                )
            common = merged
        lengths = [-1 if shape is None else shape[axis] for shape in shapes]
        total = -1 if -1 in lengths else sum(lengths)
        completed = [(*common[:axis], length, *common[axis + 1 :]) for length in (*lengths, total)]
        return [*completed[:-1]], [completed[-1]]

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        output = outputs[0]
        if output is None:
            return shapes
        axis = axis_of(self, self.dim, len(output), "dim")
        lengths = [-1 if shape is None or len(shape) != len(output) else shape[axis] for shape in shapes]
        if lengths.count(-1) == 1 and output[axis] != -1:
            remainder = output[axis] - sum(length for length in lengths if length != -1)
            lengths = [remainder if length == -1 else length for length in lengths]
        return [(*output[:axis], length, *output[axis + 1 :]) for length in lengths]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.concatenate(inputs, axis=self.dim, out=outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        if self.num_args == 1:
            return [heads[0]]
        likes = [shape_of(inputs, index) for index in range(self.num_args)]
        return list(F.op("_backward_Concat", heads[0], *likes, dim=self.dim))


@operator("_backward_Concat")
class BackwardConcat(Operator, hidden=True, moves=True, keeps_layout=True, batch_wise=BatchWise.EACH):
    """The head split into parts with the shapes of the other inputs."""

    variadic = "num_args"
    num_args: int = required("Number of inputs, the head first.", low=2)
    dim: int = option(1, "The axis to split.")

    def shape_only_inputs(self) -> tuple[int, ...]:
        return tuple(range(1, self.num_args))

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return self.dim % len(inputs[0]) == 0

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"output{index}" for index in range(self.num_args - 1))

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, list(shapes[1:])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        head, start = run.xp.moveaxis(inputs[0], self.dim, 0), 0
        for out in outputs:
            stop = start + out.shape[self.dim]
            out[...] = run.xp.moveaxis(head[start:stop], 0, self.dim)
            start = stop

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.Concat(*heads, dim=self.dim), *([None] * len(heads))]


@operator("stack")
class Stack(Operator, moves=True, precision=Precision.WIDEST, batch_wise=BatchWise.EACH):
    """Inputs of the same shape joined along a new axis."""

    variadic = "num_args"
    input_docs = describe(data="arrays of the same shape and dtype")
    output_doc = "The shape of the inputs with a new axis of length num_args, their dtype"
    axis: int = option(0, "Position of the new axis.")
    num_args: int = required("Number of inputs.", low=1)

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return self.axis % (len(inputs[0]) + 1) == 0

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        completed, (shape,) = super().infer_shape(shapes)
        if shape is None:
            return completed, [None]
        axis = axis_of(self, self.axis, len(shape) + 1)
        return completed, [(*shape[:axis], self.num_args, *shape[axis:])]

    def bound(self, xp: ArrayNamespace, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
        shape, dtype = in_forms[0]
        if xp is not np or any(form != (shape, dtype) for form in (*in_forms, (shape, out_forms[0][1]))):
            return None
        axis = self.axis % (len(shape) + 1)
        part = (*shape[:axis], 1, *shape[axis:])

        def stack(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            np.concatenate([each.reshape(part) for each in inputs], axis, outputs[0])

        return stack

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.stack(inputs, axis=self.axis, out=outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        parts = F.SliceChannel(heads[0], num_outputs=self.num_args, axis=self.axis, squeeze_axis=True)
        like = shape_of(inputs, 0)
        if getattr(like, "shape", None) == ():  # the parts of a split vector keep an axis
            return [F.reshape_like(part, like) for part in ([parts] if self.num_args == 1 else parts)]
        return [parts] if self.num_args == 1 else list(parts)


_SQUEEZE = "Drop the axis; each part must have length 1 on it."


class _Split(Operator, moves=True, batch_wise=BatchWise.FIRST):
    input_docs = describe(data="any shape, any dtype")
    output_doc = (
        "A list of the parts, or the single part: the shape of data except on the axis, which squeeze_axis removes; "
        "its dtype"
    )
    axis: int
    squeeze_axis: bool

    def count(self) -> int:
        """Return the number of parts."""
        raise NotImplementedError

    def bounds(self, length: int) -> list[int]:
        """Return the boundaries of the parts on an axis of this length."""
        raise NotImplementedError

    def outputs(self) -> tuple[str, ...]:
        return tuple(f"output{index}" for index in range(self.count()))

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return self.axis % len(inputs[0]) == 0

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
                f"has {self.count()} parts of lengths {lengths}"
            )
        return shapes, [(*shape[:axis], *shape[axis + 1 :]) or (1,)] * self.count()

    def infer_back(self, shapes: list[ShapeOrNone], outputs: list[ShapeOrNone]) -> list[ShapeOrNone]:
        data, part_shape = shapes[0], next((shape for shape in outputs if shape is not None), None)
        rank = len(data) if data is not None else 0 if part_shape is None else len(part_shape) + self.squeeze_axis
        if not rank or (self.squeeze_axis and rank == 1):  # the parts of a vector keep one axis
            return shapes
        axis = axis_of(self, self.axis, rank)
        common: Any = (-1,) * rank
        for part in outputs:
            if part is not None:
                full_part = part if not self.squeeze_axis else (*part[:axis], -1, *part[axis:])
                common = merge(common, (*full_part[:axis], -1, *full_part[axis + 1 :])) or common
        lengths = [1 if self.squeeze_axis else -1 if part is None else part[axis] for part in outputs]
        return [(*common[:axis], self.total(lengths), *common[axis + 1 :])]

    def total(self, lengths: Sequence[int]) -> int:
        """Return the length of the split axis from the lengths of the parts (-1: unknown)."""
        return -1 if -1 in lengths else sum(lengths)

    def bound(self, xp: ArrayNamespace, input_forms: Sequence[Form], output_forms: Sequence[Form]) -> Bound | None:
        if self.squeeze_axis:
            return None
        shape = input_forms[0][0]
        axis = self.axis % len(shape)
        prefix, bounds = (slice(None),) * axis, self.bounds(shape[axis])
        selections = [(*prefix, slice(start, max(start, stop))) for start, stop in itertools.pairwise(bounds)]

        def take(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            x = inputs[0]
            for out, selection in zip(outputs, selections, strict=True):
                out[...] = x[selection]

        return take

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        x = inputs[0]
        axis = self.axis % x.ndim
        prefix = (slice(None),) * axis
        bounds = self.bounds(x.shape[axis])
        for out, start, stop in zip(outputs, bounds, bounds[1:], strict=False):
            out[...] = x[(*prefix, slice(start, max(start, stop)))].reshape(out.shape)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        if self.squeeze_axis:
            gradient = F.stack(*heads, axis=self.axis)
            # The parts of a vector keep one axis, so stack returns one axis too many.
            return [F.reshape_like(gradient, shape_of(inputs, 0))]
        return [F.Concat(*heads, dim=self.axis)]


@operator("SliceChannel", "split")
class SliceChannel(_Split, passing=Passing.ALIKE, input_named=True):
    """The input split along an axis into equal parts."""

    num_outputs: int = required("Number of parts.", low=1)
    axis: int = option(1, "The axis to split.")
    squeeze_axis: bool = option(False, _SQUEEZE)

    def count(self) -> int:
        return self.num_outputs

    def total(self, lengths: Sequence[int]) -> int:
        return max(lengths) * self.num_outputs if max(lengths) >= 0 else -1

    def bounds(self, length: int) -> list[int]:
        part = part_length(self, length, self.num_outputs, f"length of axis {self.axis}")
        return [part * index for index in range(self.num_outputs + 1)]


@operator("_split_v2")
class SplitV2(_Split, passing=Passing.ALIKE, input_named=True):
    """The input split along an axis at indices, or into ``sections`` equal parts."""

    indices: Shape = option((), "The first index of each part (in MXNet's JSON, with a leading 0).")
    axis: int = option(1, "The axis to split.")
    squeeze_axis: bool = option(False, _SQUEEZE)
    sections: int = option(0, "Number of equal parts, or 0 to use the indices.", low=0)

    def _split_indices(self) -> Shape:
        return self.indices[1:] if self.indices[:1] == (0,) else self.indices

    def count(self) -> int:
        return self.sections or len(self._split_indices()) + 1

    def bounds(self, length: int) -> list[int]:
        if self.sections:
            part = part_length(self, length, self.sections, f"length of axis {self.axis}")
            return [part * index for index in range(self.sections + 1)]
        return [0, *(slice(index, None).indices(length)[0] for index in self._split_indices()), length]
