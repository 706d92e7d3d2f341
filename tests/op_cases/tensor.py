"""The operators on shapes, axes, indices and matrices."""

from typing import Any

import numpy as np

from tests.op_cases.case import Case, apart, classes, fixed, positive, ties

_AXES: list[dict[str, Any]] = [
    {},
    {"axis": 1},
    {"axis": (0, 2)},
    {"axis": (-1,), "keepdims": True},
    {"axis": 1, "exclude": True},
]


def _lower(*shape):
    """Return positive definite matrices."""

    def make(rng):
        a = rng.standard_normal(shape)
        return a @ a.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])

    return make


REDUCTIONS = [
    *(Case(name, [(2, 3, 4)], params, second=True) for name in ("sum", "mean") for params in _AXES),
    *(Case(name, [positive(2, 3, 2)], params) for name in ("prod", "nansum", "nanprod") for params in _AXES),
    *(Case(name, [apart(2, 3, 4)], params) for name in ("max", "min") for params in _AXES),
    Case("max", [ties(3, 4)], {"axis": 1}, numeric=False, note="ties"),
    Case("nansum", [fixed([[1.0, np.nan], [2.0, 3.0]])], {"axis": 0}, numeric=False, note="nan"),
    Case("nanprod", [fixed([[2.0, np.nan], [2.0, 3.0]])], {"axis": 0}, numeric=False, note="nan"),
    Case("sum", [(2, 3)], {"axis": ()}, note="empty"),
    *(
        Case("norm", [apart(2, 3, 4)], {"ord": order, **params})
        for order in (1, 2)
        for params in ({}, {"axis": 1}, {"axis": (0, 2), "keepdims": True})
    ),
    *(
        Case(name, [apart(2, 3, 4)], params, gradient=False)
        for name in ("argmax", "argmin")
        for params in ({}, {"axis": 1}, {"axis": -1, "keepdims": True})
    ),
    Case("argmax_channel", [apart(3, 4)], gradient=False),
    Case("broadcast_to", [(2, 1, 3)], {"shape": (2, 4, 3)}, second=True),
    Case("broadcast_to", [(2, 1, 3)], {"shape": (0, 4, 0)}),
    Case("broadcast_axis", [(1, 3, 1)], {"axis": (0, 2), "size": (2, 4)}, second=True),
    Case("broadcast_like", [(2, 1, 3), (2, 4, 3)], wrt=(0,), second=True),
    Case("broadcast_like", [(2, 1, 3), (5, 4)], {"lhs_axes": (1,), "rhs_axes": (0,)}, wrt=(0,)),
]

