"""More calls of the elementwise, shape, index and reduction operators: other parameters, edges, special values."""

from typing import Any

import numpy as np

from tests.op_cases.case import Case, apart, classes, fixed, positive, ties

# -- elementwise -------------------------------------------------------------------------------------------

_SPECIAL = fixed([-np.inf, -2.5, -1.0, -0.5, -0.0, 0.0, 0.25, 1.0, 1.5, 3.0, np.inf, np.nan])
_UNARY = [
    "negative", "abs", "sign", "round", "rint", "ceil", "floor", "trunc", "fix", "square", "sqrt", "rsqrt", "cbrt",
    "rcbrt", "exp", "expm1", "log", "log10", "log2", "log1p", "sin", "cos", "tan", "arcsin", "arccos", "arctan",
    "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "degrees", "radians", "reciprocal", "relu", "sigmoid",
    "softsign", "erf", "logical_not", "_copy", "BlockGrad", "smooth_l1",
]  # fmt: skip
_BINARY = ["add", "sub", "mul", "div", "mod", "power", "maximum", "minimum", "hypot", "equal", "not_equal", "greater",
           "greater_equal", "lesser", "lesser_equal", "logical_and", "logical_or", "logical_xor"]  # fmt: skip
_LEFT = fixed([np.inf, 1.0, -2.0, 0.0, -7.5, 7.5, 3.0, -3.0, np.nan, 2.0, -1.0, 0.0])
_RIGHT = fixed([1.0, 0.0, 0.0, 0.0, 2.0, -2.0, 3.0, np.inf, 1.0, np.nan, -2.0, -1.0])
_SCALARS = ["_plus", "_minus", "_rminus", "_mul", "_div", "_rdiv", "_mod", "_rmod", "_power", "_rpower", "_maximum",
            "_minimum", "_hypot", "_equal", "_greater", "_lesser_equal", "_logical_and", "_logical_or",
            "_logical_xor"]  # fmt: skip

ELEMENTWISE = [
    *(Case(name, [_SPECIAL], gradient=False, note="special") for name in _UNARY),
    *(Case(f"broadcast_{name}", [_LEFT, _RIGHT], gradient=False, note="special") for name in _BINARY),
    *(
        Case(f"{name}_scalar", [_LEFT], {"scalar": scalar}, gradient=False, note="special")
        for name in _SCALARS
        for scalar in (-2.0, 0.0)
    ),
    # Points at which the gradient is a convention: 0 and equal numbers.
    *(
        Case(name, [fixed([-1.0, 0.0, 2.0])], numeric=False, note="at 0")
        for name in ("abs", "relu", "sign", "softsign")
    ),
    *(
        Case(f"broadcast_{name}", [ties(3, 4), ties(3, 4)], numeric=False, note="ties")
        for name in ("maximum", "minimum")
    ),
    *(Case(f"_{name}_scalar", [ties(3, 4)], {"scalar": 1.0}, numeric=False, note="ties")
      for name in ("maximum", "minimum")),
    Case("broadcast_add", [(4,), (3, 4)]),
    Case("broadcast_mul", [(2, 3, 1), (1, 1, 4)]),
    Case("broadcast_hypot", [apart(3, 4), apart(4)]),
    Case("_power_scalar", [positive(3)], {"scalar": -2.0}),
    Case("_rpower_scalar", [(3, 2)], {"scalar": 2.5}),
    Case("_mod_scalar", [fixed([-5.0, 5.0, -0.5, 7.25])], {"scalar": -3.0}, numeric=False, note="signs"),
    Case("_rmod_scalar", [fixed([-5.0, 5.0, -0.5, 7.25])], {"scalar": 3.0}, numeric=False, note="signs"),
    Case("broadcast_mod", [fixed([-5.0, 5.0, -5.0, 5.0]), fixed([3.0, 3.0, -3.0, -3.0])], numeric=False, note="signs"),
    Case("smooth_l1", [apart(3, 4)]),
    Case("smooth_l1", [apart(3, 4)], {"scalar": 0.5}),
    Case("clip", [fixed([-2.0, -1.0, 0.5, 1.0, 2.0])], {"a_min": -1.0, "a_max": 1.0}, numeric=False, note="bounds"),
    Case("clip", [_SPECIAL], {"a_min": -1.0, "a_max": 1.0}, gradient=False, note="special"),
    Case("where", [fixed([[np.nan, 0.0], [-0.0, 2.0]]), (2, 2), (2, 2)], wrt=(1, 2), note="special"),
    Case("add_n", [(2, 3)] * 5),
    Case("ElementWiseSum", [(2,), (2,)]),
    *(Case("Cast", [fixed([-1.7, 0.0, 1.2, 3.9])], {"dtype": kind}, gradient=False)
      for kind in ("int32", "int64", "uint8", "int8", "float16", "float32")
      if kind != "uint8"),
    Case("Cast", [fixed([0.0, 1.2, 3.9])], {"dtype": "uint8"}, gradient=False),
]  # fmt: skip

