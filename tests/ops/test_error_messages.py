"""Errors of operators name the operator, the argument, the actual and the expected value.

The first tests cover every registered operator; the tables after them cover shapes and dtypes. All tests check the
function on arrays when it is called, and the symbol when it is created or inferred.
"""

from typing import Any

import pytest

import flowmx as mx
from flowmx.errors import MXNetError, ParameterError, ShapeError, TypeInferenceError
from flowmx.ops.registry import calling
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import lookup, registered_operators
from tests.op_cases import every_case
from tests.rows import family, rows

nd: Any = mx.nd
sym: Any = mx.sym

# -- every operator ----------------------------------------------------------------------------------------

PUBLIC = sorted(
    {cls.name for cls in registered_operators().values() if not cls.traits.hidden and not cls.traits.open_ended}
)


def first_cases():
    """Return a valid call of each operator in the tables."""
    actual = {}
    for case in every_case():
        actual.setdefault(lookup(case.op).name, case)
    return actual


CASES = first_cases()


def both(name):
    """Return the two functions of an operator, bound to valid arguments if a table has some."""
    case = CASES.get(name)
    params = dict(case.params) if case else {}
    arrays = [nd.array(array, dtype=array.dtype) for array in case.call_inputs()] if case else []
    variables = [sym.Variable(f"x{index}") for index in range(len(arrays))]
    for module, inputs in ((nd, arrays), (sym, variables)):
        function = getattr(module.op, name)
        yield function, inputs, params


def refused(function, inputs, params, error, *words):
    with pytest.raises(error) as caught:
        function(*inputs, **params)
    message = str(caught.value)
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"


WITHOUT = [name for name in PUBLIC if not lookup(name).parameters and not lookup(name).traits.open_ended]


@rows("name", [name for name in PUBLIC if name not in WITHOUT], of=family)
def test_unknown_parameter(name):
    for function, inputs, params in both(name):
        refused(function, inputs, {**params, "nonsense": 3}, (ParameterError, TypeError), name, "'nonsense'")


@rows("name", [name for name in WITHOUT if name in CASES], of=family)
def test_an_operator_without_parameters_ignores_keywords_as_in_mxnet(name):
    for function, inputs, params in both(name):
        calling._warned.clear()
        with pytest.warns(UserWarning, match="it has no parameters, so nonsense is ignored"):
            function(*inputs, **params, nonsense=3)


@rows("name", [name for name in PUBLIC if name in CASES], of=family)
def test_missing_parameter(name):
    cls = lookup(name)
    for parameter in cls.parameters.values():
        if not parameter.required or parameter.name == cls.variadic:
            continue
        for function, inputs, params in both(name):
            others = {key: value for key, value in params.items() if key != parameter.name}
            refused(function, inputs, others, (ParameterError, TypeError), name, parameter.name)


def invalid_values(parameter):
    """Return invalid values of a parameter."""
    if parameter.choices:
        yield "nonsense"
    elif parameter.kind in (int, float, bool) or parameter.kind is DType:
        yield "nonsense"
        yield [1, "a"]
    elif parameter.kind is not str:
        yield "nonsense"
        yield {"a": 1}.items
    for bound, step in ((parameter.low, -1), (parameter.high, 1)):
        if bound is not None:
            yield bound + step if parameter.kind in (int, float) else (int(bound + step),)


@rows("name", [name for name in PUBLIC if name in CASES], of=family)
def test_invalid_parameter(name):
    cls = lookup(name)
    for parameter in cls.parameters.values():
        if parameter.name in (cls.variadic, "ctx"):
            continue
        for value in invalid_values(parameter):
            for function, inputs, params in both(name):
                arguments = {**params, parameter.name: value}
                refused(
                    function,
                    inputs,
                    arguments,
                    ParameterError,
                    name,
                    f"parameter {parameter.name}",
                    parameter.describe(),
                )


