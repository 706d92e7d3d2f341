"""BatchNorm under its aliases."""

from tests.op_cases.case import Case, positive

CASES = [
    Case(name, [shape, positive(3), (3,), (3,), positive(3)], {**more, **params}, 2, train=train, note=note,
         # Near outputs of 0 the results differ by rounding; MXNet has no gradient there outside training.
         same_gradient=train)
    for name, more in (("_contrib_BatchNormWithReLU", {}), ("_contrib_SyncBatchNorm", {"key": "layer"}))
    for shape, params, train, note in (
        ((4, 3, 2, 3), {"fix_gamma": False}, True, ""),
        ((4, 3, 2, 2), {"eps": 1e-5, "momentum": 0.5}, True, "images"),
        ((2, 3, 2, 3), {"fix_gamma": False}, False, ""),
    )
]  # fmt: skip
CASES += [
    Case("_contrib_BatchNormWithReLU", [(2, 3, 4), positive(4), (4,), (4,), positive(4)],
         {"fix_gamma": False, "axis": 2}, 2),
    Case("_contrib_SyncBatchNorm", [(4, 3, 5), positive(3), (3,), (3,), positive(3)],
         {"key": "layer", "fix_gamma": False, "output_mean_var": True}, 2, numeric=False, same_gradient=False),
]  # fmt: skip