# -- reductions and broadcasting ---------------------------------------------------------------------------

_AXES: list[dict[str, Any]] = [
    {"axis": -2},
    {"axis": (1, -1)},
    {"axis": (0, 1), "keepdims": True},
    {"axis": (0, 2), "exclude": True},
    {"axis": 0, "exclude": True, "keepdims": True},
    {"axis": (), "keepdims": True},
    {"keepdims": True},
]
_WITH_NAN = fixed([[1.0, np.nan, -3.0], [4.0, 0.5, 6.0]])

REDUCTIONS = [
    *(
        Case(name, [apart(2, 3, 4)], params)
        for name in ("sum", "mean", "nansum", "max", "min")
        for params in _AXES
    ),
    *(Case(name, [positive(2, 3, 2)], params) for name in ("prod", "nanprod") for params in _AXES),
    *(Case(name, [(5,)], note="vector") for name in ("sum", "mean", "prod", "max", "min", "norm")),
    *(Case(name, [_WITH_NAN], {"axis": 1}, gradient=False, note="nan") for name in ("sum", "mean", "max", "min")),
    Case("prod", [fixed([[1.0, 0.0, 3.0], [0.0, 0.0, 2.0]])], {"axis": 1}, gradient=False, note="zeros"),
    *(Case(name, [(2, 3)], {"axis": 1}) for name in ("sum_axis", "max_axis", "min_axis")),
    *(
        Case("norm", [apart(2, 3, 4)], params)
        for params in ({"axis": -1}, {"ord": 1, "axis": (0, 1)}, {"axis": (1, 2), "keepdims": True})
    ),
    Case("norm", [apart(2, 3)], {"out_dtype": "float64"}, gradient=False, recorded=False),
    Case("norm", [fixed([[0.0, 0.0], [3.0, 4.0]])], {"axis": 1}, numeric=False, gradient=False, note="zeros"),
    *(
        Case(name, [ties(3, 4)], params, gradient=False, note="ties")
        for name in ("argmax", "argmin")
        for params in ({}, {"axis": 0}, {"axis": -1}, {"keepdims": True})
    ),
    Case("argmax_channel", [ties(3, 4)], gradient=False, note="ties"),
    Case("argmax_channel", [apart(2, 3, 4)], gradient=False),
    Case("broadcast_to", [(3, 1)], {"shape": (3, 5)}),
    Case("broadcast_to", [(1, 1, 2)], {"shape": (4, 3, 2)}),
    Case("broadcast_axis", [(1, 3, 1)], {"axis": 2, "size": 3}),
    Case("broadcast_axes", [(1, 3, 1)], {"axis": (2, 0), "size": (3, 2)}),
    Case("broadcast_like", [(1, 3), (2, 3)], wrt=(0,)),
    Case("broadcast_like", [(2, 1, 3), (5, 4)], {"lhs_axes": (-2,), "rhs_axes": (-1,)}, wrt=(0,)),
]  # fmt: skip

# -- shapes ------------------------------------------------------------------------------------------------

