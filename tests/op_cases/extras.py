"""Statistics, assignments, columns, mixed precision, transforms, legacy layers, attention and point processes."""

from typing import Any

import numpy as np

from tests.op_cases.case import Case, apart, classes, fixed, positive, ties

_CUMSUM: list[dict[str, Any]] = [{}, {"axis": 0}, {"axis": 2}]

STATISTICS = [
    *(Case("cumsum", [(2, 3, 2)], ways, second=True) for ways in _CUMSUM),
    Case("cumsum", [(2, 3)], {"axis": 1, "dtype": "float64"}),
    *(
        Case("moments", [(2, 3, 4)], {"axes": axes, "keepdims": len(axes) == 2})
        for axes in [(0,), (0, 2), (-1,), (0, 1, 2)]
    ),
    Case("moments", [(2, 3)], recorded=False),
    Case("_contrib_getnnz", [(3, 4)], {"axis": 1}, gradient=False, recorded=False),
    Case("_sparse_retain", [(4, 3), fixed([0.0, 2.0])], wrt=(0,), recorded=False),
    Case("_square_sum", [(2, 3)], {"axis": 1, "keepdims": True}, second=True, recorded=False),
    Case("multi_sum_sq", [(2, 3), (4,)], {"num_arrays": 2}, gradient=False),
    Case("_histogram", [fixed([0.0, 0.5, 2.9, 3.0, 3.1, -0.1, 1.0])], {"bin_cnt": 3, "range": (0, 3)}, gradient=False),
    Case("_histogram", [(20,), fixed([0.0, 1.0, 2.0, 5.0])], gradient=False),
]

_SLICE = {"begin": (1, None), "end": (3, -1), "step": (None, 2)}

ASSIGNMENT = [
    Case("_slice_assign", [(4, 5), (2, 2)], _SLICE, second=True, gradient=True, recorded=False, note="gradient"),
    Case("_slice_assign", [(4, 5), (2, 2)], _SLICE, gradient=False),
    Case("_slice_assign_scalar", [(4, 5)], {**_SLICE, "scalar": 1.5}, second=True, recorded=False, note="gradient"),
    Case("_slice_assign_scalar", [(4, 5)], {**_SLICE, "scalar": 1.5}, gradient=False),
    Case("_scatter_set_nd", [(3, 4), (2,), fixed([[0, 2], [1, 3]])], {"shape": (3, 4)}, wrt=(0, 1), second=True,
         recorded=False),
    Case("_scatter_set_nd", [(3, 4), (2, 4), fixed([[0, 2]])], {"shape": (3, 4)}, wrt=(0, 1), recorded=False),
    Case("_contrib_index_copy", [(4, 3), fixed([2, 0]), (2, 3)], wrt=(0, 2), second=True),
    Case("fill_element_0index", [(3, 4), (3,), fixed([1, 0, 3])], gradient=False),
    Case("choose_element_0index", [(3, 4), fixed([1, 0, 3])], gradient=False),
    Case("_onehot_encode", [fixed([1, 0, 2]), (3, 4)], gradient=False, recorded=False),
]  # fmt: skip

COLUMNS = [
    Case("im2col", [(2, 3, 4, 5)], {"kernel": (2, 3)}, second=True),
    Case("im2col", [(2, 3, 5, 6)], {"kernel": (2, 3), "stride": (2, 1), "dilate": (1, 2), "pad": (1, 2)}, second=True),
    Case("im2col", [(2, 3, 6)], {"kernel": (3,), "stride": (2,)}, recorded=False),
    Case("im2col", [(1, 2, 3, 4, 3)], {"kernel": (2, 2, 3), "pad": (1, 0, 1)}, recorded=False),
    Case("col2im", [(2, 12, 12)], {"output_size": (4, 5), "kernel": (2, 2)}, second=True),
    Case("col2im", [(2, 6, 9)],
         {"output_size": (5, 6), "kernel": (2, 3), "stride": (2, 2), "dilate": (1, 1), "pad": (1, 1)}, second=True),
]  # fmt: skip

