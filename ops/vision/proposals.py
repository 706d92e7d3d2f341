"""Regions that a network proposes: the best of its boxes that do not overlap (Ren et al., "Faster R-CNN", 2015).

Boxes are [left, top, right, bottom] in the picture's pixels, both ends included, so that a side is one more than their
difference. The picture's anchors are those of its first place, moved by the stride.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.errors import DataError, ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred
from flowmx.ops.nn.common import computing_dtype, expect_rank, expect_shape
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, described, operator, option
from flowmx.ops.registry.traits import Precision
from flowmx.ops.vision.suppression import Boxes, Rule, left_of

_REFUSED = -1.0
"""The score of boxes that are too small or lie beyond the picture; they come last."""


@operator("_contrib_MultiProposal")
class MultiProposal(Operator, no_gradient=True, precision=Precision.WIDEST):
    """The proposals of each picture: the best of the boxes that a network makes of anchors and that do not overlap.

    Shapes: cls_prob (batch, 2·anchors, height, width), those of the background first; bbox_pred (batch, 4·anchors,
    height, width); im_info (batch, 3): height, width and scale of each picture; output (batch·rpn_post_nms_top_n, 5):
    the number of the picture, then the box, cut off at its borders. Where fewer are left, they come again. With
    ``output_score`` their scores are a second output (batch·rpn_post_nms_top_n, 1).
    """

    arguments = ("cls_prob", "bbox_pred", "im_info")
    input_docs = described(
        cls_prob="(batch, 2·anchors, height, width), float; one anchor for each ratio and scale",
        bbox_pred="(batch, 4·anchors, height, width), the dtype of cls_prob",
        im_info="(batch, 3), the dtype of cls_prob; height, width, scale",
    )
    output_doc = "(batch·rpn_post_nms_top_n, 5), and the scores with output_score; the dtype of cls_prob"
    outputs_counted = 2
    rpn_pre_nms_top_n: int = option(6000, "The number of best boxes to consider; all where it is not above 0.")
    rpn_post_nms_top_n: int = option(300, "The number of boxes to return.", low=1)
    threshold: float = option(0.7, "Overlap above which the box with the lower score is dropped.")
    rpn_min_size: int = option(16, "Least height and width of a box, before scaling; smaller ones come last.")
    scales: tuple[float, ...] = option((4.0, 8.0, 16.0, 32.0), "Sizes of anchors, in strides.")
    ratios: tuple[float, ...] = option((0.5, 1.0, 2.0), "Height of anchors by their width.")
    feature_stride: int = option(16, "Pixels of the picture between places of the feature map.", low=1)
    output_score: bool = option(False, "Return the scores too.")
    iou_loss: bool = option(False, "The network predicts how far the sides move, rather than centre and size.")

    def __post_init__(self) -> None:
        if not self.scales or not self.ratios:
            raise ParameterError(
                f"{self.name}: scales {self.scales} and ratios {self.ratios}, expected one of each at least"
            )

    def outputs(self) -> tuple[str, ...]:
        return ("output", "score") if self.output_score else ("output",)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        scores, boxes, info = shapes
        anchors = len(self.scales) * len(self.ratios)
        expect_rank(self, "cls_prob", scores, 4, 4)
        batch, channels, *size = scores or (-1,) * 4
        if channels not in (-1, 2 * anchors):
            raise ShapeError(
                f"{self.name}: input cls_prob has {channels} channels, expected {2 * anchors}: two for each of "
                f"{len(self.ratios)} ratios and {len(self.scales)} scales"
            )
        boxes = expect_shape(self, "bbox_pred", boxes, (batch, 4 * anchors, *size))
        info = expect_shape(self, "im_info", info, (batch, 3))
        count = -1 if batch == -1 else batch * self.rpn_post_nms_top_n
        outputs: list[ShapeOrNone] = [(count, 5), (count, 1)]
        return [scores, boxes, info], outputs[: len(self.outputs())]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, dtype, most = run.xp, computing_dtype(inputs[0].dtype), self.rpn_post_nms_top_n
        scores, boxes, info = (each.astype(dtype, copy=False) for each in inputs)
        anchors = self.anchors(xp, dtype, scores.shape[2:])
        for image in range(len(scores)):
            found, its_scores = self.boxes(xp, anchors, scores[image], boxes[image], info[image])
            order = xp.argsort(-its_scores, kind="stable")
            order = order[: self.rpn_pre_nms_top_n] if self.rpn_pre_nms_top_n > 0 else order
            left = xp.resize(order[self.kept(run, found[order])], most)
            rows = slice(image * most, (image + 1) * most)
            outputs[0][rows, 0], outputs[0][rows, 1:] = image, found[left]
            if self.output_score:
                outputs[1][rows, 0] = its_scores[left]

    def anchors(self, xp: Any, dtype: Any, size: Shape) -> Array:
        """The anchors of each place (height, width, anchors, 4)."""
        ratios, scales = (xp.asarray(each, dtype) for each in (self.ratios, self.scales))
        # Rounded to whole pixels before they are scaled.
        width = xp.floor(xp.sqrt(xp.floor(self.feature_stride**2 / ratios)) + dtype.type(0.5))[:, None] * scales
        height = xp.floor(width / scales * ratios[:, None] + dtype.type(0.5)) * scales
        half = xp.stack([width, height], axis=-1).reshape(-1, 2) / 2 - dtype.type(0.5)
        center = dtype.type((self.feature_stride - 1) / 2)
        first = xp.concatenate([center - half, center + half], axis=-1)
        y, x = (xp.arange(length, dtype=dtype) * self.feature_stride for length in size)
        moved = xp.stack(xp.broadcast_arrays(x, y[:, None], x, y[:, None]), axis=-1)
        return first + moved[:, :, None]

    def boxes(self, xp: Any, anchors: Array, scores: Array, offsets: Array, info: Array) -> tuple[Array, Array]:
        """The boxes of a picture (height·width·anchors, 4) and their scores.

        Raises:
            ValueError: the picture is larger than the feature map.
        """
        height, width, count = anchors.shape[:3]
        rows, columns = (int(length / self.feature_stride) for length in info[:2])
        if rows > height or columns > width:
            raise DataError(
                f"{self.name}: im_info says that a picture has {float(info[0]):g} × {float(info[1]):g} pixels, but the "
                f"feature map has {height} × {width} places, {self.feature_stride} pixels apart"
            )
        offsets = offsets.reshape(count, 4, height, width).transpose(2, 3, 0, 1)
        found = anchors + offsets if self.iou_loss else _moved(xp, anchors, offsets)
        found = xp.clip(found, 0, xp.stack([info[1], info[0], info[1], info[0]]) - 1)
        scores = scores[count:].transpose(1, 2, 0).copy()
        scores[rows:], scores[:, columns:] = _REFUSED, _REFUSED
        least = self.rpn_min_size * info[2]
        small = (found[..., 2:] - found[..., :2] + 1 < least).any(axis=-1)
        wider = xp.stack([-least, -least, least, least]) / 2
        found = found + xp.where(small[..., None], wider, 0)
        return found.reshape(-1, 4), xp.where(small, _REFUSED, scores).reshape(-1)

    def kept(self, run: Run, places: Array) -> Array:
        """The positions of the boxes that no better one drops, of boxes by falling score."""
        xp, low, high = run.xp, places[None, :, :2], places[None, :, 2:]
        boxes = Boxes(low, high, (high - low + 1).prod(axis=-1), None, xp.full(1, len(places), xp.int64))
        rule = Rule(self.threshold, margin=1, most=self.rpn_post_nms_top_n)
        kept: Array = xp.nonzero(left_of(run, boxes, rule)[0])[0]
        return kept


def _moved(xp: Any, anchors: Array, offsets: Array) -> Array:
    """The boxes (..., 4) at these offsets from anchors: of the centre, by the sides, and of the sides' logarithms."""
    sides = anchors[..., 2:] - anchors[..., :2] + 1
    center = offsets[..., :2] * sides + (anchors[..., :2] + (sides - 1) / 2)
    half = (xp.exp(offsets[..., 2:]) * sides - 1) / 2
    return xp.concatenate([center - half, center + half], axis=-1)


@operator("_contrib_Proposal")
class Proposal(MultiProposal):
    """The proposals of one picture: the best of the boxes that a network makes of anchors and that do not overlap.

    As MultiProposal, with a batch of one.
    """

    output_doc = "(rpn_post_nms_top_n, 5), and the scores with output_score; the dtype of cls_prob"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        for name, shape in zip(self.arguments, shapes, strict=True):
            if shape and shape[0] not in (-1, 1):
                raise ShapeError(f"{self.name}: input {name} has a batch of {shape[0]}, expected 1; take MultiProposal")
        first = None if shapes[0] is None else (1, *shapes[0][1:])
        return super().infer_shape([first, *shapes[1:]])
