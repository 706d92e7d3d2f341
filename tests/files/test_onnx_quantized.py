"""ONNX's quantized models: layers between conversions compute in int8, and agree with ONNX's reference."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import flowmx as mx
from flowmx.contrib import quantization
from flowmx.contrib.onnx import export_model, import_to_gluon
from flowmx.contrib.onnx.import_constants import Numbers
from flowmx.graph import compiler

KINDS = {"int8": (TensorProto.INT8, -128, 127), "uint8": (TensorProto.UINT8, 0, 255)}


@pytest.mark.parametrize(
    ("whole", "scale", "zero", "axis", "counted"),
    [
        ("int8", [1], None, 0, True), ("int32", [1, 2], None, -2, True), ("uint8", [1, 2], 128, 0, True),
        ("int8", [1], 0, 0, True), ("int8", 1, 0, 0, True), ("uint8", [1], 127, 0, False), ("int8", [1], 3, 0, False),
        ("int16", [1], None, 0, False), ("uint8", [1], None, 0, False), ("int8", [[1, 2]], None, 0, False),
    ],
)  # fmt: skip
def test_integers_with_a_zero_point(whole, scale, zero, axis, counted):
    integers, scale = np.arange(6).reshape(2, 3).astype(whole), np.array(scale, np.float32)
    result = Numbers.of(integers, scale, None if zero is None else np.full(scale.shape, zero, whole), axis)
    assert (result is not None) == counted
    if counted:
        np.testing.assert_array_equal(result.whole, integers.astype(int) - (128 if zero == 128 else 0))
        assert result.axis == 0 and result.whole.dtype in (np.int8, np.int32)
        assert result.transposed().axis == 1 and result.transposed().whole.shape == (3, 2)
    assert not counted or Numbers.of(integers, scale.astype(np.float64), None, axis) is None


class Model:
    """A model under construction; each method returns the name of a value."""

    def __init__(self, dtype="uint8", seed=0):
        self.nodes, self.constants = [], []
        self.dtype, self.rng = dtype, np.random.default_rng(seed)

    def constant(self, array):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, kind, *inputs, **attributes):
        name = f"v{len(self.nodes)}"
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        self.nodes.append(helper.make_node(kind, names, [name], name=name, **attributes))
        return name

    def bytes(self, x, scale, zero):
        """Quantize a value to bytes and dequantize it."""
        ends = np.float32(scale), np.asarray(zero, self.dtype)
        return self.add("DequantizeLinear", self.add("QuantizeLinear", x, *ends), *ends)

    def weight(self, *shape, by_channel=False, axis=0, dtype="int8", zero=0):
        whole = self.rng.integers(*((-127, 128) if dtype == "int8" else (0, 256)), shape).astype(dtype)
        if by_channel:
            scale = self.rng.uniform(0.002, 0.01, shape[axis]).astype("f")
            return self.add("DequantizeLinear", whole, scale, np.full(shape[axis], zero, dtype), axis=axis)
        return self.add("DequantizeLinear", whole, np.float32(0.005), np.asarray(zero, dtype))

    def bias(self, count):
        whole = self.rng.integers(-5000, 5000, count).astype("int32")
        return self.add("DequantizeLinear", whole, self.rng.uniform(1e-4, 2e-4, count).astype("f"), axis=0)

    def save(self, path, output, shape, opset=19, rank=None):
        graph = helper.make_graph(
            self.nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, [None] * (rank or len(shape)))], self.constants,
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        model.ir_version = 9
        onnx.save(model, path)
        return path


def read(path):
    net = import_to_gluon(str(path), mx.cpu())
    net.hybridize(static_alloc=True, static_shape=True)
    return net


@pytest.fixture
def ran(monkeypatch):
    """Return the operators of the graph that was compiled last."""
    names = []

    def look(graph, options):
        names[:] = [node.op.name for node in graph.nodes() if node.op is not None]
        return graph

    monkeypatch.setattr(compiler, "PASSES", [*compiler.PASSES, look])
    return names


def zero_of(dtype, part):
    """Return a zero point between the smallest (0) and the largest (1) number of a type."""
    _, low, high = KINDS[dtype]
    return low + int(part * (high - low))


def compared(tmp_path, model, output, shape, step, rank=None):
    """Run a model here and by ONNX's reference; results may differ by at most one step."""
    path = model.save(tmp_path / "model.onnx", output, shape, rank=rank)
    x = np.random.default_rng(7).normal(size=shape).astype("f")
    expected = ReferenceEvaluator(str(path)).run(None, {"x": x})[0]
    net = read(path)
    outputs = [net(mx.nd.array(x)).asnumpy() for _ in range(2)]
    np.testing.assert_array_equal(*outputs)
    assert len(np.unique(expected)) > 20
    np.testing.assert_allclose(outputs[0], expected, rtol=0, atol=1.001 * step)
    assert (np.abs(outputs[0] - expected) > 0.01 * step).mean() < 0.02
    return net


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("part", [0, 0.4])
@pytest.mark.parametrize("more", [{}, {"pads": [1, 1, 1, 1]}, {"pads": [1, 1, 1, 1], "group": 4, "strides": [2, 2]}])
def test_convolutions(tmp_path, ran, dtype, by_channel, part, more):
    model = Model(dtype)
    x = model.bytes("x", 0.02, zero_of(dtype, part))
    group = more.get("group", 1)
    layer = model.add("Conv", x, model.weight(8, 8 // group, 3, 3, by_channel=by_channel), model.bias(8), **more)
    compared(tmp_path, model, model.bytes(layer, 0.05, zero_of(dtype, 0.5)), (2, 8, 9, 9), 0.05)
    assert ran.count("_int8_Convolution") == 1
    assert not {"Convolution", "_fused_Convolution"} & set(ran)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("then", ["Relu", "Clip"])
@pytest.mark.parametrize("between", [False, True])
def test_activations_go_into_layers(tmp_path, ran, dtype, then, between):
    model = Model(dtype)
    layer = model.add("Conv", model.bytes("x", 0.02, zero_of(dtype, 0.5)), model.weight(8, 4, 1, 1), model.bias(8))
    if between:  # as onnxruntime writes symmetric activations
        layer = model.bytes(layer, 0.04, zero_of(dtype, 0.5) + (dtype == "int8"))
    ends = [np.float32(0), np.float32(3)] if then == "Clip" else []
    layer = model.bytes(model.add(then, layer, *ends), 0.02, zero_of(dtype, 0))
    step = 0.04 if between else 0.02
    if not between:
        compared(tmp_path, model, layer, (2, 4, 5, 5), step)
        assert [name for name in ran if name in ("relu", "clip", "Activation")] == []
    else:
        path = model.save(tmp_path / "model.onnx", layer, (2, 4, 5, 5))
        x = np.random.default_rng(7).normal(size=(2, 4, 5, 5)).astype("f")
        actual, expected = read(path)(mx.nd.array(x)).asnumpy(), ReferenceEvaluator(str(path)).run(None, {"x": x})[0]
        np.testing.assert_allclose(actual, expected, rtol=0, atol=step)
    assert "_int8_Convolution" in ran


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("zero", [0, 0.45])
def test_sums_and_pooling_stay_bytes(tmp_path, ran, dtype, zero):
    model = Model(dtype)
    x = model.bytes("x", 0.02, zero_of(dtype, 0.5))
    x = model.add("Relu", model.add("Conv", x, model.weight(8, 4, 3, 3, by_channel=True), pads=[1, 1, 1, 1]))
    x = model.bytes(x, 0.02, zero_of(dtype, 0))
    x = model.bytes(model.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 0.02, zero_of(dtype, 0))
    y = model.bytes(model.add("Conv", x, model.weight(8, 8, 1, 1), model.bias(8)), 0.05, zero_of(dtype, 0.5))
    total = model.add("Add", y, x)
    total = model.add("Relu", total) if zero == 0 else total
    out = model.bytes(total, 0.05, zero_of(dtype, zero))
    path = model.save(tmp_path / "model.onnx", out, (2, 4, 8, 8))
    data = np.random.default_rng(7).normal(size=(2, 4, 8, 8)).astype("f")
    expected = ReferenceEvaluator(str(path)).run(None, {"x": data})[0]
    actual = read(path)(mx.nd.array(data)).asnumpy()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=0.0501)
    assert ran.count("_int8_Convolution") == 2
    assert "_pool_bytes" in ran
    assert not {"elemwise_add", "broadcast_add", "relu", "Pooling"} & set(ran)
    assert (ran.count("_quantize_linear"), ran.count("_dequantize_linear")) == (1, 1)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("kind", ["Gemm", "MatMul"])
def test_products(tmp_path, ran, dtype, kind):
    model = Model(dtype)
    shape = (6, 32) if kind == "Gemm" else (2, 5, 32)
    x = model.bytes("x", 0.02, zero_of(dtype, 0.4))
    if kind == "Gemm":
        layer = model.add("Gemm", x, model.weight(16, 32, by_channel=True), model.bias(16), transB=1)
    else:
        layer = model.add("MatMul", x, model.weight(32, 16, by_channel=True, axis=1))
        layer = model.add("Add", layer, model.bias(16))
    layer = model.bytes(layer, 0.05, zero_of(dtype, 0.5))
    layer = model.bytes(model.add("Reshape", layer, np.array([-1, 4])), 0.05, zero_of(dtype, 0.5))
    compared(tmp_path, model, layer, shape, 0.05, rank=2)
    assert ran.count("_int8_FullyConnected") == 1
    assert ran.count("_dequantize_linear") == 1
    assert not {"broadcast_add", "FullyConnected", "_fused_FullyConnected"} & set(ran)


def test_floating_point_outputs(tmp_path, ran):
    model = Model()
    layer = model.add("Gemm", model.bytes("x", 0.02, 120), model.weight(16, 32), transB=1)
    compared(tmp_path, model, model.add("Relu", layer), (6, 32), 1e-4)
    assert ran.count("_int8_FullyConnected") == 1
    assert "_dequantize_linear" not in ran


@pytest.mark.parametrize(("zero", "on_bytes"), [(128, True), (100, False)])
def test_weights_of_uint8(tmp_path, ran, zero, on_bytes):
    model = Model()
    layer = model.add("Conv", model.bytes("x", 0.02, 120), model.weight(8, 4, 1, 1, dtype="uint8", zero=zero))
    compared(tmp_path, model, model.bytes(layer, 0.05, 128), (2, 4, 5, 5), 0.05)
    assert ("_int8_Convolution" in ran) == on_bytes


def test_values_with_other_consumers_stay_floating_point(tmp_path, ran):
    model = Model()
    layer = model.add("Conv", model.bytes("x", 0.02, 120), model.weight(8, 4, 1, 1))
    both = model.add("Add", model.bytes(layer, 0.05, 128), model.add("Sigmoid", layer))
    compared(tmp_path, model, both, (2, 4, 5, 5), 0.05)
    assert "_int8_Convolution" in ran


def test_older_files(tmp_path, ran):
    outputs = []
    for opset in (13, 19):
        model = Model()
        layer = model.add("Conv", model.bytes("x", 0.02, 120), model.weight(8, 4, 3, 3, by_channel=True), model.bias(8))
        path = model.save(tmp_path / "model.onnx", model.bytes(layer, 0.05, 128), (2, 4, 6, 6), opset)
        outputs.append(read(path)(mx.nd.array(np.random.default_rng(7).normal(size=(2, 4, 6, 6)))).asnumpy())
        assert "_int8_Convolution" in ran
    np.testing.assert_array_equal(*outputs)


def test_parameters_that_are_written_count(tmp_path):
    model = Model()
    layer = model.add("Gemm", model.bytes("x", 0.02, 120), model.weight(16, 32), transB=1)
    net = compared(tmp_path, model, layer, (6, 32), 1e-4)
    x = mx.nd.random.normal(shape=(6, 32))
    before = net(x).asnumpy()
    scale = next(param for name, param in net.collect_params().items() if name.endswith("scale"))
    scale.set_data(scale.data() * 2)
    np.testing.assert_allclose(net(x).asnumpy(), 2 * before, rtol=1e-5, atol=1e-5)


class Small(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first = mx.gluon.nn.Conv2D(8, 3, padding=1, in_channels=3, activation="relu")
            self.second = mx.gluon.nn.Conv2D(8, 3, padding=1, in_channels=8)
            self.last = mx.gluon.nn.Dense(5, in_units=128)

    def hybrid_forward(self, F, x):
        x = F.Pooling(self.first(x), kernel=(2, 2), stride=(2, 2), pool_type="max")
        return self.last(F.relu(x + self.second(x)))


def test_our_quantized_networks_come_back_as_such(tmp_path, ran):
    mx.random.seed(1)
    net = Small()
    net.initialize(mx.init.Xavier())
    x = mx.nd.random.normal(shape=(4, 3, 8, 8))
    net(x)
    quantized = quantization.quantize_net_v2(net, calib_mode="naive", calib_data=mx.io.NDArrayIter(x, batch_size=4))
    expected = quantized(x).asnumpy()
    quantized.hybridize()
    quantized(x)
    quantized.export(f"{tmp_path}/net")
    shape = [(4, 3, 8, 8)]
    export_model(f"{tmp_path}/net-symbol.json", f"{tmp_path}/net-0000.params", shape, np.float32, f"{tmp_path}/a.onnx")
    back = read(f"{tmp_path}/a.onnx")
    actual = back(x).asnumpy()
    step = np.abs(expected).max() / 127
    np.testing.assert_allclose(actual, expected, rtol=0, atol=step)
    assert (ran.count("_int8_Convolution"), ran.count("_int8_FullyConnected")) == (2, 1)
    back.export(f"{tmp_path}/back")
    export_model(
        f"{tmp_path}/back-symbol.json", f"{tmp_path}/back-0000.params", shape, np.float32, f"{tmp_path}/b.onnx"
    )
    kinds = [node.op_type for node in onnx.load(f"{tmp_path}/b.onnx").graph.node]
    assert kinds.count("QuantizeLinear") >= 3
    np.testing.assert_allclose(read(f"{tmp_path}/b.onnx")(x).asnumpy(), actual, rtol=0, atol=step)
