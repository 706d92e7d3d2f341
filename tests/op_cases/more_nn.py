"""More calls of the neural-network layers: other parameters, edges, special values."""

from typing import Any

import numpy as np

from tests.op_cases.case import Case, apart, classes, fixed, positive, ties

_SPECIAL = fixed([[-np.inf, -100.0, -2.0, -0.0, 0.0, 0.5, 2.0, 100.0]])
_LARGE = fixed([[1000.0, 1001.0, 999.0], [-1000.0, 0.0, 1000.0]])

ACTIVATIONS = [
    *(
        Case("Activation", [_SPECIAL], {"act_type": kind}, gradient=False, note="special")
        for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign")
    ),
    Case("Activation", [fixed([-1.0, 0.0, 1.0])], {"act_type": "relu"}, numeric=False, note="at 0"),
    *(
        Case("LeakyReLU", [_SPECIAL], {"act_type": kind}, gradient=False, note="special")
        for kind in ("leaky", "elu", "selu", "gelu")
    ),
    Case("LeakyReLU", [apart(3, 4)]),
    Case("LeakyReLU", [apart(2, 3), positive(3)], {"act_type": "prelu"}, note="matrix"),
    Case("LeakyReLU", [apart(2, 3, 2, 2), positive(3)], {"act_type": "prelu"}, note="images"),
    Case("hard_sigmoid", [fixed([-9.0, -2.5, 0.0, 2.5, 9.0])], numeric=False, note="bounds"),
    *(Case("softmax", [(2, 3, 4)], {"axis": axis}) for axis in (0, 1, -2)),
    *(Case(name, [_LARGE], gradient=False, note="large") for name in ("softmax", "log_softmax", "softmin")),
    Case("softmax", [(5,)], note="vector"),
    Case("softmax", [(2, 4), fixed([1, 3])], {"use_length": True}, wrt=(0,), dtypes={1: "int32"}),
    Case("softmax", [(2, 4, 3), fixed([[1, 2, 3], [4, 1, 2]])], {"use_length": True, "axis": 1}, wrt=(0,),
         dtypes={1: "int32"}),
    Case("softmax", [(2, 3)], {"dtype": "float64"}, gradient=False),
    Case("log_softmax", [(2, 3)], {"dtype": "float64"}, gradient=False),
    Case("log_softmax", [(2, 3, 4)], {"axis": 0}),
    Case("softmin", [(2, 3, 4)], {"axis": 1, "temperature": 3.0}),
    Case("SoftmaxActivation", [(2, 3, 2, 2)], {"mode": "channel"}),
    Case("SoftmaxActivation", [(2, 3, 2)], same_gradient=False),
]  # fmt: skip

_NORMALIZED: list[Any] = [positive(3), (3,)]

NORMALIZATIONS = [
    Case(
        "BatchNorm",
        [(4, 3, 2), *_NORMALIZED, (3,), positive(3)],
        {"fix_gamma": False, "output_mean_var": True},
        2,
        numeric=False,
        same_gradient=False,
    ),
    Case("BatchNorm", [(4, 3, 2), *_NORMALIZED, (3,), positive(3)], {"momentum": 0.0, "eps": 0.1}, 2),
    Case("BatchNorm", [(2, 4, 3), *_NORMALIZED, (3,), positive(3)], {"axis": 2, "fix_gamma": False}, 2, train=False),
    Case("BatchNorm", [(2, 3, 2, 2, 2), *_NORMALIZED, (3,), positive(3)], {"fix_gamma": False}, 2, note="volumes"),
    Case("LayerNorm", [(3, 4), positive(4), (4,)], {"output_mean_var": True}, gradient=False),
    Case("LayerNorm", [(3, 4), positive(3), (3,)], {"axis": 0}),
    Case("LayerNorm", [(2, 3, 4), positive(3), (3,)], {"axis": -2, "eps": 0.1}),
    Case("GroupNorm", [(2, 6, 2), positive(3), (3,)], {"num_groups": 3, "eps": 0.01}),
    Case("GroupNorm", [(2, 4, 3), positive(1), (1,)]),
    Case("InstanceNorm", [(2, 3, 4), *_NORMALIZED], {"eps": 0.1}),
    Case("L2Normalization", [(2, 3)], {"eps": 0.5}),
    Case("L2Normalization", [(2, 3, 2)], {"mode": "spatial"}),
    Case("LRN", [(1, 6, 2, 2)], {"nsize": 5}),
    Case("LRN", [(1, 3, 2, 2)], {"nsize": 1, "alpha": 0.1, "beta": 0.5}),
    Case("Dropout", [(4, 5)], {"p": 0.0}),
]

_IMAGE = apart(1, 2, 6, 5)

