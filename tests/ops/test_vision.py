"""Vision operators beyond the tables: names, shapes, dtypes, empty inputs, refusals."""

from typing import Any

import numpy as np
import pytest

import flowmx as mx
from flowmx.test_utils import assert_almost_equal

contrib = mx.nd.contrib
REGIONS = [[0, 0.3, 0.6, 4.1, 4.7], [1, 2.2, 1.1, 5.9, 3.4]]


def nd(*shape, dtype="float32"):
    return mx.nd.array(np.random.default_rng(len(shape)).standard_normal(shape), dtype=dtype)


POOL = {"pooled_size": (2, 3), "spatial_scale": 0.5}
GROUPS = {"pooled_size": 2, "spatial_scale": 1.0, "output_dim": 3, "group_size": 2}
# Operators that pool data of 12 channels, with parameters that need no further input.
POOLED: dict[str, Any] = {
    "ROIPooling": {"pooled_size": (2, 2), "spatial_scale": 1.0},
    "_contrib_ROIAlign": {"pooled_size": (2, 2), "spatial_scale": 1.0},
    "_contrib_RROIAlign": {"pooled_size": (2, 2), "spatial_scale": 1.0},
    "_contrib_PSROIPooling": GROUPS,
    "_contrib_DeformablePSROIPooling": {**GROUPS, "no_trans": True, "sample_per_part": 2},
}
CONV = {"kernel": (3, 3), "num_filter": 4}
# operator, parameters, the data's shape, generated arguments with their shapes, outputs
INFERRED = [
    ("ROIPooling", POOL, (2, 3, 6, 7), {"n_rois": (-1, 5)}, ["n_output"]),
    ("_contrib_ROIAlign", POOL, (2, 3, 6, 7), {"n_rois": (-1, 5)}, ["n_output"]),
    ("_contrib_RROIAlign", POOL, (2, 3, 6, 7), {"n_rois": (-1, 6)}, ["n_output"]),
    ("_contrib_PSROIPooling", POOLED["_contrib_PSROIPooling"], (2, 12, 6, 7), {"n_rois": (-1, 5)}, ["n_output"]),
    ("_contrib_DeformablePSROIPooling", {**POOLED["_contrib_DeformablePSROIPooling"], "no_trans": False},
     (2, 12, 6, 7), {"n_rois": (-1, 5), "n_trans": (-1, -1, 2, 2)}, ["n_output"]),
    ("_contrib_MultiProposal", {"output_score": True}, (2, 24, 4, 5),
     {"n_bbox_pred": (2, 48, 4, 5), "n_im_info": (2, 3)}, ["n_output", "n_score"]),
    ("_contrib_Proposal", {}, (1, 24, 4, 5), {"n_bbox_pred": (1, 48, 4, 5), "n_im_info": (1, 3)}, ["n_output"]),
    ("_contrib_box_iou", {}, (2, 3, 4), {"n_rhs": None}, ["n_output"]),
    ("_contrib_box_nms", {}, (2, 3, 6), {}, ["n_output0"]),
    ("_contrib_bipartite_matching", {"threshold": 0.1}, (2, 3, 6), {}, ["n_output0", "n_output1"]),
    ("_contrib_DeformableConvolution", CONV, (2, 3, 6, 7),
     {"n_offset": (2, 18, 4, 5), "n_weight": (4, 3, 3, 3), "n_bias": (4,)}, ["n_output"]),
    ("_contrib_ModulatedDeformableConvolution", {**CONV, "num_deformable_group": 3, "no_bias": True}, (2, 3, 6, 7),
     {"n_offset": (2, 54, 4, 5), "n_mask": (2, 27, 4, 5), "n_weight": (4, 3, 3, 3)}, ["n_output"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "params", "shape", "others", "outputs"), INFERRED, ids=lambda v: str(v)[:30])
def test_names_and_shapes_as_mxnet(name, params, shape, others, outputs):
    net = getattr(mx.sym, name)(mx.sym.Variable("data"), name="n", **params)
    assert net.list_arguments() == ["data", *others]
    assert net.list_outputs() == outputs
    shapes = net.infer_shape_partial(data=shape)[0][1:]
    assert shapes == [() if each is None else tuple(max(0, n) for n in each) for each in others.values()]


def regions_for(name, *rows, dtype="float32"):
    """Return regions in an operator's format; rotated ones end with an angle."""
    angle = [30] * (name == "_contrib_RROIAlign")
    return mx.nd.array([[*row, *angle] for row in rows] or np.zeros((0, 5 + len(angle))), dtype=dtype)


@pytest.mark.parametrize("name", POOLED)
def test_regions_without_an_image_are_zero(name):
    data = nd(2, 12, 6, 7)
    cells = mx.nd.op.op(name, data, regions_for(name, *REGIONS, [-1, 0, 0, 4, 4]), **POOLED[name])
    assert not cells[2].asnumpy().any()
    assert cells[:2].asnumpy().any()


@pytest.mark.parametrize("name", POOLED)
def test_half_precision_and_no_regions(name):
    results = []
    for dtype in ("float32", "float16"):
        data = nd(2, 12, 6, 7).astype("float16").astype(dtype)
        data.attach_grad()
        with mx.autograd.record():
            cells = mx.nd.op.op(name, data, regions_for(name, *REGIONS, dtype=dtype), **POOLED[name])
        cells.backward()
        assert data.grad is not None
        assert cells.dtype == np.dtype(dtype)
        results.append((cells.astype("float32"), data.grad.astype("float32")))
    for one, other in zip(*results, strict=True):
        assert_almost_equal(one, other, rtol=2e-2, atol=2e-2)
    data.attach_grad()
    with mx.autograd.record():
        none = mx.nd.op.op(name, data, regions_for(name, dtype=dtype), **POOLED[name])
    none.backward()
    assert none.shape == (0, *cells.shape[1:])
    assert none.asnumpy().size == 0
    assert not data.grad.asnumpy().any()


def test_rotated_regions_match_axis_aligned_ones():
    data = nd(1, 3, 9, 9)
    params = {"pooled_size": (2, 2), "spatial_scale": 1.0}
    straight = contrib.ROIAlign(data, mx.nd.array([[0, 2, 1, 6, 7]]), **params)
    for angle, turns in ((0, 0), (180, 2), (360, 0)):
        turned = contrib.RROIAlign(data, mx.nd.array([[0, 4, 4, 4, 6, angle]]), **params)
        assert_almost_equal(turned.asnumpy(), np.rot90(straight.asnumpy(), turns, (2, 3)), rtol=1e-4, atol=1e-5)
    # A quarter turn counter-clockwise moves the right side to the top.
    turned = contrib.RROIAlign(data, mx.nd.array([[0, 4, 4, 6, 4, 90]]), **params)
    assert_almost_equal(turned.asnumpy(), np.rot90(straight.asnumpy(), -1, (2, 3)), rtol=1e-4, atol=1e-5)


def test_large_regions_are_sampled_in_parts(monkeypatch):
    data, rois = nd(2, 12, 6, 7), mx.nd.array(REGIONS * 4)
    params = POOLED["_contrib_DeformablePSROIPooling"]
    results = []
    for size in (1 << 22, 100):
        monkeypatch.setattr("flowmx.ops.vision.region_samples._MAX_SAMPLED", size)
        data.attach_grad()
        with mx.autograd.record():
            cells = contrib.DeformablePSROIPooling(data, rois, **params)
        cells.backward()
        results.append((cells.asnumpy(), data.grad.asnumpy()))
    for one, other in zip(*results, strict=True):
        assert_almost_equal(one, other, rtol=1e-6)


def test_proposals_are_the_best_boxes_repeated_as_padding():
    rng = np.random.default_rng(0)
    scores, boxes = rng.uniform(size=(2, 24, 4, 5)), rng.standard_normal((2, 48, 4, 5)) * 0.2
    arrays = [mx.nd.array(each) for each in (scores, boxes, [[64, 80, 1], [40, 60, 1]])]
    proposals, its_scores = contrib.MultiProposal(*arrays, rpn_post_nms_top_n=250, rpn_min_size=4, output_score=True)
    proposals, its_scores = proposals.asnumpy().reshape(2, 250, 5), its_scores.asnumpy().reshape(2, 250)
    for image, (height, width) in enumerate(((64, 80), (40, 60))):
        assert (proposals[image, :, 0] == image).all()
        # Boxes that are too small, or outside the image, come last.
        large = proposals[image, its_scores[image] > 0, 1:]
        assert (large >= 0).all()
        assert (large <= [width - 1, height - 1] * 2).all()
        count = len(np.unique(proposals[image], axis=0))
        assert 1 < count < 250
        assert (np.diff(its_scores[image, :count]) <= 0).all()
        np.testing.assert_array_equal(proposals[image, count:], proposals[image, np.arange(count, 250) % count])
        ends = mx.nd.array(proposals[image, :count, 1:] + [0, 0, 1, 1])
        overlaps = contrib.box_iou(ends, ends).asnumpy() - np.eye(count)
        assert overlaps.max() <= 0.7 + 1e-6
    assert its_scores[0, 0] == np.float32(scores[0, 12:].max())
    alone = contrib.Proposal(*(each[1:] for each in arrays), rpn_post_nms_top_n=250, rpn_min_size=4)
    np.testing.assert_array_equal(alone.asnumpy()[:, 1:], proposals[1, :, 1:])


def test_no_gradient_flows_through_proposals():
    arrays = [nd(1, 24, 2, 2), nd(1, 48, 2, 2), mx.nd.array([[32, 32, 1]])]
    arrays[1].attach_grad()
    with mx.autograd.record():
        total = contrib.Proposal(*arrays, rpn_post_nms_top_n=5).sum() + arrays[1].sum() * 2
    total.backward()
    np.testing.assert_array_equal(arrays[1].grad.asnumpy(), 2)


def test_aligned_regions_are_shifted_by_half_a_pixel():
    data, rois = nd(1, 2, 8, 8), mx.nd.array([[0, 1.5, 1.5, 5.5, 5.5]])
    aligned = contrib.ROIAlign(data, rois, pooled_size=(2, 2), spatial_scale=1.0, aligned=True)
    moved = contrib.ROIAlign(data, rois - mx.nd.array([[0, 0.5, 0.5, 0.5, 0.5]]), pooled_size=(2, 2), spatial_scale=1.0)
    assert_almost_equal(aligned, moved, rtol=1e-5)


def kept_one_by_one(boxes, threshold):
    """Suppress boxes greedily, one by one."""
    left = []
    for box in boxes[np.argsort(-boxes[:, 1], kind="stable")]:
        overlaps = [
            contrib.box_iou(mx.nd.array(box[None, 2:]), mx.nd.array(each[None, 2:])).asscalar()
            for each in left
            if each[0] == box[0]
        ]
        if not overlaps or max(overlaps) <= threshold:
            left.append(box)
    return np.array(left)


def test_suppression_matches_a_loop_over_boxes():
    rng = np.random.default_rng(3)
    corner, side = rng.uniform(0, 1, (40, 2)), rng.uniform(0.2, 0.6, (40, 2))
    scores = rng.uniform(0.1, 1, (40, 1))
    boxes = np.concatenate([rng.integers(0, 3, (40, 1)), scores, corner, corner + side], axis=1).astype("float32")
    expected = kept_one_by_one(boxes, 0.3)
    remaining = contrib.box_nms(mx.nd.array(boxes), overlap_thresh=0.3, id_index=0).asnumpy()
    np.testing.assert_array_equal(remaining[: len(expected)], expected)
    assert (remaining[len(expected) :] == -1).all()


@pytest.mark.parametrize("shape", [(0, 6), (2, 0, 6), (0, 4, 6)])
def test_no_boxes(shape):
    boxes = mx.nd.array(np.zeros(shape, "float32"))
    assert contrib.box_nms(boxes).asnumpy().shape == shape
    matches = contrib.bipartite_matching(boxes, threshold=0.1)
    assert [each.asnumpy().shape for each in matches] == [shape[:-1], (*shape[:-2], shape[-1])]
    places = mx.nd.array(np.zeros((*shape[:-1], 4), "float32"))
    assert contrib.box_iou(places, mx.nd.zeros((3, 4))).asnumpy().shape == (*shape[:-1], 3)


def test_boxes_in_half_precision():
    boxes = mx.nd.array([[0, 0.5, 0, 0, 4, 4], [0, 0.75, 0, 0, 4, 5], [0, 0.25, 4, 4, 8, 8]], dtype="float16")
    remaining = contrib.box_nms(boxes)
    assert remaining.dtype == np.float16
    np.testing.assert_array_equal(remaining.asnumpy()[:, 1], [0.75, 0.25, -1])
    assert contrib.box_iou(boxes[:, 2:], boxes[:, 2:]).dtype == np.float16


def test_a_deformable_convolution_without_offsets_is_a_convolution():
    data, weight, bias = nd(2, 4, 6, 5), nd(6, 2, 3, 3), nd(6)
    params = {"kernel": (3, 3), "num_filter": 6, "num_group": 2, "pad": (1, 1), "stride": (2, 1)}
    expected = mx.nd.Convolution(data, weight, bias, **params)
    offset, mask = mx.nd.zeros((2, 18, 3, 5)), mx.nd.ones((2, 9, 3, 5))
    result = contrib.DeformableConvolution(data, offset, weight, bias, **params)
    assert_almost_equal(result, expected, rtol=1e-4, atol=1e-5)
    result = contrib.ModulatedDeformableConvolution(data, offset, mask, weight, bias, **params)
    assert_almost_equal(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "batch"), [("float16", 2), ("float32", 0)])
