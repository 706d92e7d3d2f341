"""box_nms: non-maximum suppression of boxes by score, class and overlap, and its gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.nn.common import computing_dtype, expect_rank
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, describe, operator, option
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Precision
from flowmx.ops.vision.boxes import FORMAT_DOC, Format, area, corners, merge_leading
from flowmx.ops.vision.suppression import Boxes, Rule, keep_mask


@operator("_contrib_box_nms", "_contrib_box_non_maximum_suppression")
class BoxNMS(Operator, precision=Precision.WIDEST):
    """Non-maximum suppression: of boxes that overlap by more than a threshold, keep the one with the best score.

    Shapes: data and output (..., boxes, numbers). A box has its score, 4 coordinates and optionally a class at the
    given positions, and any other numbers. The output holds the remaining boxes by descending score, then rows of
    -1. Boxes of different classes (``id_index``) do not suppress each other unless ``force_suppress`` is set. The
    gradient of a remaining box is that of its input row.
    """

    input_docs = describe(data="(..., boxes, numbers), float")
    output_doc = "The shape and dtype of data"
    output_names = ("output0", "origin")
    outputs_visible = 1
    overlap_thresh: float = option(0.5, "Overlap above which the box with the lower score is dropped.")
    valid_thresh: float = option(0.0, "Boxes with at most this score are dropped.")
    topk: int = option(-1, "The number of best boxes to consider; below 0: all; 0: none (the output is the input).")
    coord_start: int = option(2, "Position of the 4 coordinates.", low=0)
    score_index: int = option(1, "Position of the score.", low=0)
    id_index: int = option(-1, "Position of the class; below 0 for none.")
    background_id: int = option(-1, "The class whose boxes are dropped.")
    force_suppress: bool = option(False, "Compare boxes of different classes too.")
    in_format: Format = option("corner", FORMAT_DOC)
    out_format: Format = option("corner", "The coordinates of boxes in the output, except boxes with a negative left.")

    def __post_init__(self) -> None:
        coordinates = range(self.coord_start, self.coord_start + 4)
        indices = {"score_index": self.score_index, "id_index": self.id_index}
        for name, place in indices.items():
            if place in coordinates:
                raise ParameterError(f"{self.name}: {name} is {place}, one of the coordinates {list(coordinates)}")
        if self.id_index == self.score_index:
            raise ParameterError(f"{self.name}: id_index is {self.id_index}, the same as score_index")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        expect_rank(self, "data", data, 2)
        least = max(self.coord_start + 4, self.score_index + 1, self.id_index + 1)
        if data is not None and -1 < data[-1] < least:
            raise ShapeError(f"{self.name}: input data has shape {data}, expected at least {least} numbers per box")
        return shapes, [data, None if data is None else data[:-1]]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0], np.dtype(np.int64)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (out, origin) = run.xp, outputs
        data, result, places = merge_leading(inputs[0], 2), merge_leading(out, 2), merge_leading(origin, 1)
        if self.topk == 0 or not out.size:
            result[...] = data
            places[...] = xp.arange(places.shape[1])
            return
        boxes, order = self._sort_by_score(xp, data.astype(computing_dtype(data.dtype), copy=False))
        is_kept = keep_mask(run, boxes, Rule(self.overlap_thresh))
        result[...] = places[...] = -1
        # Move the remaining boxes to the front.
        example, from_ = xp.nonzero(is_kept)
        to = (xp.cumsum(is_kept, axis=1) - 1)[example, from_]
        source = order[example, from_]
        result[example, to], places[example, to] = data[example, source], source
        self._reformat(xp, result[..., self.coord_start : self.coord_start + 4])

    def _sort_by_score(self, xp: ArrayNamespace, data: Array) -> tuple[Boxes, Array]:
        """Return the candidate boxes of each sample by descending score, and their positions."""
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
            kinds = xp.take_along_axis(data[..., self.id_index], order, axis=1).astype(np.int64)
        low, high = corners(xp, places, self.in_format)
        return Boxes(low, high, area(xp, places, self.in_format), kinds, counts), order

    def _reformat(self, xp: ArrayNamespace, boxes: Array) -> None:
        """Convert boxes to the output's format, in place; boxes with a negative first number stay, as in MXNet."""
        if self.in_format == self.out_format:
            return
        low, high = corners(xp, boxes, self.in_format)
        new = (low, high) if self.out_format == "corner" else ((low + high) / 2, high - low)
        xp.copyto(boxes, xp.concatenate(new, axis=-1), where=boxes[..., :1] >= 0, casting="unsafe")

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_backward_contrib_box_nms", heads[0], outputs[1])]


@operator("_backward_contrib_box_nms")
class BackwardBoxNMS(Operator, hidden=True):
    """Gradient of box_nms: each row is scattered to its input row."""

    arguments = ("head", "origin")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [shapes[0]]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (head, origin), out = run.xp, inputs, outputs[0]
        out.fill(0)
        flat, sources = merge_leading(head, 2), merge_leading(origin, 1)
        rows, places = xp.nonzero(sources >= 0)
        out.reshape(flat.shape)[rows, sources[rows, places]] = flat[rows, places]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_kept_by_box_nms", heads[0], inputs[1]), None]


@operator("_kept_by_box_nms")
class KeptByBoxNMS(BackwardBoxNMS):
    """Rows of other data at the positions that box_nms kept; zeros elsewhere."""

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (data, origin), out = run.xp, inputs, outputs[0]
        out.fill(0)
        flat, sources = merge_leading(data, 2), merge_leading(origin, 1)
        rows, places = xp.nonzero(sources >= 0)
        out.reshape(flat.shape)[rows, places] = flat[rows, sources[rows, places]]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_backward_contrib_box_nms", heads[0], inputs[1]), None]