WINDOWS = [
    Case("FullyConnected", [(4, 3), (2, 3), (2,)], {"num_hidden": 2, "flatten": False}),
    Case("FullyConnected", [(2, 2, 3), (4, 3)], {"num_hidden": 4, "no_bias": True, "flatten": False}),
    Case("FullyConnected", [(1, 3), (1, 3), (1,)], {"num_hidden": 1}),
    Case("Convolution", [(1, 2, 5, 5), (2, 2, 1, 3), (2,)], {"kernel": (1, 3), "num_filter": 2, "pad": (0, 1)}),
    Case("Convolution", [(1, 4, 5), (4, 2, 3)],
         {"kernel": (3,), "num_filter": 4, "num_group": 2, "no_bias": True, "dilate": (2,), "pad": (2,)}),
    Case("Convolution", [(1, 2, 3, 4, 3), (4, 1, 2, 2, 2), (4,)],
         {"kernel": (2, 2, 2), "num_filter": 4, "num_group": 2, "stride": (1, 2, 1)}),
    Case("Convolution", [(2, 2, 3, 3), (3, 2, 3, 3), (3,)], {"kernel": (3, 3), "num_filter": 3, "layout": "NCHW"}),
    Case("Deconvolution", [(1, 2, 3, 3), (2, 2, 2, 2), (2,)],
         {"kernel": (2, 2), "num_filter": 2, "stride": (2, 2), "no_bias": False}),
    Case("Deconvolution", [(1, 2, 3, 3), (2, 1, 3, 3)],
         {"kernel": (3, 3), "num_filter": 2, "num_group": 2, "pad": (1, 1)}),
    Case("Deconvolution", [(1, 1, 2, 2), (1, 1, 4, 4)],
         {"kernel": (4, 4), "num_filter": 1, "stride": (2, 2), "target_shape": (5, 5)}, recorded=False),
    *(
        Case("Pooling", [_IMAGE], {"kernel": (3, 2), "pool_type": kind, **more})
        for kind in ("max", "avg")
        for more in ({"stride": (1, 2)}, {"stride": (2, 2), "pad": (1, 0)})
    ),
    *(Case("Pooling", [_IMAGE], {"global_pool": True, "pool_type": kind}) for kind in ("max", "avg", "sum")),
    Case("Pooling", [apart(2, 2, 5)], {"kernel": (2,), "pool_type": "avg", "stride": (2,)}),
    Case("Pooling", [apart(2, 2, 5)], {"global_pool": True, "pool_type": "max", "kernel": (1,)}),
    Case("Pooling", [apart(1, 1, 3, 4, 4)], {"kernel": (2, 2, 2), "pool_type": "avg", "stride": (1, 2, 2)}),
    Case("Pooling", [positive(1, 2, 4, 4)], {"kernel": (2, 2), "pool_type": "lp", "p_value": 1, "stride": (2, 2)}),
    Case("Pooling", [(1, 2, 4, 4)],
         {"kernel": (3, 3), "pool_type": "avg", "pad": (1, 1), "pooling_convention": "full", "stride": (2, 2),
          "count_include_pad": False}),
]  # fmt: skip

OUTPUTS = [
    Case("SoftmaxOutput", [(3, 4), classes(4, 3)], numeric=False),
    Case("SoftmaxOutput", [(2, 3, 4), classes(3, 2, 4)], {"multi_output": True, "grad_scale": 0.5}, numeric=False),
    Case("SoftmaxOutput", [(2, 3, 4), classes(4, 2, 3)], {"preserve_shape": True}, numeric=False),
    Case(
        "SoftmaxOutput",
        [(3, 4), fixed([0, 2, 2])],
        {"use_ignore": True, "ignore_label": 2, "normalization": "valid"},
        numeric=False,
    ),
    *(
        Case(
            "SoftmaxOutput",
            [(2, 3, 4), classes(3, 2, 4)],
            {"multi_output": True, "smooth_alpha": 0.1, **more},
            numeric=False,
        )
        for more in ({}, {"use_ignore": True, "ignore_label": 1})
    ),
    Case("SoftmaxOutput", [(2, 3, 4), classes(4, 2, 3)], {"preserve_shape": True, "smooth_alpha": 0.1}, numeric=False),
    Case(
        "SoftmaxOutput",
        [(3, 4), fixed([0, 2, 2])],
        {"use_ignore": True, "ignore_label": 2, "smooth_alpha": 0.1},
        numeric=False,
    ),
    Case("softmax_cross_entropy", [_LARGE, fixed([0, 2])], wrt=(0,), gradient=False, note="large"),
    *(
        Case(f"{kind}RegressionOutput", [ties(3, 2), ties(3, 2)], numeric=False, note="ties")
        for kind in ("Linear", "MAE", "Logistic")
    ),
    Case("LinearRegressionOutput", [(4,), (4,)], numeric=False, note="vector"),
    Case("SVMOutput", [(3, 4), classes(4, 3)], numeric=False),
    Case("MakeLoss", [(2, 3)], numeric=False),
    Case("make_loss", [(2, 3, 2)], numeric=False, note="3 axes"),
]

CASES = ACTIVATIONS + NORMALIZATIONS + WINDOWS + OUTPUTS
