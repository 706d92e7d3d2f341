"""Resampling, transforms and correlation of images."""

import numpy as np

from tests.op_cases.case import Case, apart, fixed, positive

SIZE = (2, 3, 5, 4)


def smooth(*shape):
    """Return positions from -1.2 to 1.2 off the pixel centres, where interpolation is not smooth."""
    return lambda rng: rng.permutation(int(np.prod(shape))).reshape(shape) * 0.037 % 2.4 - 1.19


CASES = [
    *(
        Case("_contrib_BilinearResize2D", [shape], {"height": height, "width": width, "align_corners": corners},
             second=True)
        for shape in (SIZE, (1, 2, 4, 5))
        for height, width in ((7, 3), (1, 9), (5, 4))
        for corners in (True, False)
    ),
    Case("_contrib_BilinearResize2D", [SIZE], {"scale_height": 1.5, "scale_width": 0.7}),
    Case("_contrib_BilinearResize2D", [SIZE], {"scale_height": 2.0, "scale_width": 3.0, "mode": "odd_scale"}),
    Case("_contrib_BilinearResize2D", [SIZE, (2, 1, 7, 6)], {"mode": "like"}, wrt=(0,)),
    *(
        Case("_contrib_BilinearResize2D", [SIZE], {"mode": mode})
        for mode in ("to_even_down", "to_even_up", "to_odd_down", "to_odd_up")
    ),
    Case("_contrib_BilinearResize2D", [(1, 1, 16, 15)], {"height": 20, "width": 40}, note="banded"),
    Case("_contrib_AdaptiveAvgPooling2D", [SIZE], second=True),
    Case("_contrib_AdaptiveAvgPooling2D", [SIZE], {"output_size": (3,)}, second=True),
    Case("_contrib_AdaptiveAvgPooling2D", [SIZE], {"output_size": (2, 6)}),
    Case("UpSampling", [SIZE], {"scale": 2, "sample_type": "nearest"}, second=True),
    Case("_repeat_pixels", [SIZE], {"scale": 3}, recorded=False, second=True),
    Case("UpSampling", [(2, 3, 4, 4), (2, 1, 2, 2)], {"scale": 2, "sample_type": "nearest", "num_args": 2},
         second=True),
    Case("UpSampling", [(2, 3, 4, 4), (2, 3, 2, 2)],
         {"scale": 1, "sample_type": "nearest", "num_args": 2, "multi_input_mode": "sum"}),
    Case("UpSampling", [(2, 3, 3, 2), (3, 1, 4, 4)],
         {"scale": 2, "sample_type": "bilinear", "num_filter": 3, "num_args": 2}, second=True),
    Case("UpSampling", [(1, 2, 3, 2), (2, 1, 5, 5)],
         {"scale": 3, "sample_type": "bilinear", "num_filter": 2, "num_args": 2}),
    *(
        Case("Pooling", [apart(2, *size, 3)], {"layout": layout, "pool_type": kind, **params}, note=layout)
        for layout, size in (("NWC", (7,)), ("NHWC", (5, 6)), ("NDHWC", (4, 3, 4)))
        for kind in ("max", "avg", "sum")
        for params in (
            {"kernel": (3,) * len(size), "stride": (2,) * len(size), "pad": (1,) * len(size)},
            {"kernel": (2,) * len(size), "pooling_convention": "full"},
            {"global_pool": True},
        )
    ),
    Case("Pooling", [positive(2, 5, 4, 3)], {"layout": "NHWC", "pool_type": "lp", "p_value": 2, "kernel": (2, 2)}),
    Case("Pooling", [(2, 5, 4, 3)], {"layout": "NHWC", "pool_type": "avg", "kernel": (2, 2)}, second=True,
         recorded=False),
    Case("L2Normalization", [(5,)], {"eps": 0.5}),
    Case("LRN", [(2, 3, 2, 2)], {"nsize": 1}),
    Case("GridGenerator", [(2, 6)], {"transform_type": "affine", "target_shape": (3, 4)}),
    Case("GridGenerator", [(2, 2, 3, 4)], {"transform_type": "warp"}),
    Case("BilinearSampler", [SIZE, smooth(2, 2, 3, 3)]),
    Case("BilinearSampler", [SIZE, fixed([[[[-1, 0, 1]], [[-1, 1, 0]]], [[[-3, 1.5, 2]], [[0.1, 0.2, 9]]]])],
         wrt=(0,), note="edges"),
    Case("SpatialTransformer", [SIZE, (2, 6)],
         {"target_shape": (3, 3), "transform_type": "affine", "sampler_type": "bilinear"}),
    *(
        Case("Correlation", [apart(2, 3, 6, 7), (2, 3, 6, 7)], {**params, "is_multiply": multiply})
        for multiply in (True, False)
        for params in (
            {},
            {"kernel_size": 3, "max_displacement": 2, "stride1": 2, "stride2": 2, "pad_size": 3},
            {"kernel_size": 1, "max_displacement": 3, "stride2": 2, "pad_size": 4},
            {"max_displacement": 2, "stride1": 2, "pad_size": 1},
        )
    ),
]  # fmt: skip
