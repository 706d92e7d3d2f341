"""ONNX files of Transformers: nodes of opset 23 next to ONNX's reference, and caches of keys and values."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import flowmx as mx
from flowmx.contrib import onnx as mxonnx
from tests.onnx_round import predict, runtime

BATCH, LENGTH, PAST, HEADS, SIZE = 2, 4, 3, 4, 6


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def heads(length, count=HEADS, seed=0):
    return numbers(BATCH, count, length, SIZE, seed=seed)


POSITIONS = np.array([[0, 1, 2, 3], [4, 2, 0, 1]], "int64")
TURNS = {"x": heads(LENGTH), "cos": numbers(8, 3, seed=1), "sin": numbers(8, 3, seed=2), "at": POSITIONS}
SELF = {"q": heads(LENGTH), "k": heads(LENGTH, seed=1), "v": heads(LENGTH, seed=2)}
SHARED = {"q": heads(LENGTH), "k": heads(LENGTH, 2, seed=1), "v": heads(LENGTH, 2, seed=2)}
FLAT = {
    "q": numbers(BATCH, LENGTH, 24), "k": numbers(BATCH, LENGTH, 12, seed=1), "v": numbers(BATCH, LENGTH, 12, seed=2),
}  # fmt: skip
CACHE = {"past_k": heads(PAST, seed=3), "past_v": heads(PAST, seed=4)}
MASK = np.random.default_rng(5).random((BATCH, 1, LENGTH, LENGTH)) < 0.7
MASK[..., 0] = True
NODES = [
    ("RMSNormalization", {"x": numbers(2, 3, 5), "scale": numbers(5, seed=1)}, {"epsilon": 1e-4}, 1),
    ("RotaryEmbedding", TURNS, {}, 1),
    ("RotaryEmbedding", TURNS, {"interleaved": 1}, 1),
    ("RotaryEmbedding", {**TURNS, "cos": numbers(8, 2, seed=1), "sin": numbers(8, 2, seed=2)},
     {"rotary_embedding_dim": 4}, 1),
    ("RotaryEmbedding", {"x": numbers(BATCH, LENGTH, 24), "cos": numbers(BATCH, LENGTH, 3, seed=1),
                         "sin": numbers(BATCH, LENGTH, 3, seed=2)}, {"num_heads": HEADS}, 1),
    ("Attention", SELF, {}, 1),
    ("Attention", SELF, {"scale": 0.3, "softcap": 2.0}, 1),
    ("Attention", SELF, {"is_causal": 1}, 1),
    ("Attention", SHARED, {"is_causal": 1}, 1),
    ("Attention", FLAT, {"q_num_heads": HEADS, "kv_num_heads": 2}, 1),
    ("Attention", {**SELF, "mask": MASK}, {}, 1),
    ("Attention", {**SELF, "mask": numbers(LENGTH, LENGTH, seed=6)}, {"is_causal": 1}, 1),
    ("Attention", {**SELF, "mask": None, **CACHE}, {"is_causal": 1}, 3),
]  # fmt: skip


def save(path, nodes, inputs, outputs, constants=None):
    graph = helper.make_graph(
        nodes, "graph",
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
         for name, value in inputs.items()],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)


def check(path, inputs):
    expected = ReferenceEvaluator(str(path)).run(None, inputs)
    symbol, arguments, _ = mxonnx.import_model(str(path))
    fed = {name: value.astype("float32") if value.dtype == bool else value for name, value in inputs.items()}
    for actual, wanted in zip(predict(symbol, arguments, fed), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "inputs", "options", "count"), NODES, ids=lambda each: str(each)[:40])
def test_nodes_of_opset_23(kind, inputs, options, count, tmp_path):
    names = [name if value is not None else "" for name, value in inputs.items()]
    inputs = {name: value for name, value in inputs.items() if value is not None}
    outputs = [f"y{index}" for index in range(count)]
    save(tmp_path / "net.onnx", [helper.make_node(kind, names, outputs, **options)], inputs, outputs)
    check(tmp_path / "net.onnx", inputs)


def test_masks_are_boolean_by_their_type(tmp_path):
    """Computed booleans are conditions; equal numbers of floating point are added."""
    nodes = [
        helper.make_node("Less", ["m", "limit"], ["less"]),
        helper.make_node("Unsqueeze", ["less", "axes"], ["mask"]),
        helper.make_node("Attention", ["q", "k", "v", "mask"], ["y0"]),
        helper.make_node("Cast", ["mask"], ["added"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Attention", ["q", "k", "v", "added"], ["y1"]),
    ]
    inputs = {**SELF, "m": numbers(LENGTH, LENGTH, seed=7)}
    constants = {"limit": np.float32(0.4), "axes": np.array([0], "int64")}
    constants = {name: np.asarray(value) for name, value in constants.items()}
    save(tmp_path / "net.onnx", nodes, inputs, ["y0", "y1"], constants)
    check(tmp_path / "net.onnx", inputs)


def test_unsupported_options(tmp_path):
    path = str(tmp_path / "net.onnx")
    inputs = {"x": numbers(2, 3, 5), "scale": numbers(3, 5)}
    save(path, [helper.make_node("RMSNormalization", list(inputs), ["y"], axis=1)], inputs, ["y"])
    with pytest.raises(mxonnx.ONNXError, match="over axes 1 to 2, expected only the last"):
        mxonnx.import_model(path)
    save(path, [helper.make_node("Attention", list(SELF), ["y", "", "", "scores"])], SELF, ["y", "scores"])
    with pytest.raises(mxonnx.ONNXError, match="qk_matmul_output is unsupported"):
        mxonnx.import_model(path)


def test_a_step_with_a_cache_is_exported(tmp_path):
    """One file computes every step: it takes a token and the cache, and returns the logits and the next cache."""
    net = mx.gluon.model_zoo.text.GPT2LM(vocab_size=11, units=8, num_layers=2, num_heads=2, max_length=6)
    mx.random.seed(0)
    net.initialize(mx.init.Normal(0.5))
    net.hybridize()
    tokens = mx.nd.array([[3, 1, 4, 1], [5, 9, 2, 6]])
    expected = net(tokens).asnumpy()
    net.hybridize()  # the file is that of the next call
    cache = net.begin_cache(2, 6)
    net(tokens[:, :1], cache=cache)
    symbol, params = net.export(str(tmp_path / "net"))
    path = str(tmp_path / "net.onnx")
    flat = [tokens[:, :1], *(array for layer in cache for array in layer)]
    arrays = {f"data{index}": array for index, array in enumerate(flat)}
    order = [name for name in mx.sym.load(symbol).list_inputs() if name in arrays]
    shapes, types = ([getattr(arrays[name], part) for name in order] for part in ("shape", "dtype"))
    mxonnx.export_model(symbol, params, shapes, types, path)
    state = [each.asnumpy() for each in flat[1:]]
    for place in range(4):
        step = [tokens[:, place : place + 1].asnumpy(), *state]
        logits, *state = runtime(path, dict(zip(arrays, step, strict=True)))
        np.testing.assert_allclose(logits[:, 0], expected[:, place], rtol=1e-4, atol=1e-5)