_RESHAPES: list[tuple[tuple[int, ...], tuple[int, ...], bool]] = [
    ((2, 3, 4), (4, 0, 2), False), ((2, 3, 4), (2, 0, 0), False), ((2, 3, 4), (6, 1, -1), False),
    ((2, 3, 4), (3, -1, 8), False), ((2, 3, 4), (-1,), False), ((2, 3, 4), (2, -2), False),
    ((2, 3, 4), (-2, 1, 1), False), ((2, 3, 4), (-3, 4), False), ((2, 3, 4, 5), (-3, -3), False),
    ((2, 3, 4), (0, -3), False), ((2, 3, 4), (-3, -2), False), ((2, 3, 4), (-4, 1, 2, -2), False),
    ((2, 3, 4), (2, -4, -1, 3, -2), False), ((10, 5, 4), (-1, 0), True), ((10, 5, 4), (-1, 0), False),
    ((2, 3, 4), (0, 0, 2, -1, -4), True), ((2, 3, 4), (0, -3), True), ((8, 3), (2, -1, -4, 0), True),
]  # fmt: skip

SHAPES = [
    *(Case("Reshape", [shape], {"shape": codes, "reverse": back}, note=str(shape)) for shape, codes, back in _RESHAPES),
    Case("Reshape", [(2, 3, 4)], {"target_shape": (6, 0)}),
    Case("Reshape", [(2, 3, 4)], {"target_shape": (2, 0), "keep_highest": True}),
    Case("Flatten", [(3,)], note="vector"),
    Case("Flatten", [(2, 3, 2, 2)]),
    Case("reshape_like", [(30, 7), (15, 2, 4)], {"lhs_begin": 0, "lhs_end": 1, "rhs_begin": 0, "rhs_end": 2}, wrt=(0,)),
    Case("reshape_like", [(3, 5), (1, 15, 4)], {"lhs_begin": 0, "lhs_end": None, "rhs_begin": 1, "rhs_end": 2},
         wrt=(0,)),
    Case("reshape_like", [(2, 12), (5, 3, 4)], {"lhs_begin": -1, "lhs_end": 2, "rhs_begin": -2, "rhs_end": 3},
         wrt=(0,)),
    *(Case("expand_dims", [(2, 3)], {"axis": axis}) for axis in (0, 2, -2, -3)),
    Case("squeeze", [(1, 3, 1, 2)], {"axis": (0, 2)}),
    Case("squeeze", [(1, 3, 1)], {"axis": -1}),
    Case("squeeze", [(1, 1)], note="all ones"),
    Case("transpose", [(2, 3, 4)], {"axes": (-1, 0, 1)}, recorded=False),
    Case("transpose", [(5,)], note="vector"),
    Case("SwapAxis", [(2, 3, 4)], {"dim1": -1, "dim2": 0}),
    Case("SwapAxis", [(2, 3, 4)], {"dim1": 1, "dim2": 1}),
    Case("reverse", [(2, 3, 4)], {"axis": 1}),
    Case("flip", [(2, 3)], {"axis": -1}, recorded=False),
    Case("depth_to_space", [(1, 9, 1, 2)], {"block_size": 3}),
    Case("space_to_depth", [(1, 1, 3, 6)], {"block_size": 3}),
    Case("slice", [(6,)], {"begin": (None,), "end": (None,), "step": (-1,)}),
    Case("slice", [(6,)], {"begin": (4,), "end": (0,), "step": (-2,)}),
    Case("slice", [(3, 4)], {"begin": (0, 1), "end": (2, 10)}),
    Case("slice", [(3, 4)], {"begin": (-1, None), "end": (None, None), "step": (None, 2)}),
    Case("crop", [(3, 4)], {"begin": (1, 0), "end": (2, 3)}),
    Case("slice_axis", [(3, 4)], {"axis": 0, "begin": 1, "end": 3}),
    Case("slice_axis", [(3, 4)], {"axis": 1, "begin": -3, "end": None}),
    Case("slice_like", [(4, 5, 3), (2, 3, 9)], {"axes": (0, -2)}, wrt=(0,)),
    *(Case("diag", [(3, 4)], {"k": k}) for k in (0, 1, 2, -2)),
    *(Case("diag", [(3,)], {"k": k}) for k in (0, -1)),
    Case("diag", [(2, 3, 4)], {"k": 1}),
    Case("diag", [(2, 3, 4, 2)], {"axis1": 1, "axis2": 3, "k": -1}),
    Case("tile", [(2, 3)], {"reps": 2}),
    Case("tile", [(3,)], {"reps": (2, 2)}),
    Case("repeat", [(2, 3)], {"repeats": 2, "axis": -1}),
    Case("repeat", [(3,)], {"repeats": 1}),
    *(
        Case("Pad", [(1, 2, 2, 3, 3)], {"mode": mode, "pad_width": (0, 0, 0, 0, 1, 1, 1, 2, 0, 2)})
        for mode in ("constant", "edge", "reflect")
        if mode != "reflect"
    ),
    Case("Pad", [(1, 1, 4, 4)], {"mode": "reflect", "pad_width": (0, 0, 0, 0, 3, 3, 2, 3)}),
    Case("Concat", [(2, 3), (2, 3)], {"dim": -1}),
    Case("Concat", [(2,), (3,), (1,)], {"dim": 0}),
    Case("concat", [(2, 2, 3), (2, 2, 1)], {"dim": 2}),
    Case("stack", [(2,), (2,), (2,)], {"axis": 1}),
    Case("stack", [(2, 3)], {"axis": 0}, note="one"),
    Case("SliceChannel", [(2, 3, 4)], {"num_outputs": 2, "axis": -1}),
    Case("split", [(4, 1)], {"num_outputs": 4, "axis": 0, "squeeze_axis": True}),
    Case("_split_v2", [(6, 2)], {"indices": (0,), "sections": 3, "axis": 0}),
    Case("_split_v2", [(3, 4)], {"indices": (0, 1, 2, 3), "axis": 1, "squeeze_axis": True}),
    Case("_split_v2", [(5, 2)], {"indices": (0, 2, 2, 4), "axis": 0}),
    Case("shape_array", [(2, 1, 3)], gradient=False),
    Case("size_array", [(2, 1, 3)], gradient=False),
]  # fmt: skip

