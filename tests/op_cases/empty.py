"""Arrays without elements, and arrays without axes (recorded with MXNet's numpy shape semantics)."""

import numpy as np

from tests.op_cases.case import Case, fixed, positive

NP_SHAPE = True

_NONE = (0, 3)
_W = (0,)

ELEMENTWISE = [
    *(
        Case(name, [shape])
        for name in ("negative", "exp", "sqrt", "tanh", "relu", "sigmoid", "round", "erf", "_copy", "zeros_like")
        for shape in (_NONE, ())
    ),
    *(
        Case(f"broadcast_{name}", [one, other], gradient=name != "equal", note=f"{one}{other}")
        for name in ("add", "mul", "div", "maximum", "power", "equal")
        for one, other in (((0, 3), (1, 3)), ((0, 1), (1, 3)), ((2, 0), (2, 0)), ((), (3,)), ((), ()), ((), (0,)))
    ),
    *(Case(name, [shape, shape]) for name in ("elemwise_add", "elemwise_mul", "_maximum") for shape in (_NONE, ())),
    *(Case(name, [shape], {"scalar": 2.0}, gradient=name != "_greater_scalar")
      for name in ("_plus_scalar", "_rdiv_scalar", "_greater_scalar") for shape in (_NONE, ())),
    *(Case("clip", [shape], {"a_min": 0.0, "a_max": 1.0}) for shape in (_NONE, ())),
    *(Case("where", [shape] * 3, wrt=(1, 2)) for shape in (_NONE, ())),
    *(Case("add_n", [shape] * 2) for shape in (_NONE, ())),
    *(Case("smooth_l1", [shape]) for shape in (_NONE, ())),
    *(Case("Cast", [shape], {"dtype": "int32"}, gradient=False) for shape in (_NONE, ())),
]  # fmt: skip

REDUCTIONS = [
    *(
        Case(name, [(2, 0, 3)], params)
        for name in ("sum", "prod", "nansum", "norm")
        for params in ({"axis": 1}, {"axis": 0}, {"axis": (0, 2)}, {"axis": 1, "keepdims": True})
    ),
    *(Case("mean", [(2, 0, 3)], {"axis": axis}) for axis in (0, 2)),
    *(Case(name, [(2, 0, 3)], {"axis": axis}) for name in ("max", "min") for axis in (0, 2)),
    *(Case(name, [(2, 0, 3)], {"axis": axis}, gradient=False) for name in ("argmax", "argmin") for axis in (0, 2)),
    Case("broadcast_to", [(1, 0)], {"shape": (4, 0)}),
    Case("broadcast_to", [()], {"shape": (2, 3)}),
    Case("broadcast_like", [(1, 3), (0, 3)], wrt=(0,)),
    Case("broadcast_axis", [(1, 3)], {"axis": 0, "size": 0}),
]

SHAPES = [
    Case("Reshape", [(0, 6)], {"shape": (0, 2, 3)}),
    Case("Reshape", [(0, 6)], {"shape": (-1, 3)}),
    Case("Reshape", [()], {"shape": (1, 1)}),
    Case("Flatten", [(0, 2, 3)]),
    Case("reshape_like", [(0, 6), (3, 0)], wrt=(0,)),
    Case("expand_dims", [_NONE], {"axis": 1}),
    Case("expand_dims", [()], {"axis": 0}),
    Case("squeeze", [(1, 0, 1)]),
    Case("transpose", [(2, 0, 3)], {"axes": (1, 2, 0)}),
    Case("transpose", [()]),
    Case("SwapAxis", [_NONE], {"dim1": 0, "dim2": 1}),
    Case("reverse", [_NONE], {"axis": 0}),
    Case("slice", [(4, 3)], {"begin": (2,), "end": (2,)}),
    Case("slice", [_NONE], {"begin": (0, 1), "end": (0, 3)}),
    Case("slice_axis", [(4, 3)], {"axis": 0, "begin": 1, "end": 1}),
    Case("slice_like", [(4, 3), (0, 3)], wrt=(0,)),
    Case("tile", [_NONE], {"reps": (2, 1)}),
    Case("tile", [(2, 3)], {"reps": (0, 1)}),
    Case("repeat", [_NONE], {"repeats": 2, "axis": 1}),
    Case("Concat", [(0, 3), (2, 3)], {"dim": 0}),
    Case("Concat", [(2, 0), (2, 0)], {"dim": 1}),
    Case("stack", [_NONE, _NONE], {"axis": 1}),
    Case("stack", [(), (), ()]),
    Case("SliceChannel", [(0, 4)], {"num_outputs": 2}),
    Case("_split_v2", [(3, 2)], {"indices": (0, 0, 3), "axis": 0}),
    Case("Pad", [(0, 1, 2, 2)], {"mode": "constant", "pad_width": (0, 0, 0, 0, 1, 1, 1, 1)}),
    Case("diag", [(0,)]),
    Case("shape_array", [_NONE], gradient=False),
    Case("shape_array", [()], gradient=False),
    Case("size_array", [_NONE], gradient=False),
    Case("_ones", [], {"shape": ()}, gradient=False),
    Case("_arange", [], {"start": 2.0, "stop": 2.0}, gradient=False),
    Case("_linspace", [], {"start": 0.0, "stop": 1.0, "num": 0}, gradient=False),
]

