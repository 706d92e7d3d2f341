"""Regions and boxes."""

import numpy as np

from tests.op_cases.case import Case, apart, fixed

REGIONS = [[0, 0, 0, 4, 4], [1, 2, 1, 5, 3], [1, -3, -3, 20, 20], [0, 5, 5, 2, 2], [0, 10, 10, 12, 12],
           [1, 0.5, 0.5, 2.5, 3.5]]  # fmt: skip
INSIDE = [[0, 0.3, 0.6, 4.1, 4.7], [1, 2.2, 1.1, 5.9, 3.4], [1, -3.1, -3.2, 8.3, 9.7], [0, 1.4, 2.3, 6.1, 2.9]]
TURNED = [[0, 3, 3, 4, 2, 30], [1, 0, 0.5, 5.5, 5, -70], [1, 4, 3, 20, 9, 180], [0, 2, 2, 0.1, 0.1, 45]]
BOXES = [
    [0, 0.5, 0.1, 0.1, 0.2, 0.2], [1, 0.4, 0.1, 0.1, 0.2, 0.2], [0, 0.3, 0.1, 0.1, 0.14, 0.14],
    [2, 0.6, 0.5, 0.5, 0.7, 0.8], [-1, 0.9, 0.5, 0.5, 0.7, 0.8], [1, -0.1, 0.3, 0.3, 0.4, 0.4],
    [2, 0.6, 0.5, 0.5, 0.7, 0.81], [0, 0.7, 0.11, 0.1, 0.21, 0.2],
]  # fmt: skip


def many_boxes(rng):
    """Return boxes that overlap in chains, of three classes: two batches of 40."""
    corner, side = rng.uniform(0, 1, (2, 40, 2)), rng.uniform(0.2, 0.6, (2, 40, 2))
    others = rng.integers(0, 3, (2, 40, 1)), rng.permutation(80).reshape(2, 40, 1) / 80
    return np.concatenate([*others, corner, corner + side], axis=2)


def moved(*shape):
    """Return offsets of up to about two pixels."""
    return lambda rng: rng.standard_normal(shape) * 0.9


def scores_of_anchors(rng):
    """Return distinct scores of twelve anchors at each of 4 x 5 positions of two images."""
    return rng.permutation(2 * 24 * 20).reshape(2, 24, 4, 5) / 960


def first(maker):
    """Return the first image only."""
    return lambda rng: maker(rng)[:1]


PICTURES = fixed([[48, 59, 1], [40, 44, 1.5]])