def test_deformable_convolution_in_half_precision_and_without_samples(dtype, batch):
    arrays = [mx.nd.array(np.full(shape, 0.5), dtype=dtype)
              for shape in ((batch, 2, 5, 5), (batch, 18, 3, 3), (3, 2, 3, 3), (3,))]  # fmt: skip
    for each in arrays:
        each.attach_grad()
    with mx.autograd.record():
        result = contrib.DeformableConvolution(*arrays, kernel=(3, 3), num_filter=3)
    result.backward()
    assert result.shape == (batch, 3, 3, 3)
    assert result.dtype == np.dtype(dtype)
    np.testing.assert_allclose(result.asnumpy(), 5.0, rtol=1e-2)
    assert arrays[2].grad.asnumpy().any() == (batch > 0)


REFUSED = [
    ("ROIPooling", [(2, 3, 6, 7), (2, 4)], POOL, r"rois has shape \(2, 4\), expected \(-1, 5\)"),
    ("ROIPooling", [(2, 3, 6, 7), (2, 5)], {**POOL, "pooled_size": (2,)}, "pooled_size is"),
    ("_contrib_ROIAlign", [(2, 3, 6), (2, 5)], POOL, "expected 4 axes"),
    ("_contrib_ROIAlign", [(2, 3, 6, 7), (2, 5)], {**POOL, "position_sensitive": True}, "expected a multiple of 6"),
    ("_contrib_RROIAlign", [(2, 3, 6, 7), (2, 5)], POOL, r"rois has shape \(2, 5\), expected \(-1, 6\)"),
    ("_contrib_PSROIPooling", [(2, 11, 6, 7), (2, 5)], GROUPS, r"has 11 channels, expected .* = 12"),
    ("_contrib_DeformablePSROIPooling", [(2, 12, 6, 7), (2, 5), (2, 4, 2, 2)], GROUPS, "divides output_dim 3"),
    ("_contrib_DeformablePSROIPooling", [(2, 12, 6, 7), (2, 5), (2, 2, 3, 3)], GROUPS, "trans has shape"),
    ("_contrib_Proposal", [(2, 24, 4, 5), (2, 48, 4, 5), (2, 3)], {}, "a batch of 2, expected 1; use MultiProposal"),
    ("_contrib_MultiProposal", [(2, 24, 4, 5), (2, 24, 4, 5), (2, 3)], {}, "bbox_pred has shape"),
    ("_contrib_MultiProposal", [(2, 24, 4, 5), (2, 48, 4, 5), (2, 3)], {"scales": (8,)}, "has 24 channels, expected 6"),
    ("_contrib_MultiProposal", [(2, 24, 4, 5), (2, 48, 4, 5), (2, 3)], {"scales": ()}, "expected at least one of each"),
    ("_contrib_box_iou", [(2, 3), (2, 4)], {}, "expected 4 numbers per box"),
    ("_contrib_box_iou", [(2, 4), (2, 4)], {"format": "side"}, "format is 'side'"),
    ("_contrib_box_nms", [(2, 5)], {}, "expected at least 6 numbers"),
    ("_contrib_box_nms", [(2, 7)], {"score_index": 3}, "score_index is 3"),
    ("_contrib_box_nms", [(2, 7)], {"id_index": 1}, "id_index is 1"),
    ("_contrib_bipartite_matching", [(2, 7)], {}, "missing parameter threshold"),
    ("_contrib_DeformableConvolution", [(2, 3, 6, 7), (2, 16, 4, 5), (4, 3, 3, 3), (4,)], CONV,
     r"offset has shape \(2, 16, 4, 5\), expected \(2, 18, 4, 5\)"),
    ("_contrib_DeformableConvolution", [(2, 3, 6, 7), (2, 18, 4, 5), (4, 3, 3, 3), (4,)],
     {**CONV, "num_deformable_group": 2}, "num_deformable_group 2"),
    ("_contrib_DeformableConvolution", [(2, 3, 6), (2, 18, 4), (4, 3, 3), (4,)], {**CONV, "kernel": (3,)}, "kernel is"),
    ("_contrib_DeformableConvolution", [(2, 3, 2, 7), (2, 18, 4, 5), (4, 3, 3, 3), (4,)], CONV, "smaller than one"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shapes", "params", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused_at_the_call(name, shapes, params, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        mx.nd.op.op(name, *(nd(*shape) for shape in shapes), **params)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", POOLED)
def test_an_image_index_out_of_range_is_refused(name):
    cells = mx.nd.op.op(name, nd(2, 12, 6, 7), regions_for(name, [2, 0, 0, 3, 3]), **POOLED[name])
    with pytest.raises(IndexError, match="rois refer to image 2, but the data has 2 images"):
        cells.wait_to_read()


def test_an_image_larger_than_the_feature_map_is_refused():
    proposals = contrib.Proposal(nd(1, 24, 4, 5), nd(1, 48, 4, 5), mx.nd.array([[80, 80, 1]]))
    with pytest.raises(ValueError, match="80 × 80 pixels, but the feature map has 4 × 5 positions, 16 pixels apart"):
        proposals.wait_to_read()


def test_an_aligned_region_without_area_is_refused():
    cells = contrib.ROIAlign(nd(1, 3, 6, 7), mx.nd.array([[0, 3, 3, 1, 1]]), aligned=True, **POOL)
    with pytest.raises(ValueError, match="a region has length"):
        cells.wait_to_read()
