"""The neural-network layers."""

from typing import Any

from tests.op_cases.case import Case, apart, classes, fixed, positive, ties

CASES = [
    Case("FullyConnected", [(3, 4), (5, 4), (5,)], {"num_hidden": 5}, second=True),
    Case("FullyConnected", [(3, 2, 2), (5, 4)], {"num_hidden": 5, "no_bias": True}, second=True),
    Case("FullyConnected", [(2, 3, 4), (5, 4), (5,)], {"num_hidden": 5, "flatten": False}, second=True),
    Case("Convolution", [(2, 3, 6, 5), (4, 3, 3, 2), (4,)], {"kernel": (3, 2), "num_filter": 4}, second=True),
    Case("Convolution", [(2, 4, 7, 6), (4, 2, 3, 3)],
         {"kernel": (3, 3), "num_filter": 4, "stride": (2, 1), "pad": (1, 2), "dilate": (1, 2), "num_group": 2,
          "no_bias": True}, second=True),
    Case("Convolution", [(2, 3, 5, 5), (3, 1, 3, 3), (3,)],
         {"kernel": (3, 3), "num_filter": 3, "num_group": 3, "pad": (1, 1)}),
    Case("Convolution", [(2, 2, 9), (3, 2, 3), (3,)], {"kernel": (3,), "num_filter": 3, "stride": (2,), "pad": (1,)},
         second=True),
    Case("Convolution", [(1, 2, 4, 4, 3), (2, 2, 2, 3, 2), (2,)],
         {"kernel": (2, 3, 2), "num_filter": 2, "pad": (1, 0, 0)}),
    Case("Convolution", [(2, 3, 4, 4), (5, 3, 1, 1), (5,)], {"kernel": (1, 1), "num_filter": 5, "stride": (2, 2)}),
    Case("Convolution", [(17, 2, 4, 4), (3, 2, 3, 3), (3,)], {"kernel": (3, 3), "num_filter": 3}, note="chunks"),
    Case("Convolution", [(2, 3, 6, 5), (4, 3, 3, 2), (4,)],
         {"kernel": "(3, 2)", "num_filter": "4", "no_bias": "False"}),
    Case("Deconvolution", [(2, 3, 4, 3), (3, 2, 3, 3)], {"kernel": (3, 3), "num_filter": 2}, second=True),
    Case("Deconvolution", [(2, 4, 3, 4), (4, 1, 3, 3), (2,)],
         {"kernel": (3, 3), "num_filter": 2, "stride": (2, 2), "pad": (1, 1), "adj": (1, 0), "num_group": 2,
          "no_bias": False}, second=True),
    Case("Deconvolution", [(2, 2, 3, 3), (2, 3, 4, 4)],
         {"kernel": (4, 4), "num_filter": 3, "stride": (2, 2), "dilate": (1, 1), "target_shape": (6, 6)}),
    Case("Deconvolution", [(2, 2, 4), (2, 3, 3)], {"kernel": (3,), "num_filter": 3, "stride": (2,)}),
    *(
        Case("Pooling", [apart(2, 3, 7, 6)], {"kernel": kernel, "pool_type": kind, **more}, second=True)
        for kind in ("max", "avg", "sum")
        for kernel, more in list[tuple[tuple[int, int], dict[str, Any]]]([
            ((2, 2), {"stride": (2, 2)}),
            ((3, 2), {}),
            ((3, 3), {"stride": (2, 2), "pad": (1, 1)}),
            ((3, 3), {"stride": (2, 2), "pad": (1, 1), "pooling_convention": "full"}),
            ((2, 2), {"stride": (3, 2), "pooling_convention": "full"}),
        ])
    ),
    Case("Pooling", [apart(2, 3, 7, 6)], {"kernel": (2, 2), "stride": (3, 3), "pooling_convention": "full"},
         numeric=False, note="empty windows"),
    Case("Pooling", [ties(2, 3, 6, 6)], {"kernel": (2, 2), "stride": (2, 2)}, numeric=False, note="ties"),
    Case("Pooling", [ties(2, 3, 6, 6)],
         {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)}, numeric=False, note="ties"),
    Case("Pooling", [(2, 3, 5, 5)],
         {"kernel": (3, 3), "pool_type": "avg", "stride": (2, 2), "pad": (1, 1), "count_include_pad": False}),
    Case("Pooling", [positive(2, 3, 5, 5)], {"kernel": (2, 2), "pool_type": "lp", "p_value": 2, "stride": (2, 2)}),
    Case("Pooling", [positive(2, 3, 5, 5)], {"kernel": (3, 3), "pool_type": "lp", "p_value": 3}),
    Case("Pooling", [apart(2, 3, 5, 4)], {"pool_type": "max", "global_pool": True, "kernel": (1, 1)}),
    Case("Pooling", [(2, 3, 5, 4)], {"pool_type": "avg", "global_pool": True, "kernel": (2, 2), "pad": (1, 1)}),
    Case("Pooling", [apart(2, 3, 7)], {"kernel": (3,), "stride": (2,), "pad": (1,)}, second=True),
    Case("Pooling", [apart(2, 3, 7)], {"kernel": (3,), "stride": (2,), "pooling_convention": "same"}, recorded=False),
    Case("Pooling", [apart(1, 2, 4, 5, 4)], {"kernel": (2, 2, 2), "stride": (2, 2, 1)}, second=True),
    *(
        Case("Activation", [apart(3, 4)], {"act_type": kind}, second=True)
        for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign")
    ),
    Case("LeakyReLU", [apart(3, 4)], {"act_type": "leaky", "slope": 0.1}),
    Case("LeakyReLU", [apart(3, 4)], {"act_type": "elu", "slope": 0.7}),
    Case("LeakyReLU", [apart(3, 4)], {"act_type": "selu"}, same_gradient=False),
    Case("LeakyReLU", [apart(3, 4)], {"act_type": "gelu"}),
    Case("LeakyReLU", [apart(2, 3, 4), positive(3)], {"act_type": "prelu"}, second=True),
    Case("LeakyReLU", [apart(3, 4), positive(1)], {"act_type": "prelu"}, note="shared"),
    Case("LeakyReLU", [apart(3, 4)], {"act_type": "rrelu"}, recorded=False),
    Case("LeakyReLU", [apart(3, 4)], {"act_type": "rrelu"}, train=False, same_gradient=False, outputs=1),
    Case("hard_sigmoid", [apart(5, 6)], {"alpha": 0.3, "beta": 0.4}),
    Case("softmax", [(3, 4)], second=True),
    Case("softmax", [(3, 4, 2)], {"axis": 1, "temperature": 2.0}),
    Case("softmax", [(3, 4), fixed([1, 4, 2])], {"use_length": True}, wrt=(0,), recorded=False),
    Case("softmin", [(3, 4)], {"axis": 0}, second=True),
    Case("log_softmax", [(3, 4)], second=True),
    Case("log_softmax", [(3, 4, 2)], {"axis": 1, "temperature": 0.5}),
    Case("SoftmaxActivation", [(3, 4)]),
    Case("SoftmaxActivation", [(3, 4, 2)], {"mode": "channel"}),
    Case("BatchNorm", [(4, 3, 5), positive(3), (3,), (3,), positive(3)], {"fix_gamma": False}, 2),
    Case("BatchNorm", [(4, 3), positive(3), (3,), (3,), positive(3)], {"eps": 1e-5, "momentum": 0.5}, 2),
    Case("BatchNorm", [(2, 3, 2, 3), positive(3), (3,), (3,), positive(3)], {"fix_gamma": False}, 2, train=False),
    Case("BatchNorm", [(2, 3, 2, 3), positive(3), (3,), (3,), positive(3)],
         {"fix_gamma": False, "use_global_stats": True}, 2),
    Case("BatchNorm", [(2, 3, 4), positive(4), (4,), (4,), positive(4)], {"fix_gamma": False, "axis": -1}, 2),
    Case("LayerNorm", [(3, 4, 5), positive(5), (5,)]),
    Case("LayerNorm", [(3, 4, 5), positive(4), (4,)], {"axis": 1, "eps": 1e-3}),
    Case("RMSNorm", [(3, 4, 5), positive(5)], recorded=False),
    Case("RMSNorm", [(3, 4, 5), positive(4)], {"axis": 1, "eps": 1e-3}, recorded=False),
    Case("InstanceNorm", [(2, 3, 4, 2), positive(3), (3,)]),
    Case("GroupNorm", [(2, 4, 3, 2), positive(2), (2,)], {"num_groups": 2}),
    Case("L2Normalization", [(3, 4, 2)], second=True),
    Case("L2Normalization", [(3, 4, 2)], {"mode": "channel"}),
    Case("L2Normalization", [(3, 4, 2, 2)], {"mode": "spatial"}),
    Case("LRN", [(2, 5, 3, 2)], {"nsize": 3, "alpha": 0.5, "beta": 0.75, "knorm": 1.5}, second=True),
    Case("Dropout", [(4, 5)], {"p": 0.4}, recorded=False, second=True),
    Case("Dropout", [(4, 5, 3)], {"p": 0.4, "axes": (1,)}, recorded=False),
    Case("Dropout", [(4, 5)], {"p": 0.4}, train=False),
    Case("softmax_cross_entropy", [(4, 3), classes(3, 4)], wrt=(0,)),
]  # fmt: skip

