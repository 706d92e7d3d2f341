"""PyTorch's code of operators of object detection: calls of functions that are copied into the file."""

from __future__ import annotations

from flowmx.source_code.description import Unsupported
from flowmx.source_code.reading import Code, Row, Site

__all__ = ["ROWS"]


def _anchors(n: Site) -> Code:
    op = n.op
    values = ", ".join(repr(tuple(map(float, each))) for each in (op.sizes, op.ratios, op.steps, op.offsets))
    return Code(f"box_anchors({{0}}, {values}, {op.clip})", helpers=("box_anchors",))


def _detection(n: Site) -> Code:
    op = n.op
    options = (
        op.clip, float(op.threshold), float(op.nms_threshold), op.force_suppress, tuple(map(float, op.variances)),
        op.nms_topk,
    )  # fmt: skip
    return Code(f"detect_boxes({{0}}, {{1}}, {{2}}, {', '.join(map(repr, options))})", helpers=("detect_boxes",))


def _suppression(n: Site) -> Code | str:
    op = n.op
    if op.topk == 0:
        return "{0}"
    if (op.in_format, op.out_format) != ("corner", "corner"):
        raise Unsupported(f"its formats are {op.in_format!r} and {op.out_format!r}, expected 'corner'")
    options = (
        float(op.overlap_thresh), float(op.valid_thresh), op.topk, op.coord_start, op.score_index, op.id_index,
        op.background_id, op.force_suppress,
    )  # fmt: skip
    return Code(f"box_nms({{0}}, {', '.join(map(repr, options))})", helpers=("box_nms",))


ROWS: dict[str, Row] = {
    "_contrib_MultiBoxPrior": _anchors,
    "_contrib_MultiBoxDetection": _detection,
    "_contrib_box_nms": _suppression,
}
"""Object detection."""
