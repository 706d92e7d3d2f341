"""ONNX files whose graph depends on the shapes of the inputs, or on values that the model computes."""

import asyncio
import pickle

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import flowmx as mx
from flowmx.contrib import onnx as mxonnx
from flowmx.contrib.onnx.constant_folding import evaluate
from tests.onnx_round import runtime

KINDS = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}


def save(tmp_path, nodes, inputs, constants, outputs):
    """Save a file; inputs are dtypes and lengths (a name where any length fits), outputs dtypes and ranks."""
    graph = helper.make_graph(
        nodes, "graph",
        [helper.make_tensor_value_info(name, KINDS[dtype], dims) for name, (dtype, *dims) in inputs.items()],
        [helper.make_tensor_value_info(name, KINDS[dtype], [None] * rank) for name, (dtype, rank) in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    path = str(tmp_path / "model.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def node(kind, inputs, *outputs, **attributes):
    return helper.make_node(kind, inputs.split(), list(outputs), **attributes)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1.0, 1.5, shape).astype("float32")


def check(net, path, *inputs):
    """Compare a block's outputs with onnxruntime's, in two calls."""
    session_inputs = [value.name for value in onnx.load(path).graph.input]
    expected = runtime(path, dict(zip(session_inputs, inputs, strict=True)))
    for _ in range(2):
        results = net(*[mx.nd.array(array, dtype=array.dtype) for array in inputs])
        for result, wanted in zip(results if isinstance(results, list) else [results], expected, strict=True):
            assert result.shape == wanted.shape
            np.testing.assert_allclose(result.asnumpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hybrid", [False, True])
def test_lengths_that_one_graph_cannot_express(tmp_path, hybrid):
    path = save(
        tmp_path,
        [
            node("Conv", "x w", "wide", pads=[1, 1, 1, 1]),
            node("Resize", "wide roi scales", "large", mode="nearest"),
            node("Shape", "x", "dims"),
            node("Slice", "dims two four", "size"),
            node("Slice", "dims zero two", "front"),
            node("Mul", "size size", "area"),
            node("Concat", "front area", "target", axis=0),
            node("Concat", "front minus", "flat", axis=0),
            node("ReduceMean", "large", "mean", axes=[1], keepdims=1),
            node("Tile", "mean repeats", "many"),
            node("Shape", "many", "long"),
            node("Slice", "long zero two", "rows"),
            node("Concat", "rows minus", "ending", axis=0),
            node("Reshape", "many ending", "y"),
        ],
        {"x": ("float32", "n", 2, "h", "w")},
        {"w": numbers(3, 2, 3, 3), "roi": np.zeros(0, "float32"), "scales": np.array([1, 1, 2, 2], "float32"),
         "zero": [0], "two": [2], "four": [4], "minus": [-1], "repeats": [1, 2, 1, 1]},
        {"y": ("float32", 3)},
    )  # fmt: skip
    net = mxonnx.import_to_gluon(path, mx.cpu())
    if hybrid:
        net.hybridize(static_alloc=True, static_shape=True)
    for shape in [(1, 2, 5, 7), (3, 2, 4, 1), (2, 2, 1, 9), (1, 2, 5, 7)]:
        check(net, path, numbers(*shape))
    assert sorted(net.collect_params()) == ["w"]  # one parameter for all shapes


def branches(first, second, *constants):
    """Return an If node of two branches: lists of nodes, the last of which computes the result."""
    graphs = [
        helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info(nodes[-1].output[0], 1, None)],
                          [numpy_helper.from_array(value, name) for name, value in stored.items()])
        for nodes, stored in zip((first, second), constants or ({}, {}), strict=True)
    ]  # fmt: skip
    return helper.make_node("If", ["chosen"], ["y"], then_branch=graphs[0], else_branch=graphs[1])


CONDITION = [node("ReduceSum", "x", "sum", keepdims=0), node("Greater", "sum limit", "chosen")]


def test_branches_that_the_model_selects_are_one_operator(tmp_path):
    path = save(
        tmp_path,
        [*CONDITION, branches([node("MatMul", "x m", "a"), node("Relu", "a", "b")],
                              [node("MatMul", "x m", "a"), node("Sub", "a c", "b")],
                              {}, {"c": np.float32([3.0])})],
        {"x": ("float32", "n", 4)}, {"limit": np.float32(0.0), "m": numbers(4, 3)}, {"y": ("float32", 2)},
    )  # fmt: skip
    symbol, *_ = mxonnx.import_model(path)
    assert "_cond" in [each.op.name for each in symbol.nodes() if each.op is not None]
    net = mxonnx.import_to_gluon(path, mx.cpu())
    net.hybridize()
    for rows in (1, 3):
        check(net, path, np.abs(numbers(rows, 4)))
        check(net, path, -np.abs(numbers(rows, 4, seed=1)))


def test_constants_of_two_branches_may_have_the_same_name(tmp_path):
    path = save(
        tmp_path,
        [*CONDITION, branches([node("Mul", "x c", "b")], [node("Mul", "x c", "b")],
                              {"c": np.float32([2.0, 3.0])}, {"c": np.float32([5.0, 7.0])})],
        {"x": ("float32", "n", 2)}, {"limit": np.float32(0.0)}, {"y": ("float32", 2)},
    )  # fmt: skip
    net = mxonnx.import_to_gluon(path, mx.cpu())
    check(net, path, np.abs(numbers(3, 2)))
    check(net, path, -np.abs(numbers(3, 2)))


def test_branches_of_different_shapes(tmp_path):
    path = save(
        tmp_path,
        [*CONDITION, branches([node("Concat", "x x", "b", axis=1)], [node("Neg", "x", "b")])],
        {"x": ("float32", "n", 2)}, {"limit": np.float32(0.0)}, {"y": ("float32", 2)},
    )  # fmt: skip
    with pytest.raises(mxonnx.ONNXError, match=r"its condition 'chosen' is computed.*branches compute arrays of"):
        mxonnx.import_model(path)
    net = mxonnx.import_to_gluon(path, mx.cpu())
    check(net, path, np.abs(numbers(3, 2)))
    check(net, path, -np.abs(numbers(3, 2)))
    check(net, path, np.abs(numbers(1, 2)))


def test_a_branch_that_does_not_fit_the_input_is_not_needed(tmp_path):
    path = save(
        tmp_path,
        [*CONDITION, branches([node("MatMul", "x m", "b")], [node("MatMul", "x k", "b")])],
        {"x": ("float32", "n", "m")}, {"limit": np.float32(0.0), "m": numbers(4, 3), "k": numbers(2, 3)},
        {"y": ("float32", 2)},
    )  # fmt: skip
    net = mxonnx.import_to_gluon(path, mx.cpu())
    check(net, path, np.abs(numbers(3, 4)))
    check(net, path, -np.abs(numbers(3, 2)))


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_length_that_the_model_computes(tmp_path, hybrid):
    path = save(
        tmp_path,
        [
            node("Mul", "x m", "scaled"),
            node("ReduceMax", "scaled", "most", keepdims=0),
            node("Cast", "most", "stop", to=TensorProto.INT64),
            node("Range", "zero stop one", "steps"),
            node("Cast", "steps", "times", to=TensorProto.FLOAT),
            node("Unsqueeze", "scaled last", "column"),
            node("Mul", "column times", "y"),
            node("Exp", "scaled", "z"),
        ],
        {"x": ("float32", "n")}, {"m": np.float32([2.0]), "zero": 0, "one": 1, "last": [1]},
        {"y": ("float32", 2), "z": ("float32", 1)},
    )  # fmt: skip
    net = mxonnx.import_to_gluon(path, mx.cpu())
    if hybrid:
        net.hybridize(static_alloc=True)
    for values in ([1.7, 3.2], [4.0, 0.5], [1.0], [2.5, 2.0, 0.0]):
        check(net, path, np.float32(values))


def test_a_shape_that_depends_on_content(tmp_path):
    path = save(
        tmp_path,
        [
            node("Greater", "x limit", "large"),
            node("NonZero", "large", "places"),
            node("Transpose", "places", "rows"),
            node("GatherND", "x rows", "chosen"),
            node("Exp", "chosen", "y"),
        ],
        {"x": ("float32", "n", 3)}, {"limit": np.float32(0.2)}, {"y": ("float32", 1)},
    )  # fmt: skip
    net = mxonnx.import_to_gluon(path, mx.cpu())
    for seed, rows in ((0, 4), (1, 4), (2, 2)):
        check(net, path, numbers(rows, 3, seed=seed))


def test_a_shape_by_content_with_constants(tmp_path):
    path = save(
        tmp_path,
        [
            node("NonMaxSuppression", "boxes scores most overlap", "chosen"),
            node("Cast", "chosen", "y", to=TensorProto.FLOAT),
        ],
        {"boxes": ("float32", 1, "n", 4), "scores": ("float32", 1, 2, "n")},
        {"most": [3], "overlap": np.float32([0.5])}, {"y": ("float32", 2)},
    )  # fmt: skip
    net = mxonnx.import_to_gluon(path, mx.cpu())
    for count in (4, 6):
        check(net, path, np.sort(np.abs(numbers(1, count, 4)), axis=-1), np.abs(numbers(1, 2, count, seed=1)))


def test_batch_axes_of_products_are_broadcast(tmp_path):
    path = save(
        tmp_path, [node("MatMul", "a b", "y")],
        {"a": ("float32", "n", 3, 4, 5), "b": ("float32", 1, 5, 2)}, {}, {"y": ("float32", 4)},
    )  # fmt: skip
    net = mxonnx.import_to_gluon(path, mx.cpu())
    for rows in (1, 2):
        check(net, path, numbers(rows, 3, 4, 5), numbers(1, 5, 2, seed=1))


def test_a_block_of_a_file_is_trained_and_pickled(tmp_path):
    path = save(
        tmp_path,
        [*CONDITION, branches([node("Concat", "x x", "b", axis=1)], [node("Mul", "x w", "b")])],
        {"x": ("float32", "n", 2)}, {"limit": np.float32(0.0), "w": numbers(2)}, {"y": ("float32", 2)},
    )  # fmt: skip
    net = mxonnx.import_to_gluon(path, mx.cpu())
    x = mx.nd.array([[-1.0, -2.0]])
    with mx.autograd.record():
        loss = net(x).sum()
    loss.backward()
    assert net.collect_params()["w"].grad().asnumpy().tolist() == [-1.0, -2.0]
    copy = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(copy(x).asnumpy(), net(x).asnumpy())


def test_messages_of_blocks_without_a_single_graph(tmp_path):
    path = save(
        tmp_path,
        [*CONDITION, branches([node("Concat", "x x", "b", axis=1)], [node("Neg", "x", "b")])],
        {"x": ("float32", "n", 2)}, {"limit": np.float32(0.0)}, {"y": ("float32", 2)},
    )  # fmt: skip
    net = mxonnx.import_to_gluon(path, mx.cpu())
    with pytest.raises(ValueError, match="2 inputs were given, expected 1: x"):
        net(mx.nd.ones((1, 2)), mx.nd.ones((1, 2)))
    with pytest.raises(mxonnx.ONNXError, match="cannot be composed with symbols"):
        net(mx.sym.var("x"))
    assert repr(net) == "DynamicBlock(x -> y)"


FOLDED = [
    ("Add", [[1, 2], [3]], {}), ("Sub", [[1, 2], [3]], {}), ("Mul", [[1, 2], [3]], {}), ("Div", [[-7, 7, 6], [2]], {}),
    ("Equal", [[1, 2], [2, 2]], {}), ("Less", [[1, 2], [2, 2]], {}), ("Neg", [[1, 2]], {}),
    ("Gather", [[[1, 2], [3, 4]], [1, 0, -1]], {"axis": 1}), ("Concat", [[1], [2, 3]], {"axis": 0}),
    ("Unsqueeze", [[1, 2], [0, -1]], {}), ("Squeeze", [[[1], [2]], [-1]], {}), ("Squeeze", [[[[1, 2]]]], {}),
    ("Slice", [[1, 2, 3, 4, 5], [-1], [-9], [0], [-2]], {}), ("Slice", [[1, 2, 3, 4, 5], [1], [2**63 - 1]], {}),
    ("Slice", [[[1, 2, 3], [4, 5, 6]], [1, 0], [2, -1], [-1, 0]], {}), ("Reshape", [[1, 2, 3, 4], [2, -1]], {}),
    ("Reshape", [[[1, 2], [3, 4]], [0, 1, 2]], {}), ("Transpose", [[[1, 2], [3, 4]]], {}),
    ("Transpose", [[[[1, 2], [3, 4]]]], {"perm": [2, 0, 1]}), ("Expand", [[[1], [2]], [2, 1, 3]], {}),
    ("Range", [2, 11, 3], {}), ("Range", [5, 0, -2], {}), ("Min", [[1, 5], [3]], {}), ("Max", [[1, 5], [3], [4]], {}),
    ("ConstantOfShape", [[2, 3]], {"value": numpy_helper.from_array(np.array([7]))}), ("Size", [[1, 2, 3]], {}),
    ("Shape", [[[1, 2], [3, 4], [5, 6]]], {"start": -1}), ("Cast", [[1, 0, 2]], {"to": TensorProto.BOOL}),
    ("Cast", [[1, 2]], {"to": TensorProto.FLOAT}), ("Identity", [[1]], {}),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(FOLDED)))
