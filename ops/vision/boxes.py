"""Bounding boxes: overlap, non-maximum suppression, matching.

A box is [left, top, right, bottom] (``corner``) or [x, y, width, height] of its centre (``center``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred, InferredTypes, shape_of
from flowmx.ops.nn.common import computing_dtype, expect_rank
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, described, operator, option, required
from flowmx.ops.registry.traits import Precision
from flowmx.ops.vision.suppression import Boxes, Rule, left_of

Format = Literal["corner", "center"]
_FORMAT = "The coordinates of boxes: corners, or centre and size."
_ROWS = 256


def _flat(array: Array, kept: int) -> Array:
    """The array with all axes but the last ``kept`` made one (which may be empty, so that -1 would not do)."""
    shape = array.shape[array.ndim - kept :]
    return array.reshape(math.prod(array.shape[: array.ndim - kept]), *shape)


def _corners(xp: Any, boxes: Array, form: Format) -> tuple[Array, Array]:
    """The upper left and the lower right corners (..., 2)."""
    first, second = boxes[..., :2], boxes[..., 2:4]
    if form == "corner":
        return first, second
    return first - second / 2, first + second / 2


def area(xp: Any, boxes: Array, form: Format) -> Array:
    """The areas (...) of boxes (..., 4); 0 where a side is below 0."""
    sides = boxes[..., 2:4] - boxes[..., :2] if form == "corner" else boxes[..., 2:4]
    return xp.where((sides < 0).any(axis=-1), 0, sides.prod(axis=-1))


def overlap(xp: Any, one: Array, other: Array, form: Format) -> Array:
    """Intersection over union of each box (m, 4) with each other one (n, 4): (m, n)."""
    low, high = _corners(xp, one, form)
    other_low, other_high = _corners(xp, other, form)
    sides = xp.minimum(high[:, None], other_high) - xp.maximum(low[:, None], other_low)
    common = xp.maximum(sides, 0).prod(axis=-1)
    union = area(xp, one, form)[:, None] + area(xp, other, form) - common
    return xp.where(common > 0, common / xp.where(common > 0, union, 1), 0)


@operator("_contrib_box_iou")
class BoxIoU(Operator, precision=Precision.WIDEST):
    """Intersection over union of all pairs of boxes. No gradient flows: it is 0, as in MXNet.

    Shapes: lhs (*left, 4), rhs (*right, 4), output (*left, *right).
    """

    arguments = ("lhs", "rhs")
    input_docs = described(
        lhs="(*left, 4), float",
        rhs="(*right, 4), the dtype of lhs",
    )
    output_doc = "(*left, *right), the dtype of lhs"
    format: Format = option("corner", _FORMAT)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        for name, shape in zip(self.arguments, shapes, strict=True):
            expect_rank(self, name, shape, 1)
            if shape is not None and shape[-1] not in (-1, 4):
                raise ShapeError(f"{self.name}: input {name} has shape {shape}, expected 4 numbers a box")
        lhs, rhs = shapes
        return shapes, [None if lhs is None or rhs is None else (*lhs[:-1], *rhs[:-1])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        dtype = computing_dtype(outputs[0].dtype)
        one, other = (_flat(each, 1).astype(dtype, copy=False) for each in inputs)
        made = outputs[0].reshape(len(one), len(other))
        for start in range(0, len(one), _ROWS):
            made[start : start + _ROWS] = overlap(run.xp, one[start : start + _ROWS], other, self.format)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.zeros_like(shape_of(inputs, position)) for position in range(2)]


# -- non-maximum suppression -------------------------------------------------------------------------------


@operator("_contrib_box_nms", "_contrib_box_non_maximum_suppression")
class BoxNMS(Operator, precision=Precision.WIDEST):
    """Non-maximum suppression: of boxes that overlap by more than a threshold, keep the one with the best score.

    Shapes: data and output (..., boxes, numbers); a box has its score, 4 coordinates and possibly a class at the
    given positions, and anything else. The output holds the boxes that are left by falling score, then rows of
    -1. Boxes of different classes (``id_index``) do not count as overlapping unless ``force_suppress``. The
    gradient of a box that is left goes back to where it came from.
    """

    input_docs = described(data="(..., boxes, numbers), float")
    output_doc = "The shape and dtype of data"
    output_names = ("output0", "origin")
    outputs_visible = 1
    overlap_thresh: float = option(0.5, "Overlap above which the box with the lower score is dropped.")
    valid_thresh: float = option(0.0, "Boxes with a score up to this are dropped.")
    topk: int = option(-1, "The number of best boxes to consider; below 0 all, 0 none (the output is the input).")
    coord_start: int = option(2, "Position of the 4 coordinates.", low=0)
    score_index: int = option(1, "Position of the score.", low=0)
    id_index: int = option(-1, "Position of the class; below 0 for none.")
    background_id: int = option(-1, "The class whose boxes are dropped.")
    force_suppress: bool = option(False, "Compare boxes of different classes too.")
    in_format: Format = option("corner", _FORMAT)
    out_format: Format = option(
        "corner", "The coordinates of boxes in the output, for those whose left is not below 0."
    )

    def __post_init__(self) -> None:
        coordinates = range(self.coord_start, self.coord_start + 4)
        taken = {"score_index": self.score_index, "id_index": self.id_index}
        for name, place in taken.items():
            if place in coordinates:
                raise ParameterError(f"{self.name}: {name} is {place}, one of the coordinates {list(coordinates)}")
        if self.id_index == self.score_index:
            raise ParameterError(f"{self.name}: id_index is {self.id_index}, as score_index is")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        expect_rank(self, "data", data, 2)
        least = max(self.coord_start + 4, self.score_index + 1, self.id_index + 1)
        if data is not None and -1 < data[-1] < least:
            raise ShapeError(f"{self.name}: input data has shape {data}, expected at least {least} numbers a box")
        return shapes, [data, None if data is None else data[:-1]]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0], np.dtype(np.int64)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (out, origin) = run.xp, outputs
        data, made, places = _flat(inputs[0], 2), _flat(out, 2), _flat(origin, 1)
        if self.topk == 0 or not out.size:
            made[...] = data
            places[...] = xp.arange(places.shape[1])
            return
        boxes, order = self._by_score(xp, data.astype(computing_dtype(data.dtype), copy=False))
        left = left_of(run, boxes, Rule(self.overlap_thresh))
        made[...] = places[...] = -1
        # The boxes that are left move up to the front.
        example, from_ = xp.nonzero(left)
        to = (xp.cumsum(left, axis=1) - 1)[example, from_]
        source = order[example, from_]
        made[example, to], places[example, to] = data[example, source], source
        self._reformat(xp, made[..., self.coord_start : self.coord_start + 4])

    def _by_score(self, xp: Any, data: Array) -> tuple[Boxes, Array]:
        """The boxes of each example that count, by falling score, and where each of them is."""
        scores = data[..., self.score_index]
        valid = scores > self.valid_thresh
        if self.id_index >= 0:
            valid &= data[..., self.id_index] != self.background_id
        order = xp.argsort(xp.where(valid, -scores, xp.inf), axis=1, kind="stable")
        counts = valid.sum(axis=1)
        if self.topk > 0:
            order, counts = order[:, : self.topk], xp.minimum(counts, self.topk)
        order = order[:, : int(counts.max())]
        places = xp.take_along_axis(data[..., self.coord_start : self.coord_start + 4], order[..., None], axis=1)
        kinds = None
        if self.id_index >= 0 and not self.force_suppress:
            kinds = xp.take_along_axis(data[..., self.id_index], order, axis=1).astype(xp.int64)
        low, high = _corners(xp, places, self.in_format)
        return Boxes(low, high, area(xp, places, self.in_format), kinds, counts), order

    def _reformat(self, xp: Any, boxes: Array) -> None:
        """Bring boxes into the output's format, in place; those with a negative first number stay, as in MXNet."""
        if self.in_format == self.out_format:
            return
        low, high = _corners(xp, boxes, self.in_format)
        new = (low, high) if self.out_format == "corner" else ((low + high) / 2, high - low)
        xp.copyto(boxes, xp.concatenate(new, axis=-1), where=boxes[..., :1] >= 0, casting="unsafe")

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.op("_backward_contrib_box_nms", heads[0], outputs[1])]