# -- indices -----------------------------------------------------------------------------------------------

INDICES = [
    Case("take", [(4, 3), fixed([[0, -1], [3, 9]])], {"axis": 0, "mode": "clip"}, wrt=(0,), note="outside"),
    Case("take", [(4, 3), fixed([[0, -1], [5, 7]])], {"axis": 1, "mode": "wrap"}, wrt=(0,), note="outside"),
    Case("take", [(4, 3), fixed([2, 0, 2])], {"axis": -2}, wrt=(0,)),
    Case("take", [(4, 3), fixed([2, 0])], {"mode": "raise"}, wrt=(0,)),
    Case("take", [(4,), fixed([1.9, 0.2])], wrt=(0,), note="fractions"),
    Case("take", [(4, 3), classes(4, 2)], wrt=(0,), dtypes={1: "int32"}, note="int32"),
    Case("Embedding", [fixed([[1, 4], [0, 1]]), (5, 2)], {"input_dim": 5, "output_dim": 2, "sparse_grad": False},
         wrt=(1,)),
    Case("batch_take", [(3, 4), classes(4, 3)], gradient=False, dtypes={1: "int32"}),
    Case("pick", [(3, 4), fixed([-1, 9, 2])], {"axis": 1}, wrt=(0,), note="outside"),
    Case("pick", [(3, 4), classes(4, 3, 1)], {"axis": -1, "keepdims": True}, wrt=(0,)),
    Case("pick", [(2, 3, 4), classes(3, 2, 4)], {"axis": 1}, wrt=(0,)),
    Case("choose_element_0index", [(3, 4), classes(4, 3)], wrt=(0,)),
    Case("one_hot", [classes(3, 4)], {"depth": 3, "dtype": "int32"}, gradient=False),
    Case("one_hot", [fixed([[0, 2], [1, 1]])], {"depth": 3}, gradient=False),
    Case("gather_nd", [(2, 3, 4), fixed([[0, 1], [2, 0], [3, 3]])], wrt=(0,)),
    Case("gather_nd", [(2, 3, 4), fixed([[[0, 1], [1, 1]], [[2, 0], [0, 1]]])], wrt=(0,)),
    Case("gather_nd", [(3, 4), fixed([[-1, 0], [-2, 1]])], wrt=(0,), same_gradient=False, note="negative"),
    Case("scatter_nd", [(2, 2), fixed([[0, 1], [2, 0]])], {"shape": (2, 3, 2)}, wrt=(0,)),
    Case("_ravel_multi_index", [fixed([[1, 2], [3, 0], [1, 1]])], {"shape": (3, 4, 2)}, gradient=False),
    Case("ravel_multi_index", [fixed([[1, 2], [3, 0]])], {"shape": (-1, 4)}, gradient=False),
    Case("_unravel_index", [fixed([[1, 11], [4, 7]])], {"shape": (3, 4)}, gradient=False, recorded=False),
    Case("unravel_index", [fixed([1, 11, 23])], {"shape": (-1, 3, 4)}, gradient=False),
    *(
        Case("topk", [apart(2, 3, 4)], {"k": 2, "ret_typ": kind, "axis": 1, "is_ascend": True}, gradient=False)
        for kind in ("value", "indices", "mask", "both")
    ),
    Case("topk", [apart(3, 4)], {"k": 0}, gradient=False),
    Case("topk", [apart(3, 4)], {"k": 2, "dtype": "int32"}, gradient=False),
    Case("topk", [apart(3, 4)], {"axis": None, "k": 5, "ret_typ": "mask"}, gradient=False),
    Case("argsort", [apart(3, 4)], {"dtype": "int32"}, gradient=False),
    Case("sort", [apart(2, 3, 4)], {"axis": 1}),
    Case("SequenceMask", [(3, 2, 2), fixed([0, 3])], {"use_sequence_length": True, "value": -1.0}, wrt=(0,),
         note="empty"),
    Case("SequenceMask", [(3, 2), fixed([1, 2])], {"use_sequence_length": True}, wrt=(0,), note="matrix"),
    Case("SequenceLast", [(2, 3, 2), fixed([1, 3])], {"use_sequence_length": True, "axis": 1}, wrt=(0,)),
    Case("SequenceReverse", [(3, 2), fixed([1, 2])], {"use_sequence_length": True}, wrt=(0,), note="matrix"),
]  # fmt: skip

