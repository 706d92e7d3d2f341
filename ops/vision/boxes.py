"""Bounding boxes: coordinates, overlap, matching.

A box is [left, top, right, bottom] (``corner``) or [center x, center y, width, height] (``center``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred, shape_of
from flowmx.ops.nn.common import computing_dtype, expect_rank
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, describe, operator, option, required
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Precision

Format = Literal["corner", "center"]
FORMAT_DOC = "The coordinates of boxes: corners, or centre and size."
_ROWS = 256


def merge_leading(array: Array, count: int) -> Array:
    """Merge all axes except the last ``count`` (the merged axis may be empty, so -1 would fail)."""
    shape = array.shape[array.ndim - count :]
    return array.reshape(math.prod(array.shape[: array.ndim - count]), *shape)


def corners(xp: ArrayNamespace, boxes: Array, form: Format) -> tuple[Array, Array]:
    """Return the upper left and lower right corners (..., 2)."""
    first, second = boxes[..., :2], boxes[..., 2:4]
    if form == "corner":
        return first, second
    return first - second / 2, first + second / 2


def area(xp: ArrayNamespace, boxes: Array, form: Format) -> Array:
    """Return the areas (...) of boxes (..., 4); 0 if a side is negative."""
    sides = boxes[..., 2:4] - boxes[..., :2] if form == "corner" else boxes[..., 2:4]
    return xp.where((sides < 0).any(axis=-1), 0, sides.prod(axis=-1))


def overlap(xp: ArrayNamespace, first: Array, second: Array, form: Format) -> Array:
    """Return the intersection over union (m, n) of boxes (m, 4) and boxes (n, 4)."""
    first_low, first_high = corners(xp, first, form)
    second_low, second_high = corners(xp, second, form)
    sides = xp.minimum(first_high[:, None], second_high) - xp.maximum(first_low[:, None], second_low)
    common = xp.maximum(sides, 0).prod(axis=-1)
    union = area(xp, first, form)[:, None] + area(xp, second, form) - common
    return xp.where(common > 0, common / xp.where(common > 0, union, 1), 0)


@operator("_contrib_box_iou")
class BoxIoU(Operator, precision=Precision.WIDEST):
    """Intersection over union of all pairs of boxes. The gradient is 0, as in MXNet.

    Shapes: lhs (*left, 4), rhs (*right, 4), output (*left, *right).
    """

    arguments = ("lhs", "rhs")
    input_docs = describe(
        lhs="(*left, 4), float",
        rhs="(*right, 4), the dtype of lhs",
    )
    output_doc = "(*left, *right), the dtype of lhs"
    format: Format = option("corner", FORMAT_DOC)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        for name, shape in zip(self.arguments, shapes, strict=True):
            expect_rank(self, name, shape, 1)
            if shape is not None and shape[-1] not in (-1, 4):
                raise ShapeError(f"{self.name}: input {name} has shape {shape}, expected 4 numbers per box")
        lhs, rhs = shapes
        return shapes, [None if lhs is None or rhs is None else (*lhs[:-1], *rhs[:-1])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        dtype = computing_dtype(outputs[0].dtype)
        first, second = (merge_leading(boxes, 1).astype(dtype, copy=False) for boxes in inputs)
        ious = outputs[0].reshape(len(first), len(second))
        for start in range(0, len(first), _ROWS):
            ious[start : start + _ROWS] = overlap(run.xp, first[start : start + _ROWS], second, self.format)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.zeros_like(shape_of(inputs, position)) for position in range(2)]


@operator("_contrib_bipartite_matching")
class BipartiteMatching(Operator):
    """Match rows and columns of a score matrix one to one, the best scores first.

    Shapes: data (..., rows, columns); outputs: each row's column (..., rows) and each column's row
    (..., columns), -1 if unmatched. The gradient is 0, as in MXNet.
    """

    input_docs = describe(data="(..., rows, columns), float; scores")
    output_doc = "Each row's column (..., rows) and each column's row (..., columns), the dtype of data"
    output_names = ("output0", "output1")
    is_ascend: bool = option(False, "Smaller scores are better.")
    threshold: float = required("Scores must be above it, or below it with is_ascend.")
    topk: int = option(-1, "The number of matches minus one, as in MXNet; below 1: no limit.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        expect_rank(self, "data", data, 2)
        return shapes, [None, None] if data is None else [data[:-1], (*data[:-2], data[-1])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, data = run.xp, inputs[0]
        rows, columns = data.shape[-2:]
        if not data.size:
            outputs[0].fill(-1)
            outputs[1].fill(-1)
            return
        sign = -1 if self.is_ascend else 1
        scores = (merge_leading(data, 2) * sign).astype(computing_dtype(data.dtype))
        row_of, column_of = merge_leading(outputs[1], 1), merge_leading(outputs[0], 1)
        row_of[...] = column_of[...] = -1
        batch = xp.arange(len(scores))
        count = min(rows, columns)
        for _ in range(min(count, self.topk + 1) if self.topk > 0 else count):
            row, column = xp.divmod(scores.reshape(len(scores), -1).argmax(axis=1), columns)
            # One match per sample and iteration, for samples with remaining scores.
            good = scores[batch, row, column] > sign * self.threshold
            batch, row, column, scores = batch[good], row[good], column[good], scores[good]
            if not len(batch):
                return
            column_of[batch, row], row_of[batch, column] = column, row
            batch_here = xp.arange(len(scores))
            scores[batch_here, row], scores[batch_here, :, column] = -xp.inf, -xp.inf

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.zeros_like(shape_of(inputs, 0))]