def test_folded_constants_are_equal_to_the_reference(case):
    kind, values, attributes = FOLDED[case]
    inputs = [np.array(value, "int64") for value in values]
    names = [f"x{at}" for at in range(len(inputs))]
    one = node(kind, " ".join(names), "y", **attributes)
    result = evaluate(one, inputs, 17)
    session = onnx.reference.ReferenceEvaluator(one, opsets={"": 17})
    (wanted,) = session.run(None, dict(zip(names, inputs, strict=True)))
    assert result.dtype == wanted.dtype
    np.testing.assert_array_equal(result, wanted)
    assert result.shape == np.shape(wanted)


def test_a_predictor_of_a_file_without_a_single_graph(tmp_path):
    path = save(
        tmp_path,
        [*CONDITION, branches([node("Concat", "x x", "b", axis=1)], [node("Neg", "x", "b")])],
        {"x": ("float32", "n", 2)}, {"limit": np.float32(0.0)}, {"y": ("float32", 2)},
    )  # fmt: skip
    x = np.float32([[-1.0, -3.0]])

    async def predict():
        async with mx.serve.Predictor(path, max_batch=2) as predictor:
            return await predictor(x)

    np.testing.assert_array_equal(asyncio.run(predict()), -x)


def rates(tmp_path):
    """Save a file whose branch depends on a rate; the first one adds a row of 4 numbers to its input."""
    branches = {
        "then_branch": helper.make_graph(
            [node("Add", "x weights", "then")], "then", [],
            [helper.make_tensor_value_info("then", TensorProto.FLOAT, None)],
        ),
        "else_branch": helper.make_graph(
            [node("ReduceSum", "x axis", "other", keepdims=0)], "else", [],
            [helper.make_tensor_value_info("other", TensorProto.FLOAT, None)],
        ),
    }  # fmt: skip
    nodes = [node("Equal", "rate wide", "is_wide"), helper.make_node("If", ["is_wide"], ["y"], **branches)]
    constants = {"wide": np.int64(16000), "weights": numbers(4), "axis": np.array([1])}
    inputs = {"x": ("float32", "n", 4), "rate": ("int64",)}
    return save(tmp_path, nodes, inputs, constants, {"y": ("float32", 2)}), constants["weights"]