SHAPES = [
    Case("Reshape", [(2, 3, 4)], {"shape": (4, -1)}, second=True),
    *(
        Case("Reshape", [(2, 3, 4)], {"shape": codes, "reverse": back})
        for codes, back in [
            ((0, -1), False), ((-2,), False), ((-3, 0), False), ((-4, 1, 2, -2), False), ((0, -4, -1, 3, 0), False),
            ((-1, 0), True), ((0, -3), False), ((6, 1, -1), False),
        ]
    ),
    Case("Flatten", [(2, 3, 4)], second=True),
    Case("reshape_like", [(2, 6), (3, 4)], wrt=(0,), second=True),
    Case("reshape_like", [(12, 5), (3, 4, 2)],
         {"lhs_begin": 0, "lhs_end": 1, "rhs_begin": 0, "rhs_end": 2}, wrt=(0,)),
    Case("expand_dims", [(2, 3)], {"axis": 1}, second=True),
    Case("expand_dims", [(2, 3)], {"axis": -1}),
    Case("squeeze", [(1, 3, 1)], second=True),
    Case("squeeze", [(1, 3, 1)], {"axis": 2}),
    Case("transpose", [(2, 3, 4)], second=True),
    Case("transpose", [(2, 3, 4)], {"axes": (1, 2, 0)}, second=True),
    Case("SwapAxis", [(2, 3, 4)], {"dim1": 0, "dim2": 2}, second=True),
    Case("reverse", [(2, 3, 4)], {"axis": (0, 2)}, second=True),
    Case("depth_to_space", [(2, 8, 2, 3)], {"block_size": 2}, second=True),
    Case("space_to_depth", [(2, 3, 4, 6)], {"block_size": 2}, second=True),
    Case("slice", [(4, 5)], {"begin": (1, None), "end": (3, -1)}, second=True),
    Case("slice", [(4, 5)], {"begin": (None, 4), "end": (None, 1), "step": (2, -1)}),
    Case("slice", [(4, 5)], {"begin": (-3,), "end": (-1,)}),
    Case("slice_axis", [(4, 5)], {"axis": 1, "begin": 1, "end": None}, second=True),
    Case("slice_axis", [(4, 5)], {"axis": -2, "begin": -3, "end": -1}),
    Case("slice_like", [(4, 5), (2, 3)], wrt=(0,), second=True),
    Case("slice_like", [(4, 5), (9, 3)], {"axes": (1,)}, wrt=(0,)),
    Case("diag", [(4,)], {"k": 1}, second=True),
    Case("diag", [(3, 4)], {"k": -1}, second=True),
    Case("diag", [(2, 3, 4)], {"axis1": 0, "axis2": 2}),
    Case("diag", [(2, 3, 4)], {"axis1": -1, "axis2": 1, "k": 1}),
    Case("tile", [(2, 3)], {"reps": (2, 1, 3)}, second=True),
    Case("tile", [(2, 3, 2)], {"reps": (2,)}),
    Case("repeat", [(2, 3)], {"repeats": 2}, second=True),
    Case("repeat", [(2, 3, 2)], {"repeats": 3, "axis": 1}),
    *(
        Case("Pad", [(2, 2, 3, 4)], {"mode": mode, "pad_width": (0, 0, 0, 0, 1, 2, 2, 1), **more}, second=not more)
        for mode, more in [("constant", {"constant_value": 1.5}), ("constant", {}), ("edge", {}), ("reflect", {})]
    ),
    Case("Concat", [(2, 3), (2, 1), (2, 2)], second=False),
    Case("Concat", [(2, 3), (1, 3)], {"dim": 0}),
    Case("Concat", [(2, 3)], note="one"),
    Case("stack", [(2, 3), (2, 3)], {"axis": 1}, second=True),
    Case("stack", [(2, 3), (2, 3)], {"axis": -1}),
    Case("SliceChannel", [(2, 6)], {"num_outputs": 3}),
    Case("SliceChannel", [(2, 3)], {"num_outputs": 3, "squeeze_axis": True}),
    Case("SliceChannel", [(4, 2)], {"num_outputs": 2, "axis": 0}),
    Case("SliceChannel", [(2, 3)], {"num_outputs": 1}, note="one"),
    Case("_split_v2", [(2, 6)], {"indices": (0, 1, 4), "axis": 1}),
    Case("_split_v2", [(2, 6)], {"sections": 2, "axis": 1}, recorded=False),
    Case("zeros_like", [(2, 3)]),
    Case("ones_like", [(2, 3)]),
    Case("shape_array", [(2, 3)], gradient=False),
    Case("size_array", [(2, 3)], gradient=False),
    Case("Cast", [(2, 3)], {"dtype": "float64"}, second=True),
]  # fmt: skip

INDICES = [
    Case("take", [(4, 3), classes(4, 2, 5)], wrt=(0,), second=True),
    Case("take", [(2, 4, 3), classes(4, 3)], {"axis": 1}, wrt=(0,), second=True),
    Case("take", [(2, 4, 3), fixed([-5, 7, 1])], {"axis": -1}, wrt=(0,), note="outside"),
    Case("take", [(4, 3), fixed([-5, 7, 1])], {"mode": "wrap"}, wrt=(0,)),
    Case("Embedding", [classes(5, 2, 3), (5, 4)], {"input_dim": 5, "output_dim": 4}, wrt=(1,), second=True),
    Case("Embedding", [fixed([-1, 9, 2]), (5, 4)], {"input_dim": 5, "output_dim": 4}, wrt=(1,), note="outside"),
    Case("batch_take", [(3, 4), classes(4, 3)], wrt=(0,), second=True, recorded=False),
    Case("pick", [(3, 4), classes(4, 3)], wrt=(0,), second=True),
    Case("pick", [(3, 4), classes(3, 1, 4)], {"axis": 0, "keepdims": True}, wrt=(0,)),
    Case("pick", [(2, 3, 4), fixed([[-1, 9, 2, 1], [5, 0, 1, 2]])], {"axis": 1, "mode": "wrap"}, wrt=(0,)),
    Case("one_hot", [classes(4, 2, 3)], {"depth": 4, "on_value": 2.0, "off_value": -1.0}, gradient=False),
    Case("one_hot", [fixed([-1, 0, 5])], {"depth": 4}, gradient=False, note="outside"),
    Case("gather_nd", [(3, 4), fixed([[0, 2, 0], [1, 3, 1]])], wrt=(0,), second=True),
    Case("gather_nd", [(3, 4), fixed([[0, 2, 0]])], wrt=(0,)),
    Case("scatter_nd", [(3,), fixed([[0, 2, 1], [1, 3, 1]])], {"shape": (3, 4)}, wrt=(0,), second=True),
    Case("scatter_nd", [(2, 4), fixed([[0, 2]])], {"shape": (3, 4)}, wrt=(0,)),
    Case("_ravel_multi_index", [fixed([[0, 2, 1], [1, 3, 0]])], {"shape": (3, 4)}, gradient=False),
    Case("_unravel_index", [fixed([1, 11, 4])], {"shape": (3, 4)}, gradient=False),
    Case("_advanced_index", [(3, 4), fixed([0, 2, 0]), fixed([1, 1, 1])],
         {"num_args": 3, "key": "@,@", "shape": (3,)}, wrt=(0,), second=True, recorded=False),
    Case("_advanced_index", [(3, 4, 2), fixed([0, 2])],
         {"num_args": 2, "key": "1:3,@", "shape": (2, 2, 2)}, wrt=(0,), recorded=False),
    *(
        Case("sort", [apart(3, 4)], {"axis": axis, "is_ascend": ascending}, second=True)
        for axis, ascending in [(-1, True), (0, False), (None, True)]
    ),
    *(
        Case("argsort", [apart(3, 4)], {"axis": axis, "is_ascend": ascending}, gradient=False)
        for axis, ascending in [(-1, True), (0, False), (None, True)]
    ),
    *(
        Case("topk", [apart(3, 4)], {"k": 2, "ret_typ": kind, "axis": axis}, gradient=kind == "value")
        for kind in ("value", "indices", "mask")
        for axis in (-1, 0)
    ),
    Case("topk", [apart(3, 4)], {"k": 2, "ret_typ": "both", "is_ascend": True}, gradient=False),
    Case("topk", [apart(3, 4)], {"k": 3, "ret_typ": "value", "axis": None}),
    Case("SequenceMask", [(3, 2, 2), fixed([1, 3])], {"use_sequence_length": True, "value": 0.5}, wrt=(0,)),
    Case("SequenceMask", [(2, 3, 2), fixed([1, 3])], {"use_sequence_length": True, "axis": 1}, wrt=(0,), second=True),
    Case("SequenceMask", [(3, 2, 2)]),
    Case("SequenceLast", [(3, 2, 2), fixed([1, 3])], {"use_sequence_length": True}, wrt=(0,), second=True),
    Case("SequenceLast", [(3, 2, 2)], recorded=False),  # MXNet crashes
    Case("SequenceReverse", [(3, 2, 2), fixed([2, 3])], {"use_sequence_length": True}, wrt=(0,), second=True),
    Case("SequenceReverse", [(3, 2, 2)]),
]  # fmt: skip