PRECISION = [
    Case("_cast_like", [(2, 3), (1,)], wrt=(0,), recorded=False),
    Case("amp_cast", [(2, 3)], {"dtype": "float64"}, second=True, recorded=False),
    Case("amp_multicast", [(2, 3), (4,)], {"num_outputs": 2}),
    Case("all_finite", [(2, 3)], gradient=False),
    Case("all_finite", [fixed([1.0, np.nan])], gradient=False, note="nan"),
    Case("multi_all_finite", [(2, 3), (2,)], {"num_arrays": 2}, gradient=False),
    Case("multi_all_finite", [(2, 3), fixed([np.inf])], {"num_arrays": 2}, gradient=False, note="infinite"),
    Case("reset_arrays", [(2, 3), (4,)], {"num_arrays": 2}, gradient=False),
]

SECOND_NAMES = [
    Case("_copyto", [(2, 3)], second=True, recorded=False),
    Case("_scatter_elemwise_div", [(2, 3), positive(2, 3)], second=True, recorded=False, note="gradient"),
    Case("_scatter_elemwise_div", [(2, 3), positive(2, 3)], gradient=False),
    Case("_scatter_plus_scalar", [(2, 3)], {"scalar": 1.5}),
    Case("_scatter_minus_scalar", [(2, 3)], {"scalar": 1.5}),
    Case("cast_storage", [(2, 3)], {"stype": "default"}, second=True),
    Case("_contrib_SparseEmbedding", [classes(5, 2, 3), (5, 4)], {"input_dim": 5, "output_dim": 4}, wrt=(1,),
         recorded=False, note="gradient"),
    Case("_contrib_SparseEmbedding", [classes(5, 2, 3), (5, 4)], {"input_dim": 5, "output_dim": 4}, gradient=False),
    Case("_rnn_param_concat", [(3,), (2,)], {"dim": 0}, second=True),
    Case("_identity_with_attr_like_rhs", [(2, 3), (2, 3)], wrt=(0,), second=True),
]  # fmt: skip

TRANSFORMS = [
    Case("_contrib_fft", [(2, 5)], second=True, recorded=False),
    Case("_contrib_ifft", [(2, 3, 8)], second=True, recorded=False),
    Case("_contrib_count_sketch", [(3, 5), fixed([[0, 2, 1, 2, 0]]), fixed([[1, -1, 1, 1, -1]])], {"out_dim": 4},
         wrt=(0,), second=True, recorded=False),
    Case("khatri_rao", [(2, 3), (4, 3), (2, 3)], recorded=False, note="gradient"),
    Case("khatri_rao", [(2, 3), (4, 3), (2, 3)], gradient=False),
]  # fmt: skip

LAYERS = [
    Case("Crop", [(2, 3, 5, 6)], {"h_w": (2, 3), "offset": (1, 2)}, second=True),
    Case("Crop", [(2, 3, 5, 6)], {"h_w": (2, 3), "center_crop": True}),
    Case("Crop", [(2, 3, 5, 6), (1, 1, 3, 2)], {"offset": (2, 0)}, wrt=(0,), second=True),
    Case("IdentityAttachKLSparseReg", [lambda rng: rng.uniform(0.1, 0.9, (4, 3)), fixed([0.2, 0.1, 0.5])],
         auxiliary=1, numeric=False, recorded=False),
]  # fmt: skip

_HEADS: dict[str, Any] = {"heads": 2}

ATTENTION = [
    Case("_contrib_interleaved_matmul_selfatt_qk", [(3, 2, 18)], _HEADS, second=True),
    Case("_contrib_interleaved_matmul_selfatt_valatt", [(3, 2, 18), (4, 3, 3)], _HEADS, second=True),
    Case("_contrib_interleaved_matmul_encdec_qk", [(3, 2, 6), (4, 2, 12)], _HEADS, second=True),
    Case("_contrib_interleaved_matmul_encdec_valatt", [(4, 2, 12), (4, 3, 4)], _HEADS, second=True),
]

