"""Resampling of images along their two axes: BilinearResize2D, AdaptiveAvgPooling2D.

Both are linear along each axis: a matrix with a row for every output line holds the weights of
the input lines. Resampling both axes takes two matrix products (:func:`resample`), and the gradient the same two with
transposed matrices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred, Linear, linear, shape_of
from flowmx.ops.arrays.shape_arithmetic import expect_elements
from flowmx.ops.nn.common import computing_dtype, expect_rank, scratch
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, describe, operator, option
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchWise

_PART_BYTES = 1 << 20
_JOINT = 1 << 14
"""Up to this many products per plane, one matrix for both axes is faster than one product per axis."""
_BAND = 64
"""Output lines computed at a time: they need only a band of the input."""


def resample(run: Run, matrices: Sequence[Array], data: Array, out: Array) -> None:
    """Compute ``out = rows · data · columnsᵀ`` for every plane.

    Args:
        run: the context of the forward.
        matrices: rows (out height, height) and columns (out width, width).
        data: (..., height, width).
        out: (..., out height, out width).
    """
    xp, dtype = run.xp, computing_dtype(out.dtype)
    rows, columns = (xp.asarray(matrix, dtype) for matrix in matrices)
    planes, target = data.reshape(-1, *data.shape[-2:]), out.reshape(-1, *out.shape[-2:])
    if not target.size:
        return
    if rows.size * columns.size <= _JOINT:
        joint = xp.kron(rows, columns)
        flat = planes.reshape(len(planes), -1).astype(dtype, copy=False)
        xp.copyto(target.reshape(len(target), -1), flat @ joint.T, casting="unsafe")
        return
    # Resize the axis first that leaves less work for the other.
    first_rows = rows.shape[0] * columns.shape[1] <= rows.shape[1] * columns.shape[0]
    steps = (_resize_rows, _resize_columns) if first_rows else (_resize_columns, _resize_rows)
    step = max(1, _PART_BYTES // max(1, math.prod(planes.shape[1:]) * dtype.itemsize))
    for start in range(0, len(planes), step):
        part = planes[start : start + step].astype(dtype, copy=False)
        count, height, width = part.shape
        half_shape = (count, rows.shape[0], width) if first_rows else (count, height, columns.shape[0])
        half = scratch(run, "resample half", half_shape, dtype)
        result = scratch(run, "resample", (count, rows.shape[0], columns.shape[0]), dtype)
        steps[0](xp, rows if first_rows else columns, part, half)
        steps[1](xp, columns if first_rows else rows, half, result)
        xp.copyto(target[start : start + step], result, casting="unsafe")


def _bands(xp: ArrayNamespace, matrix: Array) -> Iterator[tuple[slice, slice]]:
    """Iterate over bands of output rows, as slices, with the slice of input rows that each reads."""
    for start in range(0, len(matrix), _BAND):
        lines = slice(start, start + _BAND)
        input_lines = xp.flatnonzero(matrix[lines].any(axis=0))
        yield lines, slice(int(input_lines[0]), int(input_lines[-1]) + 1) if input_lines.size else slice(0, 0)


def _resize_rows(xp: ArrayNamespace, matrix: Array, data: Array, out: Array) -> None:
    for lines, input_lines in _bands(xp, matrix):
        xp.matmul(matrix[lines, input_lines], data[:, input_lines], out=out[:, lines])


def _resize_columns(xp: ArrayNamespace, matrix: Array, data: Array, out: Array) -> None:
    flat, target = data.reshape(-1, data.shape[-1]), out.reshape(-1, out.shape[-1])
    for lines, input_lines in _bands(xp, matrix):
        xp.matmul(flat[:, input_lines], matrix[lines, input_lines].T, out=target[:, lines])


@lru_cache(256)
def interpolation(count: int, length: int, align_corners: bool) -> Array:
    """Return the matrix (count, length) that interpolates linearly between the nearest two of ``length`` lines."""
    place = np.arange(count)
    position: Any
    if count == 1:
        position = np.zeros(1)  # the first line, as in MXNet
    elif align_corners:
        position = place * ((length - 1) / (count - 1))
    else:
        position = np.maximum((place + 0.5) * (length / count) - 0.5, 0)
    low = np.minimum(position.astype(np.int64), length - 1)
    matrix = np.zeros((count, length))
    matrix[place, low] = 1 - (position - low)
    matrix[place, np.minimum(low + 1, length - 1)] += position - low
    return matrix


@lru_cache(256)
def averaging_matrix(count: int, length: int) -> Array:
    """Return the matrix (count, length) that averages over ``count`` ranges, as even as integer bounds allow."""
    place, lines = np.arange(count)[:, None], np.arange(length)
    inside = (lines >= place * length // count) & (lines < -(-(place + 1) * length // count))
    matrix: Array = inside / inside.sum(axis=1, keepdims=True)
    return matrix


# -- bilinear resizing -------------------------------------------------------------------------------------


@operator("_contrib_BilinearResize2D")
class BilinearResize2D(Operator, batch_wise=BatchWise.FIRST):
    """Resize images by bilinear interpolation.

    Shapes: data (batch, channels, height, width). Modes: ``size``: height × width, or the input's size times the
    scales; ``odd_scale``: the scaled size, where an odd length n becomes (n - 1)·scale + 1; ``like``: the size of a
    second input; ``to_even_down`` etc.: the nearest even or odd lengths below or above.
    """

    arguments = ("data", "like")
    input_docs = describe(
        data="(batch, channels, height, width), float",
        like="(batch, channels, out height, out width), the dtype of data; only for mode 'like'",
    )
    output_doc = "(batch, channels, out height, out width), the dtype of data"
    height: int = option(1, "Output height for the mode size.", low=1, high=10000)
    width: int = option(1, "Output width for the mode size.", low=1, high=10000)
    scale_height: float | None = option(None, "Output height relative to the input's.")
    scale_width: float | None = option(None, "Output width relative to the input's.")
    mode: Literal["size", "odd_scale", "like", "to_even_down", "to_even_up", "to_odd_down", "to_odd_up"] = option(
        "size", "The rule for the output's size."
    )
    align_corners: bool = option(True, "Align the centres of the corner pixels, not their outer edges.")

    def __post_init__(self) -> None:
        if self.mode == "odd_scale" and (self.scale_height is None or self.scale_width is None):
            raise ParameterError(f"{self.name}: mode 'odd_scale' needs scale_height and scale_width")

    def inputs(self) -> tuple[str, ...]:
        return self.arguments if self.mode == "like" else self.arguments[:1]

    def _length(self, length: int, size: int, scale: float | None) -> int:
        """Return an output length."""
        if self.mode == "size" and scale is None:
            return size
        if length == -1:
            return -1
        if self.mode in ("size", "odd_scale"):
            odd = self.mode == "odd_scale" and length % 2
            return int(np.float32(scale) * np.float32(length - 1 if odd else length)) + (1 if odd else 0)
        parity = 0 if "even" in self.mode else 1
        if length % 2 == parity:
            return length
        return length + (1 if self.mode.endswith("up") else -1)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        for name, shape in zip(self.arguments, shapes, strict=False):
            expect_rank(self, name, shape, 4, 4)
        if data is None:
            return shapes, [None]
        if self.mode == "like":
            size = shapes[1][2:] if shapes[1] is not None else (-1, -1)
        else:
            size = (
                self._length(data[2], self.height, self.scale_height),
                self._length(data[3], self.width, self.scale_width),
            )
        expect_elements(self, data, (2, 3))
        if any(length == 0 or length < -1 for length in size):
            raise ShapeError(f"{self.name}: input data has shape {data}, and would be resized to {size}")
        return shapes, [(*data[:2], *size)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        sizes = zip(outputs[0].shape[2:], inputs[0].shape[2:], strict=True)
        matrices = [interpolation(count, length, self.align_corners) for count, length in sizes]
        resample(run, matrices, inputs[0], outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        like = shape_of(inputs, 0)
        grad = F.op("_backward_contrib_BilinearResize2D", heads[0], like, align_corners=self.align_corners)
        return [grad, None][: len(self.inputs())]


@operator("_backward_contrib_BilinearResize2D")
class BackwardBilinearResize2D(Operator, hidden=True):
    """Gradient of BilinearResize2D: the transposed matrices, back to the shape of ``like``."""

    arguments = ("head", "like")
    align_corners: bool = True

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        sizes = zip(inputs[0].shape[2:], outputs[0].shape[2:], strict=True)
        matrices = [interpolation(count, length, self.align_corners).T for count, length in sizes]
        resample(run, matrices, inputs[0], outputs[0])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        height, width = shape_of(inputs, 0).shape[2:]
        again = F.op(
            "_contrib_BilinearResize2D", heads[0], height=height, width=width, align_corners=self.align_corners
        )
        return [again, None]


@linear("_contrib_AdaptiveAvgPooling2D")
class AdaptiveAvgPooling2D(Linear, batch_wise=BatchWise.FIRST):
    """Average over a fixed number of windows for any input size.

    Shapes: data (batch, channels, height, width), output (batch, channels, *output_size).
    """

    input_docs = describe(data="(batch, channels, height, width), float")
    output_doc = "(batch, channels, *output_size), the dtype of data"
    output_size: Shape = option((), "Height and width, or one number for both; 1 by default.", low=1)

    def __post_init__(self) -> None:
        if len(self.output_size) > 2:
            raise ParameterError(f"{self.name}: output_size is {self.output_size}, expected one or two numbers")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        expect_rank(self, "data", data, 4, 4)
        expect_elements(self, data, (2, 3))
        size = (self.output_size or (1,)) * (1 if len(self.output_size) == 2 else 2)
        return shapes, [None if data is None else (*data[:2], *size)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        matrices = list(map(averaging_matrix, outputs[0].shape[2:], inputs[0].shape[2:]))
        resample(run, matrices, inputs[0], outputs[0])

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        matrices = [matrix.T for matrix in map(averaging_matrix, head.shape[2:], out.shape[2:])]
        resample(run, matrices, head, out)