# -- constants ---------------------------------------------------------------------------------------------

CREATION = [
    *(Case(name, [], {"shape": (2, 3), "dtype": kind}, gradient=False)
      for name in ("_zeros", "_ones") for kind in ("float16", "float64", "int32", "uint8", "int8", "int64")),
    Case("_full", [], {"shape": (2, 2), "value": 3, "dtype": "int32"}, gradient=False),
    Case("_arange", [], {"start": 4}, gradient=False),
    Case("_arange", [], {"start": 2, "stop": 9, "step": 3, "dtype": "int32"}, gradient=False),
    Case("_arange", [], {"start": 0.0, "stop": 1.0, "step": 0.3, "repeat": 2, "dtype": "float64"}, gradient=False),
    Case("_arange", [], {"start": 3.0, "stop": -1.0, "step": -1.5}, gradient=False),
    *(Case("_eye", [], {"N": 3, "k": k}, gradient=False) for k in (-1, 0, 2)),
    Case("_eye", [], {"N": 2, "M": 3, "dtype": "int32"}, gradient=False),
    Case("_linspace", [], {"start": 1.0, "stop": 2.0, "num": 4, "endpoint": False}, gradient=False),
    Case("_linspace", [], {"start": 1.0, "stop": 2.0, "num": 1}, gradient=False),
    Case("_linspace", [], {"start": 5.0, "stop": 2.0, "num": 4, "dtype": "float64"}, gradient=False),
    Case("_contrib_arange_like", [(2, 3)], {"start": 1.0, "step": 2.0}, gradient=False),
    *(Case("_contrib_arange_like", [(2, 3)], {"axis": axis}, gradient=False) for axis in (0, 1, -1)),
    Case("_contrib_arange_like", [(2, 6)], {"axis": 1, "repeat": 2, "start": 0.5}, gradient=False),
    Case("zeros_like", [_SPECIAL], gradient=False, note="special"),
    Case("ones_like", [_SPECIAL], gradient=False, note="special"),
]  # fmt: skip

CASES = ELEMENTWISE + REDUCTIONS + SHAPES + INDICES + CREATION