# Output layers: their gradients are separate rules, compared with MXNet's.
CASES += [
    *(
        Case("SoftmaxOutput", [(5, 4), fixed([1, 0, 3, -1, 2]) if ignore else classes(4, 5)],
             {"normalization": norm, "grad_scale": 2.0, **({"use_ignore": True, "ignore_label": -1} if ignore else {})},
             numeric=False)
        for norm in ("null", "batch", "valid")
        for ignore in (False, True)
    ),
    *(
        Case("SoftmaxOutput", [(2, 4, 3, 2), classes(4, 2, 3, 2)],
             {"multi_output": True, "normalization": norm, "use_ignore": True, "ignore_label": 2}, numeric=False)
        for norm in ("null", "batch", "valid")
    ),
    Case("SoftmaxOutput", [(2, 3, 4), classes(4, 2, 3)],
         {"preserve_shape": True, "normalization": "batch"}, numeric=False),
    Case("SoftmaxOutput", [(5, 4), positive(5, 4)], {"grad_scale": 3.0}, numeric=False, note="probabilities"),
    Case("SoftmaxOutput", [(5, 4), classes(4, 5)], {"smooth_alpha": 0.2}, numeric=False),
    Case("SoftmaxOutput", [(5, 4), classes(4, 5)], {"out_grad": True}, numeric=False, same_gradient=False),
    *(
        Case(f"{kind}RegressionOutput", [shape, label], {"grad_scale": 1.5}, numeric=False)
        for kind in ("Linear", "MAE", "Logistic")
        for shape, label in [((4, 3), (4, 3)), ((4, 1), (4,)), ((2, 3, 2), (2, 3, 2))]
    ),
    Case("SVMOutput", [(5, 4), classes(4, 5)], {"margin": 0.7, "regularization_coefficient": 0.5}, numeric=False),
    Case("SVMOutput", [(5, 4), classes(4, 5)], {"use_linear": True}, numeric=False),
    *(
        Case("MakeLoss", [(4, 3)], {"grad_scale": 2.0, "normalization": norm, "valid_thresh": 0.2}, numeric=False)
        for norm in ("null", "batch", "valid")
    ),
    Case("make_loss", [(4, 3)], numeric=False),
]  # fmt: skip