CASES = [
    *(
        Case("ROIPooling", [apart(2, 3, 6, 7), fixed(REGIONS)], {"pooled_size": size, "spatial_scale": scale}, wrt=(0,),
             second=size == (2, 3))
        for size in ((2, 3), (4, 4))
        for scale in (1.0, 0.7)
    ),
    Case("ROIPooling", [lambda rng: rng.integers(0, 3, (2, 3, 6, 7)), fixed(REGIONS)],
         {"pooled_size": (2, 2), "spatial_scale": 1.0}, wrt=(0,), numeric=False, note="ties"),
    *(
        Case("_contrib_ROIAlign", [(2, 3, 6, 7), fixed(rois)],
             {"pooled_size": (2, 3), "spatial_scale": 0.8, "sample_ratio": ratio, "aligned": aligned}, wrt=(0,),
             note=note)
        for ratio in (-1, 2)
        for rois, aligned, note in ((REGIONS, False, ""), (INSIDE, False, "inside"), (INSIDE, True, ""))
    ),
    Case("_contrib_ROIAlign", [(2, 12, 6, 7), fixed(INSIDE)],
         {"pooled_size": (2, 3), "spatial_scale": 1.0, "position_sensitive": True}, wrt=(0,), second=True),
    *(
        Case("_contrib_box_iou", [fixed(lhs), fixed(rhs)], {"format": form}, numeric=False)
        for form in ("corner", "center")
        for lhs, rhs in (
            ([[0.5, 0.5, 1, 1], [0, 0, 0.5, 0.5], [1, 1, -1, -1]], [[0.25, 0.25, 0.75, 0.75], [1, 1, -1, -1]]),
            ([[[0.5, 0.5, 1, 1]], [[0, 0, 0.5, 0.5]]], [[0.25, 0.25, 0.75, 0.75]]),
        )
    ),
    *(
        Case("_contrib_box_nms", [fixed(BOXES)], params,
             # The conversion of formats has no gradient, and a class is an integer.
             numeric=not params.keys() & {"in_format", "out_format", "id_index"},
             second=not params.keys() & {"in_format", "out_format", "id_index"})
        for params in (
            {}, {"id_index": 0}, {"id_index": 0, "background_id": 2}, {"id_index": 0, "force_suppress": True},
            {"topk": 2}, {"topk": 0}, {"valid_thresh": 0.45}, {"valid_thresh": 2.0}, {"in_format": "center"},
            {"out_format": "center"}, {"in_format": "center", "out_format": "center"}, {"overlap_thresh": 0.1},
        )
    ),
    Case("_contrib_box_nms", [many_boxes], {"overlap_thresh": 0.3, "id_index": 0}, numeric=False),
    Case("_contrib_box_non_maximum_suppression", [many_boxes], {"overlap_thresh": 0.2, "topk": 20}),
    *(
        Case("_contrib_bipartite_matching", [apart(2, 4, 3)], {"threshold": 0.1, **params}, numeric=False)
        for params in ({}, {"topk": 1}, {"is_ascend": True})
    ),
    *(
        Case("_contrib_DeformableConvolution", [(2, 4, 6, 5), moved(2, 2 * 2 * 6, *out), (4, 2, 3, 2), (4,)],
             {"kernel": (3, 2), "num_filter": 4, "num_group": 2, "num_deformable_group": 2, **params})
        for out, params in (((4, 4), {}), ((3, 6), {"pad": (1, 1), "stride": (2, 1), "dilate": (1, 1)}))
    ),
    Case("_contrib_DeformableConvolution", [(1, 2, 5, 5), moved(1, 8, 3, 3), (3, 2, 2, 2)],
         {"kernel": (2, 2), "num_filter": 3, "dilate": (2, 2), "no_bias": True}),
    *(
        Case("_contrib_ModulatedDeformableConvolution",
             [(2, 4, 6, 5), moved(2, 2 * 2 * 6, 6, 6), (2, 2 * 6, 6, 6), (4, 2, 3, 2), (4,)],
             {"kernel": (3, 2), "num_filter": 4, "num_group": 2, "num_deformable_group": 2, "pad": (1, 1)},
             recorded=recorded, numeric=not recorded, gradient=not recorded, note="as MXNet" if recorded else "")
        for recorded in (False, True)  # MXNet has no gradient on a CPU
    ),
    *(
        Case("_contrib_PSROIPooling", [(2, 18, 6, 7), fixed(REGIONS)],
             {"spatial_scale": scale, "output_dim": 2, "pooled_size": size, "group_size": 3}, wrt=(0,),
             second=size == 2)
        for size, scale in ((2, 1.0), (7, 0.6))
    ),
    Case("_contrib_PSROIPooling", [(2, 9, 6, 7), fixed(REGIONS)],
         {"spatial_scale": 1.0, "output_dim": 2, "pooled_size": 2}, wrt=(0,), note="a channel that no cell has"),
    *(
        Case("_contrib_DeformablePSROIPooling", [(2, 16, 6, 7), fixed(INSIDE), moved(4, 2 * classes, parts, parts)],
             {"spatial_scale": 0.9, "output_dim": 4, "group_size": 2, "pooled_size": size, "part_size": parts,
              "sample_per_part": samples, "trans_std": 0.13}, wrt=(0, 2))
        for classes, size, parts, samples in ((1, 2, 2, 1), (2, 5, 3, 2))
    ),
    Case("_contrib_DeformablePSROIPooling", [(2, 18, 6, 7), fixed(REGIONS)],
         {"spatial_scale": 1.0, "output_dim": 2, "group_size": 3, "pooled_size": 3, "sample_per_part": 3,
          "no_trans": True}, wrt=(0,)),
    *(
        Case("_contrib_RROIAlign", [(2, 3, 6, 7), fixed(TURNED)],
             {"pooled_size": (2, 3), "spatial_scale": 0.8, "sampling_ratio": ratio}, wrt=(0,), recorded=recorded,
             numeric=not recorded, gradient=not recorded, note="as MXNet" if recorded else "")
        for ratio in (-1, 2)
        for recorded in (False, True)  # MXNet has no gradient
    ),
    *(
        Case(name, [taken(scores_of_anchors), taken(moved(2, 48, 4, 5)), taken(PICTURES)],
             {"rpn_post_nms_top_n": 20, "output_score": True, **params}, gradient=False)
        for name, taken in (("_contrib_MultiProposal", lambda maker: maker), ("_contrib_Proposal", first))
        for params in (
            {}, {"rpn_min_size": 40, "threshold": 0.3}, {"iou_loss": True, "rpn_pre_nms_top_n": 30},
            {"scales": (0.7, 3.3, 6.0), "ratios": (0.3, 1.0, 2.7, 4.0), "feature_stride": 12, "rpn_pre_nms_top_n": 0},
        )
    ),
    Case("_contrib_bipartite_matching", [fixed([[0.5, 0.6, 0.6], [0.1, 0.6, 0.6]])], {"threshold": 0.05},
         numeric=False, note="ties"),
]  # fmt: skip