@operator("_backward_contrib_box_nms")
class BackwardBoxNMS(Operator, hidden=True):
    """Gradient of box_nms: each row goes back to where it came from."""

    arguments = ("head", "origin")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[0]]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (head, origin), out = run.xp, inputs, outputs[0]
        out.fill(0)
        flat, sources = _flat(head, 2), _flat(origin, 1)
        rows, places = xp.nonzero(sources >= 0)
        out.reshape(flat.shape)[rows, sources[rows, places]] = flat[rows, places]

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.op("_kept_by_box_nms", heads[0], inputs[1]), None]


@operator("_kept_by_box_nms")
class KeptByBoxNMS(BackwardBoxNMS):
    """The rows that box_nms kept, of other data; zeros for those that it did not."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (data, origin), out = run.xp, inputs, outputs[0]
        out.fill(0)
        flat, sources = _flat(data, 2), _flat(origin, 1)
        rows, places = xp.nonzero(sources >= 0)
        out.reshape(flat.shape)[rows, places] = flat[rows, sources[rows, places]]

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.op("_backward_contrib_box_nms", heads[0], inputs[1]), None]


# -- matching ----------------------------------------------------------------------------------------------


@operator("_contrib_bipartite_matching")
class BipartiteMatching(Operator):
    """Match rows and columns of a score matrix one to one, the best scores first.

    Shapes: data (..., rows, columns); outputs: each row's column (..., rows) and each column's row
    (..., columns), -1 where there is none. No gradient flows: it is 0, as in MXNet.
    """

    input_docs = described(data="(..., rows, columns), float; scores")
    output_doc = "Each row's column (..., rows) and each column's row (..., columns), the dtype of data"
    output_names = ("output0", "output1")
    is_ascend: bool = option(False, "The smallest scores are the best.")
    threshold: float = required("Scores must be above it, or below with is_ascend.")
    topk: int = option(-1, "MXNet makes one match more than this; below 1 there is no limit.")

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
        scores = (_flat(data, 2) * sign).astype(computing_dtype(data.dtype))
        row_of, column_of = _flat(outputs[1], 1), _flat(outputs[0], 1)
        row_of[...] = column_of[...] = -1
        batch = xp.arange(len(scores))
        count = min(rows, columns)
        for _ in range(min(count, self.topk + 1) if self.topk > 0 else count):
            row, column = xp.divmod(scores.reshape(len(scores), -1).argmax(axis=1), columns)
            # One match an example and turn, for those examples that have a score left.
            good = scores[batch, row, column] > sign * self.threshold
            batch, row, column, scores = batch[good], row[good], column[good], scores[good]
            if not len(batch):
                return
            column_of[batch, row], row_of[batch, column] = column, row
            batch_here = xp.arange(len(scores))
            scores[batch_here, row], scores[batch_here, :, column] = -xp.inf, -xp.inf

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.zeros_like(shape_of(inputs, 0))]
