"""Non-maximum suppression: the compiled loop and the array namespace against a loop over boxes."""

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.ops.kernels.llvm import suppression as compiled
from flowmx.ops.registry.operators import Run
from flowmx.ops.vision import anchors, suppression
from flowmx.ops.vision.suppression import Boxes, Rule

pytest.importorskip("llvmlite")

RULES = [
    Rule(0.0), Rule(0.3), Rule(0.5, reached=True), Rule(0.7, margin=1), Rule(0.5, margin=1, most=7), Rule(1.0),
    Rule(0.2, most=0),
]  # fmt: skip


def one_by_one(boxes, rule, example):
    """Return the positions of a sample's remaining boxes."""
    left: list[int] = []
    low, high, areas = boxes.low[example], boxes.high[example], boxes.areas[example]
    for box in range(boxes.counts[example]):
        for other in left:
            if boxes.kinds is not None and boxes.kinds[example, other] != boxes.kinds[example, box]:
                continue
            sides = np.minimum(high[box], high[other]) - np.maximum(low[box], low[other]) + rule.margin
            common = np.maximum(sides, 0).prod()
            overlap = common / (areas[other] + areas[box] - common) if common > 0 else common * 0
            if overlap > rule.threshold or (rule.reached and overlap == rule.threshold):
                break
        else:
            if rule.most < 0 or len(left) < rule.most:
                left.append(box)
    return left


def drawn(seed, batch, count, classes, dtype, spread, margin=0):
    rng = np.random.default_rng(seed)
    low = rng.integers(0, spread, (batch, count, 2)).astype(dtype)
    high = low + rng.integers(-1, 20, (batch, count, 2)).astype(dtype)
    areas = np.where((high < low).any(axis=-1), 0, (high - low + margin).prod(axis=-1))
    kinds = rng.integers(0, classes, (batch, count)) if classes else None
    return Boxes(low, high, areas, kinds, rng.integers(0, count + 1, batch))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_matches_a_loop_over_boxes(rule):
    # A vector has 16 or 8 lanes; the remaining boxes fill it exactly, or do not.
    for seed, (batch, count, classes, spread) in enumerate(
        [(1, 1, 0, 5), (3, 40, 0, 30), (2, 130, 3, 40), (4, 16, 2, 400), (1, 300, 0, 1000), (2, 600, 5, 60)]
    ):
        for dtype in ("float32", "float64"):
            boxes = drawn(seed, batch, count, classes, dtype, spread, rule.margin)
            fast, plain = compiled.keep_mask(boxes, rule), suppression.plain(np, boxes, rule)
            expected = [one_by_one(boxes, rule, example) for example in range(batch)]
            assert fast is not None
            for masks in (fast, plain):
                assert [np.flatnonzero(each).tolist() for each in masks] == expected


def test_nan_scores_drop_no_boxes():
    values = [np.nan, np.inf, -np.inf, 1.0, 5.0]
    corners = np.array(np.meshgrid(*[values] * 4)).reshape(4, -1).T.astype("float32")[None]
    low, high = corners[..., :2], corners[..., 2:]
    with np.errstate(all="ignore"):
        areas = np.where((high < low).any(axis=-1), 0, (high - low).prod(axis=-1)).astype("float32")
        boxes = Boxes(low, high, areas, None, np.array([corners.shape[1]]))
        for rule in RULES:
            np.testing.assert_array_equal(compiled.keep_mask(boxes, rule), suppression.plain(np, boxes, rule))


def test_the_compiled_loop_is_used(monkeypatch):
    calls = []
    fast = compiled.keep_mask

    def left(boxes, rule):
        calls.append(rule)
        mask = fast(boxes, rule)
        assert mask is not None
        return mask

    monkeypatch.setitem(suppression._fast, "cpu", left)
    boxes = np.random.default_rng(0).uniform(0, 1, (2, 50, 6)).astype("float32")
    mx.nd.contrib.box_nms(mx.nd.array(boxes)).asnumpy()
    prob, anchors = mx.nd.ones((1, 3, 50)) / 3, mx.nd.array(boxes[:1, :, 2:])
    mx.nd.contrib.MultiBoxDetection(prob, mx.nd.zeros((1, 200)), anchors).asnumpy()
    mx.nd.contrib.Proposal(mx.nd.ones((1, 24, 4, 4)), mx.nd.zeros((1, 48, 4, 4)), mx.nd.array([[64, 64, 1]])).asnumpy()
    assert [(rule.threshold, rule.reached, rule.margin, rule.most) for rule in calls] == [
        (0.5, False, 0, -1), (0.5, True, 0, -1), (0.7, False, 1, 300),
    ]  # fmt: skip


def test_boxes_below_the_score_threshold_are_not_decoded(monkeypatch):
    decode, count = anchors.decode, []

    def counting(xp, *arguments):
        boxes_ = decode(xp, *arguments)
        count.append(boxes_.shape[1])
        return boxes_

    monkeypatch.setattr(anchors, "decode", counting)
    probability = np.full((2, 2, 50), 0.001, "float32")
    probability[0, 1, 7], probability[1, 1, 8:11] = 0.9, 0.8
    boxes = np.random.default_rng(0).uniform(0, 1, (1, 50, 4)).astype("float32")
    arguments = mx.nd.array(probability), mx.nd.zeros((2, 200)), mx.nd.array(boxes)
    boxes_ = mx.nd.contrib.MultiBoxDetection(*arguments, nms_threshold=-1).asnumpy()
    assert count == [3]
    assert (boxes_[..., 0] >= 0).sum(axis=1).tolist() == [1, 3]


def test_a_negative_threshold_drops_all_but_the_best():
    boxes = drawn(1, 2, 20, 0, "float32", 500)
    run = Run(devices.get(mx.cpu()), False)
    mask = suppression.keep_mask(run, boxes, Rule(-1.0))
    assert mask.sum(axis=1).tolist() == [min(1, count) for count in boxes.counts.tolist()]
