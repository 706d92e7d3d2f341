"""Anchors of detection networks: positions, training targets, and decoding of predictions.

Boxes are [left, top, right, bottom], as fractions of the image. A network predicts the offset of a box from an anchor:
that of the centre in units of the anchor's sides, and the logarithm of the ratio of the sides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowmx.errors import ParameterError, ShapeError
from flowmx.ops.arrays.linear import Inferred, shape_of
from flowmx.ops.nn.common import computing_dtype
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, describe, operator, option
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Precision
from flowmx.ops.vision.boxes import Format, area, overlap
from flowmx.ops.vision.suppression import Boxes, Rule, keep_mask

_VARIANCES = (0.1, 0.1, 0.2, 0.2)
_MIN_OVERLAP = 1e-6


class _WithoutGradient(Operator):
    """Base of the anchor operators; their gradient is 0, as in MXNet."""

    ranks: tuple[int, ...] = ()
    """The number of axes of each input."""

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.zeros_like(shape_of(inputs, position)) for position in range(len(self.arguments))]

    def _count(self, **counts: int) -> None:
        """Check the number of values of parameters."""
        for name, count in counts.items():
            if len(getattr(self, name)) != count:
                raise ParameterError(f"{self.name}: {name} is {getattr(self, name)}, expected {count} numbers")

    def _check(self, shapes: list[ShapeOrNone]) -> None:
        for name, shape, rank in zip(self.arguments, shapes, self.ranks, strict=True):
            if shape is not None and len(shape) != rank:
                raise ShapeError(f"{self.name}: input {name} has shape {shape}, expected {rank} axes")

    def _agree(self, what: str, *numbers: int) -> None:
        counts = [number for number in numbers if number >= 0]
        if len(set(counts)) > 1:
            raise ShapeError(f"{self.name}: the inputs have different numbers of {what}: {counts}")


def _centers(xp: ArrayNamespace, boxes: Array) -> tuple[Array, Array]:
    """Return the centres and sides of boxes (..., 4): each (..., 2)."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return (low + high) / 2, high - low


def encode(xp: ArrayNamespace, anchors: Array, boxes: Array) -> Array:
    """Return the offsets (..., 4) of boxes from anchors."""
    center, sides = _centers(xp, anchors)
    its_center, its_sides = _centers(xp, boxes)
    return xp.concatenate([(its_center - center) / sides, xp.log(its_sides / sides)], axis=-1)


def decode(xp: ArrayNamespace, center: Array, sides: Array, offsets: Array) -> Array:
    """Return the boxes (..., 4) at these offsets from anchors, given by centres and sides."""
    its_center = offsets[..., :2] * sides + center
    half = xp.exp(offsets[..., 2:]) * sides / 2
    return xp.concatenate([its_center - half, its_center + half], axis=-1)