CONTRIB = [
    Case("_contrib_allclose", [ties(3, 4), ties(3, 4)], gradient=False),
    Case("_contrib_allclose", [fixed([1.0, np.nan]), fixed([1.0, np.nan])], gradient=False, note="nan"),
    Case("_contrib_allclose", [fixed([1.0, np.nan]), fixed([1.0, np.nan])], {"equal_nan": False}, gradient=False),
    *(Case("_contrib_index_array", [(2, 3)], ways, gradient=False) for ways in [{}, {"axes": (-1, 0)}]),
    Case("_contrib_div_sqrt_dim", [(2, 3)], second=True),
    Case("_contrib_gradientmultiplier", [(2, 3)], {"scalar": -0.5}, numeric=False),
    Case("_contrib_backward_gradientmultiplier", [(2, 3)], {"scalar": -0.5}, second=True, recorded=False),
    Case("_contrib_quadratic", [(2, 3)], {"a": 1.5, "b": -2.0, "c": 3.0}, second=True),
    Case("_contrib_backward_quadratic", [(2, 3), (2, 3)], {"a": 1.5, "b": -2.0}, second=True, recorded=False),
    Case("_contrib_backward_index_copy", [(4, 3), fixed([2, 0])], wrt=(0,), recorded=False),
    Case("_contrib_round_ste", [apart(3, 4)], numeric=False),
    Case("_contrib_sign_ste", [apart(3, 4)], numeric=False),
]


_PROCESS = [positive(3, 2), positive(2), positive(2), positive(3, 2), positive(3, 4), classes(2, 3, 4),
            fixed([4, 2, 0]), fixed([7.0, 6.0, 5.0])]  # fmt: skip

PROCESSES = [
    Case("_contrib_hawkesll", _PROCESS, dtypes={5: "int32"}, wrt=(0, 1, 2), numeric=False),
    Case("_contrib_backward_hawkesll", [(3,), *_PROCESS], gradient=False, recorded=False),
]

_FUSED: dict[str, Any] = {"differentiable": True, "scale": 0.6}

FUSED = [
    Case("_fused_attention", [(2, 3, 2, 1, 4), *[(2, 5, 2, 1, 4)] * 2], _FUSED, recorded=False),
    Case("_fused_attention", [(2, 3, 2, 1, 4), (2, 5, 2, 1, 4), (2, 5, 2, 1, 3), (1, 2, 3, 5)],
         {**_FUSED, "biased": True}, wrt=(0, 1, 2), recorded=False),
    Case("_fused_attention", [(3, 2, 2, 3, 4)], {**_FUSED, "layout": "TNC", "parts": (3,)}, recorded=False),
    Case("_fused_attention", [(3, 2, 2, 1, 4), (5, 2, 2, 2, 4)], {**_FUSED, "layout": "TNC", "parts": (1, 2)},
         recorded=False),
]  # fmt: skip

NOT_IN_MXNET = [
    Case("multi_sum_sq", [(2, 3), (4,)], {"num_arrays": 2}, note="gradient", numeric=False, recorded=False),
    Case("fill_element_0index", [(3, 4), (3,), fixed([1, 0, 3])], note="gradient", wrt=(0, 1), second=True,
         recorded=False),
    Case("_slope_of_relu", [apart(3, 4)], gradient=False, recorded=False),
]  # fmt: skip

CASES = [
    *STATISTICS, *ASSIGNMENT, *COLUMNS, *PRECISION, *SECOND_NAMES, *TRANSFORMS, *LAYERS, *ATTENTION, *CONTRIB,
    *PROCESSES, *FUSED, *NOT_IN_MXNET,
]  # fmt: skip
