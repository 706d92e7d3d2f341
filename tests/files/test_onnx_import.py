"""ONNX nodes that flowmx itself does not write, read and compared with onnxruntime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import flowmx as mx
from flowmx.contrib import onnx as mxonnx
from tests.onnx_round import check_file, predict, runtime


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).uniform(0.2, 1.5, shape).astype("float32")


def floats(*values):
    return np.array(values, "float32")


def ints(*values):
    return np.array(values, "int64")


COMPARISONS = ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]
# The dtypes of outputs that are not float32.
TYPES = {
    **{kind: [TensorProto.BOOL] for kind in (*COMPARISONS, "IsNaN", "IsInf")}, "ArgMax": [TensorProto.INT64],
    "QuantizeLinear": [TensorProto.INT8], "QLinearConv": [TensorProto.UINT8], "QLinearMatMul": [TensorProto.UINT8],
    "MatMulInteger": [TensorProto.INT32], "ConvInteger": [TensorProto.INT32],
    "DynamicQuantizeLinear": [TensorProto.UINT8, TensorProto.FLOAT, TensorProto.UINT8],
    "Cast": [TensorProto.INT32], "TopK": [TensorProto.FLOAT, TensorProto.INT64],
}  # fmt: skip


def value_info(name, array):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def save(path, nodes, inputs, constants, outputs, opset=17):
    """Write an ONNX file with these nodes."""
    types = TYPES.get(nodes[-1].op_type, [TensorProto.FLOAT] * len(outputs))
    # onnx infers no shapes of functions, nor of elements that are taken from sequences.
    inferred = nodes[-1].op_type not in ("MeanVarianceNormalization", "Mul")
    shape = None if inferred else [None] * next(iter(inputs.values())).ndim
    graph = helper.make_graph(
        nodes, "graph",
        [value_info(name, value) for name, value in inputs.items()],
        [helper.make_tensor_value_info(k, kind, shape) for k, kind in zip(outputs, types, strict=True)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)


def some_bytes(*shape, dtype="uint8", seed=0):
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)


IMAGE = numbers(2, 4, 7, 9)
GRID = np.random.default_rng(0).uniform(-1.3, 1.3, (2, 3, 5, 2)).astype("float32")
SIGNED = np.random.default_rng(1).uniform(-3, 3, (3, 5)).astype("float32")
# The operator, its inputs (arrays; those after the bar are constants), and its attributes.
NODES = [
    ("Conv", [IMAGE, "|", numbers(6, 4, 3, 2), numbers(6)], {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ("Conv", [IMAGE, "|", numbers(4, 2, 3, 3)], {"auto_pad": "SAME_UPPER", "strides": [2, 2], "group": 2}),
    ("Conv", [IMAGE, "|", numbers(6, 4, 4, 4)], {"auto_pad": "SAME_LOWER"}),
    ("ConvTranspose", [IMAGE, "|", numbers(4, 3, 3, 3)], {"pads": [0, 1, 1, 2], "strides": [2, 2]}),
    ("ConvTranspose", [IMAGE, "|", numbers(4, 3, 3, 3)],
     {"pads": [1, 1, 1, 1], "strides": [2, 2], "output_padding": [1, 1]}),
    ("MaxPool", [IMAGE], {"kernel_shape": [3, 3], "pads": [0, 0, 1, 1], "strides": [2, 2]}),
    ("MaxPool", [IMAGE], {"kernel_shape": [3, 3], "ceil_mode": 1, "strides": [2, 2]}),
    ("AveragePool", [IMAGE], {"kernel_shape": [3, 3], "pads": [0, 0, 1, 1], "strides": [2, 2]}),
    ("AveragePool", [IMAGE], {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"}),
    ("GlobalMaxPool", [IMAGE], {}),
    ("Gemm", [numbers(3, 4), "|", numbers(4, 5), numbers(5)], {}),
    ("Gemm", [numbers(3, 4), "|", numbers(5, 4), numbers(1, 5)], {"transB": 1, "beta": 0.5}),
    ("Gemm", [numbers(4, 3), numbers(4, 5), numbers(3, 1)], {"transA": 1, "alpha": 2.0}),
    ("MatMul", [numbers(2, 3, 4, 5), numbers(2, 3, 5, 2)], {}),
    ("MatMul", [numbers(3, 4), numbers(2, 4, 5)], {}),
    ("MatMul", [numbers(2, 3, 4), "|", numbers(4, 5)], {}),
    ("Add", [numbers(2, 3), "|", numbers(3)], {}),
    *[(kind, ["|", np.float32(1), "|", np.round(numbers(2, 3))], {})
      for kind in ("Add", "Sub", "Mul", "Div", "Pow", "Max", *COMPARISONS)],
    *[(kind, [np.round(numbers(2, 3)), "|", np.float32(1)], {}) for kind in ("Sub", "Div", "Pow", "Min", *COMPARISONS)],
    ("Mod", [numbers(2, 3) - 1, numbers(2, 3, seed=1)], {"fmod": 1}),
    ("Max", [numbers(2, 3), numbers(1, 3, seed=1), numbers(2, 1, seed=2)], {}),
    ("Mean", [numbers(2, 3), numbers(2, 3, seed=1), numbers(3, seed=2)], {}),
    ("GatherElements", [numbers(2, 3, 4), ints([[0, 3], [-1, 1], [2, 2]], [[1, 0], [0, -4], [3, 1]])], {"axis": 2}),
    ("GatherElements", [numbers(3, 4), ints([2, 0, 1, 1], [-1, 1, 0, 2])], {}),
    ("GatherElements", [numbers(3, 4), "|", ints([2, 0, 1], [-1, 1, 0], [0, 0, 3])], {"axis": -1}),
    ("Where", [numbers(2, 1) > 1, numbers(3), numbers(2, 3, seed=1)], {}),
    ("Round", [floats(-2.5, -1.5, -0.5, 0.4, 0.5, 1.5, 2.6)], {}),
    ("HardSwish", [numbers(2, 3) * 4 - 3], {}),
    ("HardSigmoid", [numbers(2, 3) * 4 - 3], {}),
    ("Softplus", [numbers(2, 3)], {}),
    ("Elu", [numbers(2, 3) - 1], {}),
    ("PRelu", [IMAGE - 1, "|", numbers(4, 1, 1)], {}),
    ("Clip", [numbers(2, 3), "|", np.float32(0.5)], {}),
    ("Slice", [IMAGE, "|", ints(-3, 5), ints(2**62, 0), ints(-1, 2), ints(1, -2)], {}),
    ("Gather", [IMAGE, "|", np.int64(-1)], {"axis": 3}),
    ("Gather", [IMAGE, "|", ints(-1, 0, -2)], {"axis": 1}),
    ("Gather", ["|", numbers(5, 3), "|", ints(4, 0)], {}),
    ("Split", [IMAGE, "|", ints(1, 3)], {"axis": 1}),
    ("Flatten", [IMAGE], {"axis": 2}),
    ("Flatten", [IMAGE], {"axis": 3}),
    ("Flatten", [IMAGE], {"axis": 0}),
    ("Unsqueeze", [numbers(2, 3), "|", ints(-1, 0)], {}),
    ("Squeeze", [numbers(2, 1, 3, 1)], {}),
    ("Expand", [numbers(3, 1), "|", ints(2, 1, 4)], {}),
    ("Pad", [IMAGE, "|", ints(0, 0, 1, 2, 0, 0, 2, 1)], {"mode": "reflect"}),
    ("Tile", [numbers(2, 3), "|", ints(2, 1)], {}),
    ("ReduceMean", [IMAGE], {"axes": [-1, 1], "keepdims": 0}),
    ("ReduceLogSumExp", [IMAGE], {"axes": [1], "keepdims": 0}),
    ("ReduceLogSum", [IMAGE], {"axes": [1]}),
    ("ReduceSumSquare", [IMAGE], {"axes": [1, 2]}),
    ("ReduceL1", [IMAGE - 1], {"axes": [3]}),
    ("ReduceL2", [IMAGE - 1], {"axes": [3], "keepdims": 0}),
    ("ArgMax", [IMAGE], {"axis": 1, "keepdims": 0}),
    ("TopK", [IMAGE, "|", ints(2)], {"axis": 1}),
    ("CumSum", [IMAGE, "|", np.int64(2)], {"reverse": 1}),
    ("LpNormalization", [IMAGE], {"axis": 1}),
    ("InstanceNormalization", [IMAGE, "|", numbers(4), numbers(4)], {}),
    ("LayerNormalization", [IMAGE, "|", numbers(9)], {}),
    ("LRN", [IMAGE], {"size": 3}),
    ("LogSoftmax", [IMAGE], {"axis": 1}),
    ("Resize", [IMAGE, "|", floats(), floats(1, 1, 2, 2)],
     {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
    ("Resize", [IMAGE, "|", floats(), floats(), ints(2, 4, 14, 5)], {"mode": "linear"}),
    ("DepthToSpace", [IMAGE], {"blocksize": 2}),
    ("Dropout", [IMAGE], {}),
    ("Cast", [IMAGE], {"to": TensorProto.INT32}),
    ("OneHot", [ints(2, 0, 1), "|", np.int64(4), floats(0.5, 2)], {}),
    ("Sum", [numbers(2, 3), numbers(3, seed=1)], {}),
    ("IsNaN", [floats(1, np.nan, 2)], {}),
    ("IsInf", [floats(1, np.inf, -np.inf)], {}),
    ("IsInf", [floats(1, np.inf, -np.inf)], {"detect_negative": 0}),
    ("Celu", [SIGNED], {"alpha": 0.7}),
    ("ThresholdedRelu", [SIGNED], {"alpha": 0.7}),
    ("Shrink", [SIGNED], {"lambd": 1.0, "bias": 0.25}),
    ("Hardmax", [IMAGE], {"axis": 1}),
    ("Hardmax", [floats([1, 3, 3], [2, 0, 1])], {}),
    ("MeanVarianceNormalization", [IMAGE], {}),
    ("EyeLike", [numbers(3, 4)], {"k": 1}),
    ("Einsum", [numbers(2, 3, 4), numbers(2, 4, 5)], {"equation": "bij,bjk->bik"}),
    ("Einsum", [numbers(2, 3, 4, 5), numbers(2, 6, 4, 5)], {"equation": "bqhd,bkhd->bhqk"}),
    ("Einsum", [numbers(3, 4), numbers(5)], {"equation": "ij,k->kji"}),
    ("Einsum", [numbers(3, 4), numbers(4, 3)], {"equation": "ij,ji"}),
    ("Einsum", [numbers(3, 4, 2), numbers(4)], {"equation": "ijk,j->i"}),
    ("Einsum", [numbers(2, 3, 4)], {"equation": "ijk->ki"}),
    ("ScatterElements", [numbers(3, 4), ints([2, 0, 1, -1]), numbers(1, 4, seed=1)], {}),
    ("ScatterElements", [numbers(3, 4), ints([3, 0], [1, 2], [0, -2]), numbers(3, 2, seed=1)], {"axis": 1}),
    ("ScatterND", [numbers(3, 4), ints([2, 0], [1, 3]), numbers(2, seed=1)], {}),
    ("ScatterND", [numbers(3, 4), ints([2], [0]), numbers(2, 4, seed=1)], {}),
    ("GridSample", [IMAGE, GRID], {"mode": "bilinear"}),
    ("GridSample", [IMAGE, GRID], {"mode": "bilinear", "align_corners": 1}),
    ("GridSample", [IMAGE, GRID], {"mode": "bilinear", "padding_mode": "border"}),
    ("QuantizeLinear", [SIGNED, "|", np.float32(0.05), np.int8(3)], {}),
    ("QuantizeLinear", [SIGNED, "|", floats(0.1, 0.02, 0.03), np.array([1, 2, -3], "int8")], {"axis": 0}),
    ("DequantizeLinear", [some_bytes(3, 5), "|", np.float32(0.05), np.uint8(3)], {}),
    ("DequantizeLinear", [some_bytes(3, 5, dtype="int8"), "|", floats(0.1, 0.02, 0.03, 1, 2)], {"axis": 1}),
    ("DynamicQuantizeLinear", [SIGNED], {}),
    ("MatMulInteger", [some_bytes(2, 3, 40), some_bytes(40, 5, seed=1), "|", np.uint8(7), np.uint8(120)], {}),
    ("ConvInteger", [some_bytes(1, 3, 5, 6), "|", some_bytes(4, 3, 3, 3, seed=1), np.uint8(9)], {"pads": [1, 1, 0, 1]}),
    ("QLinearMatMul",
     [some_bytes(3, 20), "|", np.float32(0.01), np.uint8(7), "|", some_bytes(20, 5, seed=1), "|", np.float32(0.02),
      np.uint8(99), np.float32(0.2), np.uint8(128)], {}),
    # Weights of seven bits: without VNNI onnxruntime's sums of larger products saturate.
    ("QLinearConv",
     [some_bytes(1, 3, 5, 6), "|", np.float32(0.01), np.uint8(7), some_bytes(4, 3, 3, 3, dtype="int8") // 4,
      floats(0.01, 0.02, 0.03, 0.01), np.zeros(4, "int8"), np.float32(0.3), np.uint8(128),
      np.array([1, -2000, 3, 4000], "int32")], {"strides": [2, 1]}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "shapes", "attributes"), NODES, ids=[f"{row[0]}-{index}" for index, row in enumerate(NODES)]
)
def test_a_node_is_read_as_onnxruntime_runs_it(kind, shapes, attributes, tmp_path):
    inputs, constants, names = {}, {}, []
    for index, each in enumerate(shapes):
        if isinstance(each, str):
            continue
        if isinstance(each, np.ndarray) and each.dtype == np.float32 and not each.size:
            names.append("")
            continue
        bars = sum(1 for mark in shapes[:index] if isinstance(mark, str))
        names.append(f"x{index}")
        (constants if bars % 2 else inputs)[names[-1]] = np.asarray(each)
    count = {"Split": 2, "TopK": 2, "DynamicQuantizeLinear": 3}.get(kind, 1)
    path, outputs = str(tmp_path / "model.onnx"), [f"y{index}" for index in range(count)]
    save(path, [helper.make_node(kind, names, outputs, **attributes)], inputs, constants, outputs)
    expected = [as_numbers(each) for each in runtime(path, inputs)]
    symbol, arguments, auxiliary = mxonnx.import_model(path)
    values = {k: mx.nd.array(v.astype("float32") if v.dtype == bool else v, dtype=None if v.dtype == bool else v.dtype)
              for k, v in inputs.items()}  # fmt: skip
    result = symbol.bind(mx.cpu(), {**arguments, **values}, grad_req="null", aux_states=auxiliary).forward()
    for actual, wanted in zip(result, expected, strict=True):
        np.testing.assert_allclose(actual.asnumpy(), wanted, rtol=1e-4, atol=1e-5)
        assert actual.shape == (wanted.shape or (1,))  # a number is an array of one element


def as_numbers(array):
    return array.astype("float32") if array.dtype == bool else array


def test_sequences_are_read_as_their_elements(tmp_path):
    """Exporters write torch.split, torch.chunk and lists of arrays like this."""
    nodes = [
        helper.make_node("SplitToSequence", ["x", "sizes"], ["parts"], axis=1),
        helper.make_node("SequenceAt", ["parts", "first"], ["a"]),
        helper.make_node("SequenceAt", ["parts", "last"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("SequenceConstruct", ["a"], ["made"]),
        helper.make_node("SequenceInsert", ["made", "c"], ["two"]),
        helper.make_node("SequenceInsert", ["two", "b", "first"], ["three"]),
        helper.make_node("SequenceErase", ["three", "last"], ["left"]),
        helper.make_node("SequenceLength", ["left"], ["count"]),
        helper.make_node("Cast", ["count"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("ConcatFromSequence", ["left"], ["joined"], axis=-1),
        helper.make_node("Mul", ["joined", "number"], ["y"]),
    ]
    inputs = {"x": numbers(2, 5) - 1}
    constants = {"sizes": ints(2, 3), "first": np.int64(0), "last": np.int64(-1)}
    path = str(tmp_path / "model.onnx")
    save(path, nodes, inputs, {name: np.asarray(each) for name, each in constants.items()}, ["y"])
    symbol, arguments, _ = mxonnx.import_model(path)
    (result,) = predict(symbol, arguments, inputs)
    # onnxruntime assumes that all parts have the same size.
    np.testing.assert_allclose(result, ReferenceEvaluator(path).run(None, inputs)[0], rtol=1e-6)


@pytest.mark.parametrize("rank", [2, 3])
def test_a_branch_with_a_constant_condition_is_read(rank, tmp_path):
    """Exporters write torch.squeeze as a branch for each rank."""
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)
    then = helper.make_graph([helper.make_node("Relu", ["x"], ["t"])], "then", [], [
        helper.make_tensor_value_info("t", TensorProto.FLOAT, None)])  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Mul", ["x", "two"], ["m"]), helper.make_node("Neg", ["m"], ["e"])], "else", [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)], [numpy_helper.from_array(floats(2), "two")],
    )  # fmt: skip
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Size", ["shape"], ["rank"]),
        helper.make_node("Equal", ["rank", "wanted"], ["is"]),
        helper.make_node("If", ["is"], ["y"], then_branch=then, else_branch=other),
    ]  # fmt: skip
    inputs = {"x": numbers(*range(2, 2 + rank)) - 1}
    graph = helper.make_graph(nodes, "graph", [value_info("x", inputs["x"])], [value],
                              [numpy_helper.from_array(np.int64(2), "wanted")])  # fmt: skip
    path = str(tmp_path / "model.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    check_file(path, runtime(path, inputs), inputs)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_recurrent_layers_in_each_direction(kind, direction, tmp_path):
    gates, count = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 2 if direction == "bidirectional" else 1
    inputs = {"x": numbers(5, 3, 4), "lengths": np.array([5, 2, 4], "int32")}
    constants = {
        "w": numbers(count, gates * 6, 4) - 0.8,
        "r": numbers(count, gates * 6, 6) - 0.8,
        "b": numbers(count, gates * 12),
    }
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    node = helper.make_node(kind, ["x", *constants, "lengths"], ["y", "h"], hidden_size=6, direction=direction, **more)
    path = str(tmp_path / "model.onnx")
    save(path, [node], inputs, constants, ["y", "h"])
    check_file(path, runtime(path, inputs), inputs)


def test_shapes_are_computed_while_reading(tmp_path):
    """Other tools write a view by slicing the batch and a number of channels from a shape."""
    make = helper.make_node
    nodes = [
        make("Shape", ["x"], ["shape"]),
        make("Gather", ["shape", "zero"], ["batch"]),
        make("Unsqueeze", ["batch", "first"], ["rows"]),
        make("Concat", ["rows", "rest"], ["wanted"], axis=0),
        make("Reshape", ["x", "wanted"], ["flat"]),
        make("Relu", ["flat"], ["y"]),
    ]
    constants = {"zero": np.int64(0), "first": ints(0), "rest": ints(-1)}
    path = str(tmp_path / "model.onnx")
    save(path, nodes, {"x": numbers(2, 3, 4)}, constants, ["y"])
    symbol = check_file(path, [numbers(2, 3, 4).reshape(2, 12)], {"x": numbers(2, 3, 4)})[0]
    assert symbol.list_arguments() == ["x"]


def test_every_unknown_node_is_named(tmp_path):
    empty = helper.make_graph([], "body", [], [])
    nodes = [
        helper.make_node("STFT", ["x", "one"], ["a"], name="first"),
        helper.make_node("Loop", ["", "", "a"], ["b"], name="second", body=empty),
    ]
    graph = helper.make_graph(nodes, "graph", [helper.make_tensor_value_info("x", 1, [1, 8])], [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    from flowmx.contrib.onnx.graph_import import GraphImport

    with pytest.raises(mxonnx.ONNXError, match=r"(?s)'first' \(STFT\).*'second' \(Loop\)"):
        GraphImport(model, {}).run()


@pytest.mark.parametrize(
    ("kind", "attributes", "constants", "message"),
    [
        ("MaxPool", {"kernel_shape": [2, 2], "dilations": [2, 2]}, {}, "dilations are"),
        ("Resize", {"mode": "cubic"}, {"": None, "sizes": ints(2, 4, 14, 18)}, "mode is cubic"),
        ("Pad", {}, {"pads": ints(0, 0, 0, -1, 0, 0, 0, 0)}, "nonnegative ones"),
        ("DepthToSpace", {"blocksize": 2, "mode": "CRD"}, {}, "mode is 'CRD'"),
        ("PRelu", {}, {"slope": numbers(2)}, r"its slope has the shape \(2,\), expected one for each channel"),
    ],
)
def test_an_attribute_without_counterpart_is_named(kind, attributes, constants, message, tmp_path):
    path = str(tmp_path / "model.onnx")
    names = ["x", *constants] if kind != "Resize" else ["x", "", "", "sizes"]
    initializers = {name: value for name, value in constants.items() if name}
    save(path, [helper.make_node(kind, names, ["y"], name="layer", **attributes)], {"x": IMAGE}, initializers, ["y"])
    with pytest.raises(mxonnx.ONNXError, match=rf"'layer' \({kind}\): .*{message}"):
        mxonnx.import_model(path)