@rows("name", [name for name in PUBLIC if name in CASES and lookup(name).arguments], of=family)
def test_no_array(name):
    (function, arrays, params), (compose, variables, _) = both(name)
    if not arrays:
        return
    cls = lookup(name)
    argument = "input" if cls.variadic else f"input {cls.arguments[0]}"
    refused(function, ["x", *arrays[1:]], params, TypeError, name, argument, "str 'x'", "expected an NDArray")
    refused(compose, ["x", *variables[1:]], params, TypeError, name, argument, "str 'x'", "expected a Symbol")


@rows("name", [name for name in PUBLIC if name in CASES and not lookup(name).variadic], of=family)
def test_missing_and_surplus_arrays(name):
    function, arrays, params = next(iter(both(name)))
    if arrays:
        refused(function, arrays[:-1], params, TypeError, name, "is missing")
    surplus = [*arrays, *[nd.ones((1,))] * (1 + len(lookup(name).parameters) + len(lookup(name).arguments))]
    refused(function, surplus, params, (TypeError, ParameterError), name)


# -- shapes ------------------------------------------------------------------------------------------------

# Operator, shapes, parameters, and the message after the operator's name.
SHAPES = [
    # elementwise
    ("elemwise_add", [(2, 3), (3, 2)], {}, r"input rhs has shape \(3, 2\), expected \(2, 3\)"),
    ("_maximum", [(2,), (2, 1)], {}, r"input rhs has shape \(2, 1\), expected \(2,\)"),
    ("broadcast_add", [(2, 3), (4, 3)], {}, r"shapes \(2, 3\) and \(4, 3\) do not broadcast"),
    ("broadcast_lesser", [(2, 3), (2, 4)], {}, r"shapes \(2, 3\) and \(2, 4\) do not broadcast"),
    ("add_n", [(2, 3), (2, 3), (3,)], {}, r"input arg2 has shape \(3,\), expected \(2, 3\)"),
    ("where", [(2, 3), (2, 3), (3, 2)], {}, r"shape \(3, 2\)"),
    ("where", [(3,), (2, 3), (2, 3)], {}, r"condition has shape \(3,\), expected \(2, 3\) or \(2,\)"),
    # reductions and broadcasting
    ("sum", [(2, 3)], {"axis": 2}, r"axis is 2, expected -2 to 1 for 2 axes"),
    ("mean", [(2, 3)], {"axis": (0, -3)}, r"axis is -3, expected -2 to 1"),
    ("prod", [(2, 3)], {"axis": (1, -1)}, r"axis is \(1, -1\), which names an axis twice"),
    ("norm", [(2, 3)], {"axis": 5}, r"axis is 5, expected -2 to 1"),
    ("argmax", [(2, 3)], {"axis": -3}, r"axis is -3, expected -2 to 1"),
    ("argmax_channel", [(2,)], {}, r"data has shape \(2,\), expected at least 2 axes"),
    ("broadcast_to", [(2, 3)], {"shape": (4, 3)}, r"shape is \(4, 3\), which the input's shape \(2, 3\)"),
    ("broadcast_axis", [(2, 3)], {"axis": 0, "size": 4}, r"axis 0 .* \(2, 3\) has length 2, expected 1"),
    ("broadcast_axis", [(1, 3)], {"axis": (0, 1), "size": 4}, r"axis is \(0, 1\) and size \(4,\)"),
    ("broadcast_like", [(2, 3), (4, 3)], {}, r"lhs has shape \(2, 3\), which does not broadcast to \(4, 3\)"),
    ("broadcast_like", [(2, 1), (4, 3)], {"lhs_axes": (1,)}, r"lhs_axes and rhs_axes must be given together"),
    # shapes
    ("Reshape", [(2, 3)], {"shape": (4, 2)}, r"shape is \(4, 2\), which does not fit the input's shape \(2, 3\)"),
    ("Reshape", [(2, 3)], {"shape": (-1, -1)}, r"at most one axis can be -1"),
    ("Reshape", [(2, 3)], {"shape": (0, 0, 0)}, r"0 needs one more axis"),
    ("Reshape", [(2, 3)], {"shape": (-4, 5, 2, -2)}, r"-4 cannot split 2 into 5 by 2"),
    ("Reshape", [(2, 3)], {"shape": (-5,)}, r"-5 is not a code"),
    ("Flatten", [()], {}, r"data has shape \(\), expected at least 1 axis"),
    ("reshape_like", [(2, 3), (4, 2)], {}, r"lhs has shape \(2, 3\) \(6 elements\), expected as many as in \(4, 2\)"),
    ("expand_dims", [(2, 3)], {"axis": 4}, r"axis is 4, expected -3 to 2"),
    ("squeeze", [(2, 1)], {"axis": 0}, r"axis 0 of the input's shape \(2, 1\) has length 2, expected 1"),
    ("transpose", [(2, 3)], {"axes": (0, 0)}, r"axes is \(0, 0\), which names an axis twice"),
    ("transpose", [(2, 3, 4)], {"axes": (0, 1)}, r"axes is \(0, 1\), expected each of the 3 axes once"),
    ("SwapAxis", [(2, 3)], {"dim1": 0, "dim2": 2}, r"dim2 is 2, expected -2 to 1"),
    ("reverse", [(2, 3)], {"axis": 2}, r"axis is 2, expected -2 to 1"),
    ("depth_to_space", [(1, 6, 2, 2)], {"block_size": 2}, r"the number of channels is 6, expected a multiple of 4"),
    ("space_to_depth", [(1, 3, 5, 4)], {"block_size": 2}, r"the height is 5, expected a multiple of 2"),
    ("depth_to_space", [(4, 2, 2)], {"block_size": 2}, r"data has shape \(4, 2, 2\), expected 4 axes"),
    ("slice", [(4,)], {"begin": (0, 0), "end": (1, 1)}, r"begin is \(0, 0\), expected at most 1 numbers"),
    ("slice", [(4, 4)], {"begin": (0, 0), "end": (1,)}, r"begin is \(0, 0\), end \(1,\)"),
    ("slice", [(4,)], {"begin": (0,), "end": (4,), "step": (0,)}, r"step is \(0,\), expected steps other than 0"),
    ("slice_axis", [(4,)], {"axis": 1, "begin": 0, "end": 2}, r"axis is 1, expected -1 to 0"),
    ("slice_like", [(4, 5), (2,)], {}, r"shape_like has shape \(2,\), expected 2 axes"),
    ("slice_like", [(4, 5), (6, 5)], {}, r"shape_like has shape \(6, 5\)"),
    ("diag", [()], {}, r"axis1 is 0, but there are no axes"),
    ("diag", [(2, 3)], {"axis1": 0, "axis2": 0}, r"axis1"),
    ("repeat", [(2, 3)], {"repeats": 2, "axis": 3}, r"axis is 3, expected -2 to 1"),
    ("Pad", [(1, 1, 2, 2)], {"mode": "edge", "pad_width": (0, 0, 1)}, r"pad_width is \(0, 0, 1\), expected 8 numbers"),
    ("Pad", [(1, 1, 2, 2)], {"mode": "reflect", "pad_width": (0, 0, 0, 0, 2, 0, 0, 0)},
     r"pad_width is \(2, 0\) on axis 2"),
    ("Concat", [(2, 3), (3, 3)], {}, r"input 1 has shape \(3, 3\), expected \(2, 3\) except on axis 1"),
    ("Concat", [(2, 3), (2,)], {}, r"input 1 has shape \(2,\), expected \(2, 3\)"),
    ("Concat", [(2, 3), (2, 3)], {"dim": 2}, r"dim is 2, expected -2 to 1"),
    ("stack", [(2, 3), (3, 2)], {}, r"input arg1 has shape \(3, 2\), expected \(2, 3\)"),
    ("SliceChannel", [(2, 5)], {"num_outputs": 2}, r"the length of axis 1 is 5, expected a multiple of 2"),
    ("SliceChannel", [(2, 4)], {"num_outputs": 2, "squeeze_axis": True}, r"squeeze_axis needs parts of length 1"),
    ("_split_v2", [(2, 5)], {"sections": 2}, r"the length of axis 1 is 5, expected a multiple of 2"),
    # indices
    ("take", [(2, 3), (2,)], {"axis": 2}, r"axis is 2, expected -2 to 1"),
    ("Embedding", [(2,), (5, 3)], {"input_dim": 5, "output_dim": 4}, r"weight has shape \(5, 3\), expected \(5, 4\)"),
    ("batch_take", [(2, 3), (3,)], {}, r"indices has shape \(3,\), expected \(2,\)"),
    ("batch_take", [(2, 3, 4), (2,)], {}, r"a has shape \(2, 3, 4\), expected 2 axes"),
    ("pick", [(2, 3), (3,)], {}, r"index has shape \(3,\), expected \(2,\) or \(2, 1\)"),
    ("gather_nd", [(2, 3), (3, 4)], {}, r"indices has shape \(3, 4\), expected a first axis of at most 2"),
    ("scatter_nd", [(3,), (2, 4)], {"shape": (2, 3)}, r"data has shape \(3,\), expected \(4,\)"),
    ("_ravel_multi_index", [(3, 4)], {"shape": (2, 3)}, r"data has shape \(3, 4\), expected 2 on the first axis"),
    ("sort", [(2, 3)], {"axis": 2}, r"axis is 2, expected -2 to 1"),
    ("topk", [(2, 3)], {"k": 4}, r"k is 4, expected at most 3 for the shape \(2, 3\)"),
    ("SequenceMask", [(3,)], {}, r"data has shape \(3,\), expected at least 2 axes"),
    ("SequenceLast", [(3, 2), (3,)], {"use_sequence_length": True},
     r"sequence_length has shape \(3,\), expected \(2,\)"),
    # matrices
    ("dot", [(2, 3), (2, 3)], {}, r"\(2, 3\)"),
    ("batch_dot", [(2, 3, 4), (3, 4, 5)], {}, r"\(3, 4, 5\)"),
    ("batch_dot", [(3, 4), (4, 5)], {}, r"expected 3 axes|3 axes"),
    ("_linalg_gemm2", [(2, 3), (2, 3)], {}, r"\(2, 3\)"),
    # layers
    ("FullyConnected", [(2, 3), (4, 5), (4,)], {"num_hidden": 4},
     r"input weight has shape \(4, 5\), expected \(4, 3\)"),
    ("FullyConnected", [(2, 3), (4, 3), (3,)], {"num_hidden": 4}, r"input bias has shape \(3,\), expected \(4,\)"),
    ("Convolution", [(1, 2, 5), (3, 2, 3, 3), (3,)], {"kernel": (3, 3), "num_filter": 3}, r"\(1, 2, 5\)"),
    ("Convolution", [(1, 2, 5, 5), (3, 3, 3, 3), (3,)], {"kernel": (3, 3), "num_filter": 3},
     r"input weight has shape \(3, 3, 3, 3\), expected \(3, 2, 3, 3\)"),
    ("Convolution", [(1, 2, 2, 2), (3, 2, 3, 3), (3,)], {"kernel": (3, 3), "num_filter": 3},
     r"smaller than one window"),
    ("Convolution", [(1, 3, 5, 5), (4, 2, 3, 3), (4,)], {"kernel": (3, 3), "num_filter": 4, "num_group": 2},
     r"num_group"),
    ("Deconvolution", [(1, 2, 3, 3), (3, 2, 2, 2)], {"kernel": (2, 2), "num_filter": 2}, r"input weight has shape"),
    ("Pooling", [(1, 2, 2, 2)], {"kernel": (3, 3)}, r"smaller than one window"),
    ("Pooling", [(1, 2, 4)], {"kernel": (3, 3)}, r"input data has shape \(1, 2, 4\), expected 4 axes"),
    ("LeakyReLU", [(2, 3), (4,)], {"act_type": "prelu"}, r"input gamma has shape \(4,\), expected \(3,\)"),
    ("softmax", [(2, 3)], {"axis": 2}, r"axis is 2, but the input has shape \(2, 3\)"),
    ("softmax", [(2, 3), (3,)], {"use_length": True}, r"input length has shape \(3,\), expected \(2,\)"),
    ("SoftmaxActivation", [(3,)], {}, r"input data has shape \(3,\), expected at least 2 axes"),
    ("BatchNorm", [(2, 3), (2,), (3,), (3,), (3,)], {}, r"input gamma has shape \(2,\), expected \(3,\)"),
    ("BatchNorm", [(2, 3), (3,), (3,), (3,), (3,)], {"axis": 2}, r"axis is 2"),
    ("LayerNorm", [(2, 3), (2,), (3,)], {}, r"input gamma has shape \(2,\), expected \(3,\)"),
    ("InstanceNorm", [(2, 3), (3,), (3,)], {}, r"input data has shape \(2, 3\)"),
    ("GroupNorm", [(2, 3, 4), (2,), (2,)], {"num_groups": 2}, r"num_groups"),
    ("L2Normalization", [(2, 3)], {"mode": "channel"}, r"input data has shape \(2, 3\), expected at least 3 axes"),
    ("LRN", [(2, 3)], {"nsize": 3}, r"input data has shape \(2, 3\), expected 4 axes"),
    ("Dropout", [(2, 3)], {"axes": (2,)}, r"axes are \(2,\), but input data has shape \(2, 3\)"),
    # output layers
    ("SoftmaxOutput", [(2, 3), (3,)], {}, r"input label has shape \(3,\), expected \(2,\)"),
    ("SoftmaxOutput", [(2, 3, 4), (2, 3)], {"multi_output": True},
     r"input label has shape \(2, 3\), expected \(2, 4\)"),
    ("LinearRegressionOutput", [(2, 3), (2, 2)], {}, r"input label has shape \(2, 2\), expected \(2, 3\)"),
    ("SVMOutput", [(2, 3), (3,)], {}, r"input label has shape \(3,\), expected \(2,\)"),
    ("softmax_cross_entropy", [(2, 3), (3,)], {}, r"input label has shape \(3,\), expected \(2,\)"),
    # update rules
    ("sgd_update", [(2, 3), (3, 2)], {"lr": 0.1}, r"input grad has shape \(3, 2\), expected \(2, 3\)"),
    ("adam_update", [(2,), (2,), (2,), (3,)], {"lr": 0.1}, r"input var has shape \(3,\), expected \(2,\)"),
]  # fmt: skip


