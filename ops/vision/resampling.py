"""Resampling of images along their two axes: BilinearResize2D, AdaptiveAvgPooling2D.

Both are linear along each axis: a matrix with a row for every output line holds the weights of
the input lines. Both axes are then two products (:func:`resample`), and the gradient is the same with the
matrices transposed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred, Linear, linear, shape_of
from flowmx.ops.arrays.reshaping import expect_elements
from flowmx.ops.nn.common import computing_dtype, expect_rank, scratch
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, described, operator, option
from flowmx.ops.registry.traits import BatchWise

_PART_BYTES = 1 << 20
_JOINT = 1 << 14
"""Up to this many products a plane, one matrix for both axes is faster than a product for each."""
_BAND = 64
"""Lines of output to compute at a time: they need but a band of the input."""


def resample(run: Run, matrices: Sequence[Array], data: Array, out: Array) -> None:
    """``out = rows · data · columnsᵀ`` for every plane.

    Args:
        run: where it runs.
        matrices: rows (out height, height) and columns (out width, width).
        data: (..., height, width).
        out: (..., out height, out width).
    """
    xp, dtype = run.xp, computing_dtype(out.dtype)
    rows, columns = (xp.asarray(matrix, dtype) for matrix in matrices)
    planes, made = data.reshape(-1, *data.shape[-2:]), out.reshape(-1, *out.shape[-2:])
    if not made.size:
        return
    if rows.size * columns.size <= _JOINT:
        joint = xp.kron(rows, columns)
        flat = planes.reshape(len(planes), -1).astype(dtype, copy=False)
        xp.copyto(made.reshape(len(made), -1), flat @ joint.T, casting="unsafe")
        return
    # The axis first that leaves less for the other.
    first_rows = rows.shape[0] * columns.shape[1] <= rows.shape[1] * columns.shape[0]
    steps = (_along_rows, _along_columns) if first_rows else (_along_columns, _along_rows)
    step = max(1, _PART_BYTES // max(1, math.prod(planes.shape[1:]) * dtype.itemsize))
    for start in range(0, len(planes), step):
        part = planes[start : start + step].astype(dtype, copy=False)
        count, height, width = part.shape
        between = (count, rows.shape[0], width) if first_rows else (count, height, columns.shape[0])
        half = scratch(run, "resample half", between, dtype)
        done = scratch(run, "resample", (count, rows.shape[0], columns.shape[0]), dtype)
        steps[0](xp, rows if first_rows else columns, part, half)
        steps[1](xp, columns if first_rows else rows, half, done)
        xp.copyto(made[start : start + step], done, casting="unsafe")


def _bands(xp: Any, matrix: Array) -> Iterator[tuple[slice, slice]]:
    """Bands of output rows, as slices, each with the slice of input rows that it takes from."""
    for start in range(0, len(matrix), _BAND):
        lines = slice(start, start + _BAND)
        used = xp.flatnonzero(matrix[lines].any(axis=0))
        yield lines, slice(int(used[0]), int(used[-1]) + 1) if used.size else slice(0, 0)


def _along_rows(xp: Any, matrix: Array, data: Array, out: Array) -> None:
    for lines, used in _bands(xp, matrix):
        xp.matmul(matrix[lines, used], data[:, used], out=out[:, lines])


def _along_columns(xp: Any, matrix: Array, data: Array, out: Array) -> None:
    flat, made = data.reshape(-1, data.shape[-1]), out.reshape(-1, out.shape[-1])
    for lines, used in _bands(xp, matrix):
        xp.matmul(flat[:, used], matrix[lines, used].T, out=made[:, lines])


@lru_cache(256)
def interpolation(made: int, length: int, align_corners: bool) -> Array:
    """The matrix (made, length) that interpolates linearly between the nearest two of ``length`` lines."""
    place = np.arange(made)
    at: Any
    if made == 1:
        at = np.zeros(1)  # the first line, as in MXNet
    elif align_corners:
        at = place * ((length - 1) / (made - 1))
    else:
        at = np.maximum((place + 0.5) * (length / made) - 0.5, 0)
    low = np.minimum(at.astype(np.int64), length - 1)
    matrix = np.zeros((made, length))
    matrix[place, low] = 1 - (at - low)
    matrix[place, np.minimum(low + 1, length - 1)] += at - low
    return matrix


@lru_cache(256)
def averaging(made: int, length: int) -> Array:
    """The matrix (made, length) that averages over ``made`` ranges, as even as integer bounds allow."""
    place, lines = np.arange(made)[:, None], np.arange(length)
    inside = (lines >= place * length // made) & (lines < -(-(place + 1) * length // made))
    matrix: Array = inside / inside.sum(axis=1, keepdims=True)
    return matrix


# -- bilinear resizing -------------------------------------------------------------------------------------


@operator("_contrib_BilinearResize2D")
class BilinearResize2D(Operator, batch_wise=BatchWise.FIRST):
    """Resize images by bilinear interpolation.

    Shapes: data (batch, channels, height, width). The modes: ``size`` makes height × width (or the input's,
    times the scales), ``odd_scale`` the scaled size, where an odd length n becomes (n - 1)·scale + 1; ``like``
    that of a second input; ``to_even_down`` and so on the nearest even or odd lengths below or above.
    """

    arguments = ("data", "like")
    input_docs = described(
        data="(batch, channels, height, width), float",
        like="(batch, channels, out height, out width), the dtype of data; only for mode 'like'",
    )
    output_doc = "(batch, channels, out height, out width), the dtype of data"
    height: int = option(1, "Output height for the mode size.", low=1, high=10000)
    width: int = option(1, "Output width for the mode size.", low=1, high=10000)
    scale_height: float | None = option(None, "Output height as a multiple of the input's.")
    scale_width: float | None = option(None, "Output width as a multiple of the input's.")
    mode: Literal["size", "odd_scale", "like", "to_even_down", "to_even_up", "to_odd_down", "to_odd_up"] = option(
        "size", "The rule for the output's size."
    )
    align_corners: bool = option(True, "Lay the corners' centres on each other, not their outer edges.")

    def __post_init__(self) -> None:
        if self.mode == "odd_scale" and (self.scale_height is None or self.scale_width is None):
            raise ParameterError(f"{self.name}: mode 'odd_scale' needs scale_height and scale_width")

    def inputs(self) -> tuple[str, ...]:
        return self.arguments if self.mode == "like" else self.arguments[:1]

    def _length(self, length: int, size: int, scale: float | None) -> int:
        """An output length."""
        if self.mode == "size" and scale is None:
            return size
        if length == -1:
            return -1
        if self.mode in ("size", "odd_scale"):
            odd = self.mode == "odd_scale" and length % 2
            return int(np.float32(scale) * np.float32(length - 1 if odd else length)) + (1 if odd else 0)
        wanted = 0 if "even" in self.mode else 1
        if length % 2 == wanted:
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
            raise ShapeError(f"{self.name}: input data has shape {data}, which would be resized to {size}")
        return shapes, [(*data[:2], *size)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        sizes = zip(outputs[0].shape[2:], inputs[0].shape[2:], strict=True)
        matrices = [interpolation(made, length, self.align_corners) for made, length in sizes]
        resample(run, matrices, inputs[0], outputs[0])

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
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
        matrices = [interpolation(made, length, self.align_corners).T for made, length in sizes]
        resample(run, matrices, inputs[0], outputs[0])

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        height, width = shape_of(inputs, 0).shape[2:]
        again = F.op(
            "_contrib_BilinearResize2D", heads[0], height=height, width=width, align_corners=self.align_corners
        )
        return [again, None]


@linear("_contrib_AdaptiveAvgPooling2D")
class AdaptiveAvgPooling2D(Linear, batch_wise=BatchWise.FIRST):
    """Average over as many windows as are asked for, whatever the input's size.

    Shapes: data (batch, channels, height, width), output (batch, channels, *output_size).
    """

    input_docs = described(data="(batch, channels, height, width), float")
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
        matrices = list(map(averaging, outputs[0].shape[2:], inputs[0].shape[2:]))
        resample(run, matrices, inputs[0], outputs[0])

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        matrices = [matrix.T for matrix in map(averaging, head.shape[2:], out.shape[2:])]
        resample(run, matrices, head, out)