MATRICES = [
    Case("dot", [(3, 4), (4, 2)], second=True),
    Case("dot", [(4, 3), (2, 4)], {"transpose_a": True, "transpose_b": True}, second=True),
    Case("dot", [(3, 4), (2, 4)], {"transpose_b": True}, second=True),
    Case("dot", [(4,), (4,)], second=True),
    Case("dot", [(3, 4), (4,)], second=True),
    Case("dot", [(2, 3, 4), (4, 5)], second=True),
    Case("dot", [(2, 3, 4), (4, 2, 3)]),
    Case("dot", [(4, 2, 3), (4, 5)], {"transpose_a": True}, second=True),
    *(
        Case("batch_dot", [(2, *one), (2, *other)], {"transpose_a": ta, "transpose_b": tb}, second=True)
        for one, other, ta, tb in [
            ((3, 4), (4, 5), False, False), ((4, 3), (4, 5), True, False), ((3, 4), (5, 4), False, True),
            ((4, 3), (5, 4), True, True),
        ]
    ),
    Case("linalg_gemm2", [(2, 3, 4), (2, 4, 5)], {"alpha": 1.5}, second=True),
    Case("linalg_gemm2", [(4, 3), (5, 4)], {"transpose_a": True, "transpose_b": True}),
    Case("linalg_gemm", [(3, 4), (4, 5), (3, 5)], {"alpha": 1.5, "beta": 0.5}, second=True),
    Case("linalg_syrk", [(2, 3, 4)], {"alpha": 0.5}, second=True),
    Case("linalg_syrk", [(2, 3, 4)], {"transpose": True}),
    Case("linalg_sumlogdiag", [_lower(2, 3, 3)], second=True),
]  # fmt: skip

CREATION = [
    Case("_zeros", [], {"shape": (2, 3)}, gradient=False),
    Case("_ones", [], {"shape": "(2, 3)"}, gradient=False),
    Case("_full", [], {"shape": (2,), "value": 1.5}, gradient=False),
    Case("_arange", [], {"start": 1.0, "stop": 4.0, "step": 0.5}, gradient=False),
    Case("_arange", [], {"start": 5.0, "stop": 0.0, "step": -2.0, "repeat": 2}, gradient=False),
    Case("_eye", [], {"N": 3, "M": 4, "k": 1}, gradient=False),
    Case("_linspace", [], {"start": 0.0, "stop": 1.0, "num": 5}, gradient=False),
    Case("_contrib_arange_like", [(2, 3)], {"start": 1.0, "step": 2.0}, gradient=False, recorded=False),
    Case("_contrib_arange_like", [(2, 3)], {"axis": 1}, gradient=False, recorded=False),
]

CASES = REDUCTIONS + SHAPES + INDICES + MATRICES + CREATION