INDICES = [
    Case("take", [(4, 3), (0,)], wrt=(0,)),
    Case("take", [(4, 3), fixed(1.0)], wrt=(0,), note="one"),
    Case("take", [(4, 0), fixed([1, 2])], wrt=(0,)),
    Case("Embedding", [(0, 2), (5, 4)], {"input_dim": 5, "output_dim": 4}, wrt=(1,)),
    Case("pick", [(0, 3), (0,)], wrt=(0,)),
    Case("one_hot", [(0,)], {"depth": 3}, gradient=False),
    Case("one_hot", [fixed(1.0)], {"depth": 3}, gradient=False, note="one"),
    Case("gather_nd", [(3, 4), fixed(np.zeros((2, 0)))], wrt=(0,)),
    Case("gather_nd", [(3, 4), fixed([1, 2])], wrt=(0,), note="one"),
    Case("scatter_nd", [(0,), fixed(np.zeros((2, 0)))], {"shape": (3, 4)}, wrt=(0,)),
    *(Case("sort", [shape], {"axis": 1}) for shape in (_NONE, (3, 0))),
    *(Case("argsort", [shape], {"axis": 1}, gradient=False) for shape in (_NONE, (3, 0))),
    Case("topk", [(0, 3)], {"k": 2, "ret_typ": "value"}),
    Case("SequenceMask", [(3, 0, 2), (0,)], {"use_sequence_length": True}, wrt=(0,)),
    Case("SequenceReverse", [(3, 0, 2)]),
]

MATRICES = [
    Case("dot", [(0, 3), (3, 2)]),
    Case("dot", [(2, 0), (0, 3)]),
    Case("dot", [(0,), (0,)]),
    Case("batch_dot", [(0, 2, 3), (0, 3, 4)]),
    Case("batch_dot", [(2, 2, 0), (2, 0, 4)]),
]

LAYERS = [
    Case("FullyConnected", [(0, 3), (2, 3), (2,)], {"num_hidden": 2}),
    Case("FullyConnected", [(0, 3, 2), (2, 6)], {"num_hidden": 2, "no_bias": True}, note="images"),
    Case("Convolution", [(0, 2, 4, 4), (3, 2, 3, 3), (3,)], {"kernel": (3, 3), "num_filter": 3}),
    Case("Deconvolution", [(0, 2, 4, 4), (2, 3, 3, 3)], {"kernel": (3, 3), "num_filter": 3}),
    *(Case("Pooling", [(0, 2, 4, 4)], {"kernel": (2, 2), "stride": (2, 2), "pool_type": kind})
      for kind in ("max", "avg")),
    Case("Activation", [_NONE], {"act_type": "relu"}),
    Case("LeakyReLU", [_NONE]),
    *(Case(name, [shape]) for name in ("softmax", "log_softmax") for shape in (_NONE, (3, 0))),
    Case("LayerNorm", [(0, 3), positive(3), (3,)]),
    Case("RMSNorm", [(0, 3), positive(3)], recorded=False),
    Case("BatchNorm", [(0, 3, 2), positive(3), (3,), (3,), positive(3)], {"fix_gamma": False}, 2, train=False),
    Case("L2Normalization", [_NONE]),
    Case("Dropout", [_NONE], train=False),
    Case("SoftmaxOutput", [_NONE, (0,)], numeric=False),
    Case("LinearRegressionOutput", [_NONE, _NONE], numeric=False),
    Case("MakeLoss", [_NONE], numeric=False),
    Case("softmax_cross_entropy", [_NONE, (0,)], wrt=(0,)),
    Case("sgd_update", [_W, _W], {"lr": 0.1}, gradient=False),
    Case("adam_update", [_W, _W, _W, _W], {"lr": 0.1}, gradient=False),
]  # fmt: skip

CASES = ELEMENTWISE + REDUCTIONS + SHAPES + INDICES + MATRICES + LAYERS