@operator("_contrib_MultiBoxPrior")
class MultiBoxPrior(_WithoutGradient, precision=Precision.FLOAT32):
    """Anchors around each position of a feature map: each size with the first ratio, and the first size with the
    other ratios.

    Shapes: data (batch, channels, height, width), output (1, height·width·(sizes + ratios - 1), 4). A size is a
    fraction of the image's height, and a ratio is that of width to height.
    """  # noqa: D205

    ranks = (4,)
    input_docs = describe(data="(batch, channels, height, width), float")
    output_doc = "(1, height·width·(sizes + ratios - 1), 4), the dtype of data: corners"
    sizes: tuple[float, ...] = option((1.0,), "The sizes.")
    ratios: tuple[float, ...] = option((1.0,), "The ratios.")
    clip: bool = option(False, "Clip anchors to the image.")
    steps: tuple[float, ...] = option(
        (-1.0, -1.0), "Vertical and horizontal distance of positions; below 0: they fill the image."
    )
    offsets: tuple[float, ...] = option((0.5, 0.5), "Vertical and horizontal position of the centre in its step.")

    def __post_init__(self) -> None:
        self._count(steps=2, offsets=2)
        if not self.sizes or not self.ratios:
            raise ParameterError(
                f"{self.name}: sizes {self.sizes} and ratios {self.ratios}, expected at least one of each"
            )
        if not all(0 <= offset <= 1 for offset in self.offsets):
            raise ParameterError(f"{self.name}: offsets {self.offsets}, expected numbers from 0 to 1")
        if self.steps[0] * self.steps[1] < 0:
            raise ParameterError(f"{self.name}: steps {self.steps}, expected both or neither")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        self._check(shapes)
        if data is None or -1 in data[2:]:
            return shapes, [(1, -1, 4)]
        return shapes, [(1, data[2] * data[3] * (len(self.sizes) + len(self.ratios) - 1), 4)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (height, width) = run.xp, inputs[0].shape[2:]
        # In float32 and in MXNet's order: many anchors overlap a box almost equally, so the last bit decides the best.
        float32 = np.float32
        down, across = np.array(self.steps if min(self.steps) > 0 else (1 / height, 1 / width), float32)
        y = ((xp.arange(height, dtype=float32) + float32(self.offsets[0])) * down)[:, None, None]
        x = ((xp.arange(width, dtype=float32) + float32(self.offsets[1])) * across)[None, :, None]
        kinds = [
            *((size, self.ratios[0]) for size in self.sizes),
            *((self.sizes[0], r) for r in self.ratios[1:]),
        ]
        sizes, roots = np.array([size for size, _ in kinds], float32), np.sqrt(np.array([r for _, r in kinds], float32))
        half_width = xp.asarray(sizes * float32(height) / float32(width) * roots / 2)
        half_height = xp.asarray(sizes / roots / 2)
        anchors = outputs[0].reshape(height, width, len(kinds), 4)
        anchors[..., 0], anchors[..., 1] = x - half_width, y - half_height
        anchors[..., 2], anchors[..., 3] = x + half_width, y + half_height
        if self.clip:
            xp.clip(anchors, 0, 1, out=anchors)


@operator("_contrib_MultiBoxTarget")
class MultiBoxTarget(_WithoutGradient, precision=Precision.FLOAT32):
    """The target of each anchor: the class of its box and its offsets from the box.

    Shapes: anchor (1, anchors, 4); label (batch, boxes, 5 or more), rows of a class and a box, padded with -1;
    cls_pred (batch, classes, anchors). Outputs: the offsets and their mask (batch, anchors·4), and the classes
    (batch, anchors), 0 for the background. Each box is assigned its best anchor, the best pair first, and each other
    anchor its best box, if they overlap by more than the threshold.
    """

    arguments = ("anchor", "label", "cls_pred")
    input_docs = describe(
        anchor="(1, anchors, 4), float; corners",
        label="(batch, boxes, 5 or more), the dtype of anchor; a class and corners, -1 after the last box",
        cls_pred="(batch, classes, anchors), the dtype of anchor; scores",
    )
    output_doc = "Offsets and their mask, each (batch, anchors·4), and classes (batch, anchors), the dtype of anchor"
    ranks = (3, 3, 3)
    output_names = ("loc_target", "loc_mask", "cls_target")
    overlap_threshold: float = option(0.5, "Overlap above which an anchor is assigned a box.")
    ignore_label: float = option(-1.0, "Class of ignored anchors.")
    negative_mining_ratio: float = option(-1.0, "Number of background anchors per anchor with a box; below 0: all.")
    negative_mining_thresh: float = option(0.5, "Maximum overlap of a background anchor.")
    minimum_negative_samples: int = option(0, "Ignored, as in MXNet.")
    variances: tuple[float, ...] = option(_VARIANCES, "Divisors of the offsets.")

    def __post_init__(self) -> None:
        self._count(variances=4)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        anchor, label, scores = shapes
        self._check(shapes)
        if label is not None and -1 < label[2] < 5:
            raise ShapeError(f"{self.name}: input label has shape {label}, expected a class and 4 coordinates per box")
        if anchor is None or label is None:
            return shapes, [None] * 3
        self._agree("anchors", anchor[1], -1 if scores is None else scores[2])
        numbers = -1 if anchor[1] < 0 else 4 * anchor[1]
        return shapes, [(label[0], numbers), (label[0], numbers), (label[0], anchor[1])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, dtype = run.xp, computing_dtype(outputs[0].dtype)
        anchors, labels, scores = (array.astype(dtype, copy=False) for array in inputs)
        location, mask, classes = outputs
        location.fill(0)
        mask.fill(0)
        classes.fill(self.ignore_label)
        for example, label in enumerate(labels):
            ends = xp.nonzero(label[:, 0] == -1)[0]
            boxes = label[: int(ends[0])] if len(ends) else label
            if not len(boxes):
                continue
            common = overlap(xp, anchors[0], boxes[:, 1:5], "corner")
            box_of = self._match(xp, common)
            classes[example, self._background(xp, common, box_of, scores[example])] = 0
            matched = xp.nonzero(box_of >= 0)[0]
            matched_boxes = boxes[box_of[matched]]
            classes[example, matched] = matched_boxes[:, 0] + 1
            mask[example].reshape(-1, 4)[matched] = 1
            offsets = encode(xp, anchors[0, matched], matched_boxes[:, 1:5]) / xp.asarray(self.variances, dtype)
            location[example].reshape(-1, 4)[matched] = offsets

    def _match(self, xp: ArrayNamespace, common: Array) -> Array:
        """Return the box of each anchor (anchors), or -1, from their overlaps (anchors, boxes)."""
        box_of = xp.full(len(common), -1)
        remaining = common.copy()
        for _ in range(common.shape[1]):
            anchor, box = divmod(int(remaining.argmax()), common.shape[1])
            if not remaining[anchor, box] > _MIN_OVERLAP:
                break
            box_of[anchor] = box
            remaining[anchor], remaining[:, box] = -1, -1
        if self.overlap_threshold > 0:
            near = (box_of < 0) & (common.max(axis=1) > self.overlap_threshold)
            box_of[near] = common[near].argmax(axis=1)
        return box_of

    def _background(self, xp: ArrayNamespace, common: Array, box_of: Array, scores: Array) -> Array:
        """Return the background anchors: all without a box, or those with the lowest background score."""
        free: Array = xp.nonzero(box_of < 0)[0]
        if self.negative_mining_ratio <= 0:
            return free
        count = min(int((len(box_of) - len(free)) * self.negative_mining_ratio), len(free))
        candidates = free[common[free].max(axis=1) < self.negative_mining_thresh]
        if len(candidates) < count:
            raise ParameterError(
                f"{self.name}: negative_mining_ratio {self.negative_mining_ratio} needs {count} anchors, but only "
                f"{len(candidates)} overlap by less than negative_mining_thresh {self.negative_mining_thresh}"
            )
        candidate_scores = scores[:, candidates]
        powers = xp.exp(candidate_scores - candidate_scores.max(axis=0))
        result: Array = candidates[xp.argsort(powers[0] / powers.sum(axis=0), kind="stable")[:count]]
        return result


@operator("_contrib_MultiBoxDetection")
class MultiBoxDetection(_WithoutGradient, precision=Precision.FLOAT32):
    """Decode predicted classes and offsets to boxes, and suppress boxes that overlap better ones.

    Shapes: cls_prob (batch, classes, anchors), class 0 being the background; loc_pred (batch, anchors·4); anchor
    (1, anchors, 4); output (batch, anchors, 6): class without the background (-1: no box), probability, and box.
    """

    arguments = ("cls_prob", "loc_pred", "anchor")
    input_docs = describe(
        cls_prob="(batch, classes, anchors), float; class 0 is the background",
        loc_pred="(batch, anchors·4), the dtype of cls_prob; offsets",
        anchor="(1, anchors, 4), the dtype of cls_prob; corners",
    )
    output_doc = "(batch, anchors, 6), the dtype of cls_prob: class (-1: no box), probability, corners"
    ranks = (3, 2, 3)
    clip: bool = option(True, "Clip boxes to the image.")
    threshold: float = option(0.01, "Minimum probability of a box.")
    background_id: int = option(0, "Ignored, as in MXNet.")
    nms_threshold: float = option(
        0.5, "Overlap from which the worse box is dropped; if it is not between 0 and 1, no box is dropped."
    )
    force_suppress: bool = option(False, "Compare boxes of different classes too.")
    variances: tuple[float, ...] = option(_VARIANCES, "Factors of the offsets.")
    nms_topk: int = option(-1, "Number of best boxes to consider; below 1: all.")

    def __post_init__(self) -> None:
        self._count(variances=4)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        probability, location, anchor = shapes
        self._check(shapes)
        counts = [-1 if probability is None else probability[2], -1 if anchor is None else anchor[1]]
        self._agree("anchors", *counts, -1 if location is None or location[1] < 0 else location[1] // 4)
        return shapes, [None if probability is None else (probability[0], max(counts), 6)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, out = run.xp, outputs[0]
        dtype = computing_dtype(out.dtype)
        probability, offsets, anchors = (array.astype(dtype, copy=False) for array in inputs)
        out.fill(-1)
        if probability.shape[1] < 2 or not out.size:
            return
        kinds, best = _best(xp, probability[:, 1:])
        is_detected = best >= max(self.threshold, -1)
        counts = is_detected.sum(axis=1)
        considered, order = self._order(xp, best, is_detected, counts)
        order = order[:, : int(counts.max())]
        offsets = offsets.reshape(*best.shape, 4)
        offsets = xp.take_along_axis(offsets, order[..., None], axis=1) * xp.asarray(self.variances, dtype)
        boxes = decode(xp, *_centers(xp, anchors[0][order]), offsets)
        boxes = xp.clip(boxes, 0, 1) if self.clip else boxes
        kinds, best = (xp.take_along_axis(array, order, axis=1) for array in (kinds, best))
        place = xp.arange(order.shape[1])
        if 0 < self.nms_threshold <= 1:
            places = boxes[:, : int(considered.max())]
            box_kinds = None if self.force_suppress else kinds[:, : places.shape[1]]
            candidates = Boxes(places[..., :2], places[..., 2:], area(xp, places, "corner"), box_kinds, considered)
            kinds[:, : places.shape[1]][~keep_mask(run, candidates, Rule(self.nms_threshold, reached=True))] = -1
            kinds[place >= considered[:, None]] = -1
        rows = xp.concatenate([kinds[..., None], best[..., None], boxes], axis=2)
        xp.copyto(out[:, : len(place)], rows, where=(place < counts[:, None])[..., None], casting="unsafe")

    def _order(self, xp: ArrayNamespace, best: Array, is_detected: Array, counts: Array) -> tuple[Array, Array]:
        """Return the number of boxes per sample for suppression, and the anchors in the order of the output.

        Those boxes come first, by descending probability; then, as in MXNet, the other detected anchors.
        """
        suppresses = 0 < self.nms_threshold <= 1
        considered = xp.minimum(counts, self.nms_topk) if suppresses and self.nms_topk > 0 else counts
        by_score = xp.argsort(xp.where(is_detected, -best, xp.inf), axis=1, kind="stable") if suppresses else None
        if by_score is not None and not (considered < counts).any():
            return considered, by_score
        by_position = xp.argsort(~is_detected, axis=1, kind="stable")
        if by_score is None:
            return counts, by_position
        return considered, xp.where(xp.arange(best.shape[1]) < considered[:, None], by_score, by_position)


def _best(xp: ArrayNamespace, probability: Array) -> tuple[Array, Array]:
    """Return the first class with the highest probability, and that probability; classes are on axis 1 of 3."""
    best = probability.max(axis=1)
    kinds = xp.zeros_like(best)
    for kind in range(probability.shape[1] - 1, 0, -1):
        xp.copyto(kinds, kind, where=probability[:, kind] == best)
    kinds[probability[:, 0] == best] = 0
    return kinds, best


@operator("_contrib_box_encode")
class BoxEncode(_WithoutGradient):
    """The offsets of matched boxes from sampled anchors, and their mask.

    Shapes: samples (batch, anchors), 1 for a used anchor; matches (batch, anchors), positions of boxes; anchors (batch,
    anchors, 4); refs (batch, boxes, 4); means and stds (4,). Both outputs: (batch, anchors, 4).
    """

    arguments = ("samples", "matches", "anchors", "refs", "means", "stds")
    input_docs = describe(
        samples="(batch, anchors), float; 1 for a used anchor",
        matches="(batch, anchors), the dtype of samples; positions of boxes",
        anchors="(batch, anchors, 4), the dtype of samples; corners",
        refs="(batch, boxes, 4), the dtype of samples; corners of the boxes",
        means="(4,), the dtype of samples",
        stds="(4,), the dtype of samples",
    )
    output_doc = "The offsets and their mask, each (batch, anchors, 4), the dtype of samples"
    ranks = (2, 2, 3, 3, 1, 1)
    output_names = ("output0", "output1")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        self._check(shapes)
        offsets = None if shapes[0] is None else (*shapes[0], 4)
        return shapes, [offsets, offsets]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (samples, matches, anchors, refs, means, stds) = run.xp, inputs
        boxes = xp.take_along_axis(refs, matches.astype(np.int64)[..., None], axis=1)
        counts = (samples > 0.5)[..., None]
        outputs[0][...] = xp.where(counts, (encode(xp, anchors, boxes) - means) / stds, 0)
        outputs[1][...] = counts


@operator("_contrib_box_decode")
class BoxDecode(_WithoutGradient):
    """The boxes (batch, anchors, 4) at the offsets ``data``, of the same shape, from ``anchors`` (1, anchors, 4)."""

    arguments = ("data", "anchors")
    input_docs = describe(data="(batch, anchors, 4), float; offsets", anchors="(1, anchors, 4), the dtype of data")
    output_doc = "(batch, anchors, 4), the dtype of data: corners"
    ranks = (3, 3)
    std0: float = option(1.0, "Factor of the first offset.")
    std1: float = option(1.0, "Factor of the second offset.")
    std2: float = option(1.0, "Factor of the third offset.")
    std3: float = option(1.0, "Factor of the fourth offset.")
    clip: float = option(-1.0, "The largest logarithm of a ratio of sides; below 0: no limit.")
    format: Format = option("center", "The form of anchors: corners, or centre and sides.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        self._check(shapes)
        return shapes, [shapes[0]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, (data, anchors) = run.xp, inputs
        offsets = data * xp.asarray([self.std0, self.std1, self.std2, self.std3], data.dtype)
        if self.clip > 0:
            offsets[..., 2:] = xp.minimum(offsets[..., 2:], self.clip)
        corners = self.format == "corner"
        center, sides = _centers(xp, anchors) if corners else (anchors[..., :2], anchors[..., 2:])
        outputs[0][...] = decode(xp, center, sides, offsets)