@rows(("name", "shapes", "params", "message"), SHAPES, of=lambda row: row[0])
def test_shapes(name, shapes, params, message):
    with pytest.raises(ShapeError, match=rf"^{name}: .*{message}"):
        getattr(nd.op, name)(*map(nd.zeros, shapes), **params)
    variables = [sym.Variable(f"x{index}") for index in range(len(shapes))]
    result = getattr(sym.op, name)(*variables, name="made", **params)
    with pytest.raises(ShapeError, match=rf"(?s)^node 'made' .*{name}: .*{message}.*made at .*test_error_messages"):
        result.infer_shape(**{f"x{index}": shape for index, shape in enumerate(shapes)})


# -- dtypes ------------------------------------------------------------------------------------------------

DTYPES = [
    ("elemwise_add", ["float32", "float64"], {}, r"input rhs has dtype float64, expected float32"),
    ("broadcast_mul", ["int32", "float32"], {}, r"input rhs has dtype float32, expected int32"),
    ("_maximum", ["float16", "float32"], {}, r"input rhs has dtype float32, expected float16"),
    ("add_n", ["float32", "float32", "int8"], {}, r"input arg2 has dtype int8, expected float32"),
    ("where", ["int32", "float32", "float64"], {}, r"y has dtype float64, expected float32"),
    ("Concat", ["float32", "float64"], {}, r"input arg1 has dtype float64, expected float32"),
    ("stack", ["float32", "int32"], {}, r"input arg1 has dtype int32, expected float32"),
    ("dot", ["float32", "float64"], {}, r"input rhs has dtype float64, expected float32"),
    ("batch_dot", ["float32", "float64"], {}, r"input rhs has dtype float64, expected float32"),
    ("FullyConnected", ["float32", "float64", "float32"], {"num_hidden": 2},
     r"input weight has dtype float64, expected float32"),
    ("sgd_update", ["float32", "float64"], {"lr": 0.1}, r"input grad has dtype float64, expected float32"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtypes", "params", "message"), DTYPES)
def test_dtypes(name, dtypes, params, message):
    arrays = [nd.zeros((2, 2, 2) if name == "batch_dot" else (2, 2), dtype=kind) for kind in dtypes]
    if name == "FullyConnected":
        arrays[2] = nd.zeros((2,))
    with pytest.raises(TypeInferenceError, match=rf"^{name}: .*{message}"):
        getattr(nd.op, name)(*arrays, **params)
    variables = [sym.Variable(f"x{index}") for index in range(len(dtypes))]
    result = getattr(sym.op, name)(*variables, name="made", **params)
    expected = rf"(?s)^node 'made' .*{name}: .*{message}.*made at .*test_error_messages"
    with pytest.raises(TypeInferenceError, match=expected):
        result.infer_type(**{f"x{index}": kind for index, kind in enumerate(dtypes)})


# -- content -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nd.take(nd.ones((3,)), nd.array([3.0]), mode="raise"), r"take: indices from 3 to 3, expected -3 to 2"),
        (lambda: nd.gather_nd(nd.ones((3,)), nd.array([[5.0]])), r"gather_nd: indices from 5 to 5, expected -3 to 2"),
        (
            lambda: nd.SequenceLast(nd.ones((2, 1, 1)), nd.array([3.0]), use_sequence_length=True),
            r"SequenceLast: sequence_length is up to 3, expected at most 2",
        ),
        (
            lambda: nd.softmax_cross_entropy(nd.ones((1, 2)), nd.array([2.0])),
            r"softmax_cross_entropy: indices from 2 to 2, expected 0 to 1",
        ),
    ],
)
def test_content(call, message):
    result = call()  # the values of arrays are known only later
    with pytest.raises(IndexError, match=message):
        result.wait_to_read()