def test_a_constant_input_selects_the_branch_that_is_imported(tmp_path):
    path, weights = rates(tmp_path)
    symbol, arguments, _ = mxonnx.import_model(path, constants={"rate": 16000})
    assert set(symbol.list_inputs()) == {"x", "weights"}
    x = numbers(3, 4)
    (y,) = symbol.bind(mx.cpu(), {**arguments, "x": mx.nd.array(x)}, grad_req="null").forward()
    np.testing.assert_allclose(y.asnumpy(), x + weights, rtol=1e-6)
    block = mxonnx.import_to_gluon(path, constants={"rate": 8000})
    np.testing.assert_allclose(block(mx.nd.array(x)).asnumpy(), x.sum(1), rtol=1e-5)


@pytest.mark.parametrize(
    ("constants", "match"),
    [
        ({"speed": 1}, "constants: there is no input 'speed', expected some of"),
        ({"rate": [1, 2]}, r"constants: 'rate' is int64 \(2,\), expected int64 \(\)"),
        ({"rate": 1.5}, r"constants: 'rate' is float64 \(\), expected int64 \(\)"),
    ],
)
def test_constants_that_do_not_fit_are_refused(tmp_path, constants, match):
    path, _ = rates(tmp_path)
    with pytest.raises(ValueError, match=match):
        mxonnx.import_model(path, constants=constants)


def test_lengths_of_the_same_name_are_equal_on_all_axes(tmp_path):
    nodes = [node("Transpose", "state", "front", perm=[1, 0]), node("Add", "x front", "y")]
    path = save(tmp_path, nodes, {"x": ("float32", None, 3), "state": ("float32", 3, None)}, {}, {"y": ("float32", 2)})
    shapes = {"x": ("batch", 3), "state": (3, "batch")}
    symbol, _, _ = mxonnx.import_model(path, input_shapes=shapes)
    for rows in (1, 5):
        x, state = numbers(rows, 3), numbers(3, rows)
        (y,) = symbol.bind(mx.cpu(), {"x": mx.nd.array(x), "state": mx.nd.array(state)}, grad_req="null").forward()
        np.testing.assert_allclose(y.asnumpy(), x + state.T, rtol=1e-6)
