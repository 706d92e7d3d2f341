"""Region proposals: the best boxes of a network after suppression (Ren et al., "Faster R-CNN", 2015).

Boxes are [left, top, right, bottom] in pixels, both ends included, so a side is their difference plus one. The anchors
of an image are those of its first position, shifted by the stride.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx.errors import DataError, ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred
from flowmx.ops.nn.common import computing_dtype, expect_rank, expect_shape
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, describe, operator, option
from flowmx.ops.registry.tensors import ArrayNamespace
from flowmx.ops.registry.traits import Precision
from flowmx.ops.vision.suppression import Boxes, Rule, keep_mask

_REFUSED = -1.0
"""The score of boxes that are too small or outside the image; they come last."""


@operator("_contrib_MultiProposal")
class MultiProposal(Operator, no_gradient=True, precision=Precision.WIDEST):
    """The region proposals of each image: the best predicted boxes that do not overlap.

    Shapes: cls_prob (batch, 2·anchors, height, width), background first; bbox_pred (batch, 4·anchors, height, width);
    im_info (batch, 3): height, width and scale of each image; output (batch·rpn_post_nms_top_n, 5): the number of
    the image, then the box, clipped to the image. If fewer boxes remain, they repeat. With ``output_score`` the
    scores are a second output (batch·rpn_post_nms_top_n, 1).
    """

    arguments = ("cls_prob", "bbox_pred", "im_info")
    input_docs = describe(
        cls_prob="(batch, 2·anchors, height, width), float; one anchor per ratio and scale",
        bbox_pred="(batch, 4·anchors, height, width), the dtype of cls_prob",
        im_info="(batch, 3), the dtype of cls_prob; height, width, scale",
    )
    output_doc = "(batch·rpn_post_nms_top_n, 5), and the scores with output_score; the dtype of cls_prob"
    json_outputs = 2
    rpn_pre_nms_top_n: int = option(6000, "The number of best boxes to consider; 0 or below: all.")
    rpn_post_nms_top_n: int = option(300, "The number of boxes to return.", low=1)
    threshold: float = option(0.7, "Overlap above which the box with the lower score is dropped.")
    rpn_min_size: int = option(16, "Minimum height and width of a box, before scaling; smaller boxes come last.")
    scales: tuple[float, ...] = option((4.0, 8.0, 16.0, 32.0), "Sizes of anchors, in strides.")
    ratios: tuple[float, ...] = option((0.5, 1.0, 2.0), "Height of anchors by their width.")
    feature_stride: int = option(16, "Pixels between positions of the feature map.", low=1)
    output_score: bool = option(False, "Return the scores too.")
    iou_loss: bool = option(False, "The network predicts displacements of the sides instead of centre and size.")

    def __post_init__(self) -> None:
        if not self.scales or not self.ratios:
            raise ParameterError(
                f"{self.name}: scales {self.scales} and ratios {self.ratios}, expected at least one of each"
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
        xp, dtype, count = run.xp, computing_dtype(inputs[0].dtype), self.rpn_post_nms_top_n
        scores, boxes, info = (array.astype(dtype, copy=False) for array in inputs)
        anchors = self.anchors(xp, dtype, scores.shape[2:])
        for image in range(len(scores)):
            candidates, candidate_scores = self.boxes(xp, anchors, scores[image], boxes[image], info[image])
            order = xp.argsort(-candidate_scores, kind="stable")
            order = order[: self.rpn_pre_nms_top_n] if self.rpn_pre_nms_top_n > 0 else order
            positions = xp.resize(order[self.survivors(run, candidates[order])], count)
            rows = slice(image * count, (image + 1) * count)
            outputs[0][rows, 0], outputs[0][rows, 1:] = image, candidates[positions]
            if self.output_score:
                outputs[1][rows, 0] = candidate_scores[positions]

    def anchors(self, xp: ArrayNamespace, dtype: Any, size: Shape) -> Array:
        """Return the anchors of each position (height, width, anchors, 4)."""
        ratios, scales = (xp.asarray(values, dtype) for values in (self.ratios, self.scales))
        # MXNet rounds to whole pixels before scaling.
        width = xp.floor(xp.sqrt(xp.floor(self.feature_stride**2 / ratios)) + dtype.type(0.5))[:, None] * scales
        height = xp.floor(width / scales * ratios[:, None] + dtype.type(0.5)) * scales
        half = xp.stack([width, height], axis=-1).reshape(-1, 2) / 2 - dtype.type(0.5)
        center = dtype.type((self.feature_stride - 1) / 2)
        first = xp.concatenate([center - half, center + half], axis=-1)
        y, x = (xp.arange(length, dtype=dtype) * self.feature_stride for length in size)
        shifts = xp.stack(xp.broadcast_arrays(x, y[:, None], x, y[:, None]), axis=-1)
        return first + shifts[:, :, None]

    def boxes(
        self, xp: ArrayNamespace, anchors: Array, scores: Array, offsets: Array, info: Array
    ) -> tuple[Array, Array]:
        """Return the boxes of an image (height·width·anchors, 4) and their scores.

        Raises:
            ValueError: the image is larger than the feature map.
        """
        height, width, count = anchors.shape[:3]
        rows, columns = (int(length / self.feature_stride) for length in info[:2])
        if rows > height or columns > width:
            raise DataError(
                f"{self.name}: im_info gives an image of {float(info[0]):g} × {float(info[1]):g} pixels, but the "
                f"feature map has {height} × {width} positions, {self.feature_stride} pixels apart"
            )
        offsets = offsets.reshape(count, 4, height, width).transpose(2, 3, 0, 1)
        corners = anchors + offsets if self.iou_loss else _apply_offsets(xp, anchors, offsets)
        corners = xp.clip(corners, 0, xp.stack([info[1], info[0], info[1], info[0]]) - 1)
        scores = scores[count:].transpose(1, 2, 0).copy()
        scores[rows:], scores[:, columns:] = _REFUSED, _REFUSED
        min_side = self.rpn_min_size * info[2]
        small = (corners[..., 2:] - corners[..., :2] + 1 < min_side).any(axis=-1)
        wider = xp.stack([-min_side, -min_side, min_side, min_side]) / 2
        corners = corners + xp.where(small[..., None], wider, 0)
        return corners.reshape(-1, 4), xp.where(small, _REFUSED, scores).reshape(-1)

    def survivors(self, run: Run, corners: Array) -> Array:
        """Return the positions of boxes that survive suppression, for boxes by descending score."""
        xp, low, high = run.xp, corners[None, :, :2], corners[None, :, 2:]
        boxes = Boxes(low, high, (high - low + 1).prod(axis=-1), None, xp.full(1, len(corners), np.int64))
        rule = Rule(self.threshold, margin=1, most=self.rpn_post_nms_top_n)
        positions: Array = xp.nonzero(keep_mask(run, boxes, rule)[0])[0]
        return positions


def _apply_offsets(xp: ArrayNamespace, anchors: Array, offsets: Array) -> Array:
    """Return the boxes (..., 4) at these offsets from anchors: centre offsets and log ratios of the sides."""
    sides = anchors[..., 2:] - anchors[..., :2] + 1
    center = offsets[..., :2] * sides + (anchors[..., :2] + (sides - 1) / 2)
    half = (xp.exp(offsets[..., 2:]) * sides - 1) / 2
    return xp.concatenate([center - half, center + half], axis=-1)


@operator("_contrib_Proposal")
class Proposal(MultiProposal):
    """The region proposals of one image: MultiProposal with a batch of one."""

    output_doc = "(rpn_post_nms_top_n, 5), and the scores with output_score; the dtype of cls_prob"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        for name, shape in zip(self.arguments, shapes, strict=True):
            if shape and shape[0] not in (-1, 1):
                raise ShapeError(f"{self.name}: input {name} has a batch of {shape[0]}, expected 1; use MultiProposal")
        first = None if shapes[0] is None else (1, *shapes[0][1:])
        return super().infer_shape([first, *shapes[1:]])
