"""BERT as exporters write it is imported: masks, embeddings, attention and norms of plain nodes, dynamic lengths."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import flowmx as mx
from tests.onnx_round import runtime

WORDS, LENGTH, WIDTH, HEADS, LAYERS = 30, 128, 8, 2, 2


class Graph:
    """A builder of a graph, which collects nodes and constants."""

    def __init__(self, seed=0):
        self.nodes, self.constants, self.random = [], [], np.random.default_rng(seed)

    def add(self, kind, *inputs, outputs=1, **attributes):
        names = [f"{kind}_{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value, dtype="float32"):
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def ints(self, *values):
        return self.constant(values, "int64")

    def weight(self, *shape):
        return self.constant(self.random.normal(size=shape) * 0.4)

    def norm(self, x, opset):
        gamma, beta = self.weight(WIDTH), self.weight(WIDTH)
        if opset >= 17:
            return self.add("LayerNormalization", x, gamma, beta, axis=-1, epsilon=1e-12)
        centred = self.add("Sub", x, self.add("ReduceMean", x, axes=[-1]))
        variance = self.add("ReduceMean", self.add("Pow", centred, self.constant(2)), axes=[-1])
        root = self.add("Sqrt", self.add("Add", variance, self.constant(1e-12)))
        return self.add("Add", self.add("Mul", self.add("Div", centred, root), gamma), beta)

    def linear(self, x, width, out):
        return self.add("Add", self.add("MatMul", x, self.weight(width, out)), self.weight(out))

    def gelu(self, x, opset):
        if opset >= 20:
            return self.add("Gelu", x)
        erf = self.add("Erf", self.add("Div", x, self.constant(2**0.5)))
        return self.add("Mul", self.add("Mul", x, self.add("Add", erf, self.constant(1))), self.constant(0.5))


def bert(opset, causal=False):
    """Return the model: inputs are words and mask of (batch, length), outputs the states and the pooled first state."""
    graph = Graph()
    add, ints = graph.add, graph.ints
    shape = add("Shape", "words")
    length = add("Gather", shape, graph.constant(1, "int64"), axis=0)
    batch = add("Gather", shape, graph.constant(0, "int64"), axis=0)
    places = add("Range", graph.constant(0, "int64"), length, graph.constant(1, "int64"))
    ends = [add("Unsqueeze", each, ints(0)) for each in (batch, length)]
    sizes = add("Concat", *ends, axis=0)
    spread = add("Expand", add("Unsqueeze", places, ints(0)), sizes)
    kinds = add("ConstantOfShape", sizes, value=helper.make_tensor("zero", TensorProto.INT64, [1], [0]))
    table = graph.weight(LENGTH, WIDTH)
    sliced = add("Slice", table, ints(0), ends[1], ints(0), ints(1))
    x = add("Add", add("Gather", graph.weight(WORDS, WIDTH), "words"), add("Gather", graph.weight(2, WIDTH), kinds))
    x = add("Add", x, add("Gather", table, spread))
    x = graph.norm(add("Add", x, sliced), opset)
    wide = add("Unsqueeze", "mask", ints(1, 2))
    four = add("Concat", ends[0], ints(1), ends[1], ends[1], axis=0)
    visible = add("Cast", add("Expand", wide, four), to=TensorProto.FLOAT)
    hidden = add("Equal", visible, graph.constant(0))
    if causal:
        ones = add("ConstantOfShape", four, value=helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]))
        later = add("Trilu", ones, graph.constant(1, "int64"), upper=1)
        hidden = add("Or", hidden, add("Cast", later, to=TensorProto.BOOL))
    bias = add("Where", hidden, graph.constant(-1e4), graph.constant(0))
    for _ in range(LAYERS):
        split = add("Concat", *ends, ints(HEADS, WIDTH // HEADS), axis=0)
        q, k, v = (add("Reshape", graph.linear(x, WIDTH, WIDTH), split) for _ in range(3))
        q, v = (add("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, v))
        scores = add("MatMul", q, add("Transpose", k, perm=[0, 2, 3, 1]))
        scores = add("Div", scores, graph.constant((WIDTH / HEADS) ** 0.5))
        mixed = add("MatMul", add("Softmax", add("Add", scores, bias), axis=-1), v)
        joined = add("Reshape", add("Transpose", mixed, perm=[0, 2, 1, 3]), ints(0, 0, WIDTH))
        x = graph.norm(add("Add", x, graph.linear(joined, WIDTH, WIDTH)), opset)
        inner = graph.gelu(graph.linear(x, WIDTH, 2 * WIDTH), opset)
        x = graph.norm(add("Add", x, graph.linear(inner, 2 * WIDTH, WIDTH)), opset)
    first = add("Gather", x, graph.constant(0, "int64"), axis=1)
    pooled = add("Tanh", add("Gemm", first, graph.weight(WIDTH, WIDTH), graph.weight(WIDTH), transB=1))
    mean = add("ReduceMean", x, ints(1), keepdims=0) if opset >= 18 else add("ReduceMean", x, axes=[1], keepdims=0)
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in ("words", "mask")]
    shapes = {x: ["batch", "length", WIDTH], pooled: ["batch", WIDTH], mean: ["batch", WIDTH]}
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    model_graph = helper.make_graph(graph.nodes, "bert", inputs, outputs, graph.constants)
    return helper.make_model(model_graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("opset", [13, 17, 20])
def test_a_bert_is_read_and_computes_the_same_as_onnxruntime(opset, causal, tmp_path):
    if causal and opset == 13:
        opset = 14  # Trilu's first
    path = str(tmp_path / "bert.onnx")
    onnx.save(bert(opset, causal), path)
    random = np.random.default_rng(1)
    for batch, length in ((2, 7), (3, 16)):
        words = random.integers(0, WORDS, (batch, length))
        mask = (np.arange(length) < random.integers(1, length + 1, (batch, 1))).astype("int64")
        expected = runtime(path, {"words": words, "mask": mask})
        for shapes in (None, {"words": words.shape, "mask": mask.shape}):
            net = mx.contrib.onnx.import_to_gluon(path, mx.cpu(), input_shapes=shapes)
            inputs = [mx.nd.array(each, dtype="int64") for each in (words, mask)]
            for actual, wanted in zip(net(*inputs), expected, strict=True):
                np.testing.assert_allclose(actual.asnumpy(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-2, 0, 1, 9])
@pytest.mark.parametrize("shape", [(3, 5), (2, 4, 3), (2, 2, 3, 3)], ids=str)
def test_a_triangle_of_a_computed_array(shape, k, upper, tmp_path):
    places = helper.make_tensor("k", TensorProto.INT64, [], [k])
    nodes = [helper.make_node("Trilu", ["x", "k"], ["y"], upper=upper)]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph(nodes, "triangle", values[:1], values[1:], [places])
    path = str(tmp_path / "triangle.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), path)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    x.flat[:3] = np.inf, np.nan, -np.inf
    actual = mx.contrib.onnx.import_to_gluon(path, mx.cpu())(mx.nd.array(x)).asnumpy()
    np.testing.assert_array_equal(actual, (np.triu if upper else np.tril)(x, k))