# -- functions that are not operators --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nd.zeros((-1, 2)), ShapeError, r"shape is \(-1, 2\), expected lengths from 0"),
        (lambda: nd.ones("a"), ShapeError, r"shape is 'a', expected ints"),
        (lambda: nd.arange(0, 1, 0), ParameterError, r"_arange: parameter step is 0"),
        (lambda: nd.concatenate([]), ValueError, r"concatenate: no arrays were given"),
        (lambda: nd.moveaxis(nd.ones((2, 3)), 0, 2), ShapeError, r"moveaxis: destination is \(2,\)"),
        (lambda: nd.maximum("a", nd.ones(1)), TypeError, r"maximum: lhs is str, expected an NDArray or a number"),
        (
            lambda: sym.maximum("a", sym.Variable("x")),
            TypeError,
            r"maximum: left is str, expected a Symbol or a number",
        ),
        (
            lambda: sym.Variable("x").asnumpy(),
            NotImplementedError,
            r"Symbol.asnumpy: the symbol <Symbol x> has no content",
        ),
        (lambda: sym.Variable("x").asscalar(), MXNetError, r"Symbol.asscalar"),
        (lambda: nd.nonsense, AttributeError, r"there is no operator 'nonsense'"),
        (lambda: nd.FullyConected, AttributeError, r"did you mean 'FullyConnected'\?"),
        (lambda: sym.FullyConected, AttributeError, r"did you mean 'FullyConnected'\?"),
        (
            lambda: nd.clip(nd.ones(1), a_min=0, a_mx=1),
            ParameterError,
            r"clip: there is no parameter 'a_mx', only .*; did you mean",
        ),
    ],
)
def test_functions(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("axis", [-1, 2])
def test_axes_out_of_range(axis):
    with pytest.raises(ParameterError, match="axis"):
        nd.contrib.getnnz(nd.ones((2, 3)), axis=axis)
