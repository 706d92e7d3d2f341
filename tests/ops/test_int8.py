"""Int8 layers: kernels and fallbacks against sums in int64, processor features, compiled plans."""

import itertools
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.contrib import quantization
from flowmx.graph import compiler
from flowmx.graph.passes.fold_int8 import fold_int8
from flowmx.ops.kernels.onednn import int8_products as kernels
from flowmx.ops.kernels.onednn import library as onednn
from flowmx.ops.quantization import subgraph_layers
from flowmx.ops.quantization.int8_layers import (
    Int8Convolution,
    Int8FullyConnected,
    PackInt8Convolution,
    PackInt8FullyConnected,
)
from flowmx.ops.registry.kernels import kernel_for, packed_size
from flowmx.ops.registry.operators import Run, lookup
from tests.ops.test_onednn import in_order

pytestmark = pytest.mark.usefixtures("two_threads_a_kernel")

found = onednn.library()
needs_vnni = pytest.mark.skipif(found is None or not found.multiplies_bytes(), reason="the processor has no VNNI")
INT8, UINT8 = np.dtype("int8"), np.dtype("uint8")

CONVOLUTIONS = {
    "3x3": ((2, 16, 14, 14), {"kernel": (3, 3), "num_filter": 32, "pad": (1, 1)}),
    "3x3 of odd channels": ((2, 19, 9, 7), {"kernel": (3, 3), "num_filter": 21, "pad": (1, 1)}),
    "1x1": ((2, 64, 8, 8), {"kernel": (1, 1), "num_filter": 48}),
    "1x1 with strides": ((2, 10, 8, 8), {"kernel": (1, 1), "num_filter": 7, "stride": (2, 2)}),
    "groups with strides": ((2, 16, 15, 13), {"kernel": (3, 3), "num_filter": 32, "stride": (2, 2), "num_group": 4}),
    "groups of odd channels": ((2, 6, 9, 9), {"kernel": (3, 3), "num_filter": 9, "num_group": 3, "pad": (1, 1)}),
    "depthwise": ((2, 32, 9, 9), {"kernel": (3, 3), "num_filter": 32, "num_group": 32, "pad": (1, 1)}),
    "depthwise with strides": ((2, 20, 9, 9), {"kernel": (5, 5), "num_filter": 20, "num_group": 20, "pad": (2, 2),
                                              "stride": (2, 2)}),
    "dilated": ((2, 16, 12, 12), {"kernel": (3, 3), "num_filter": 16, "dilate": (2, 2), "pad": (2, 2)}),
    "first layer": ((2, 3, 30, 30), {"kernel": (7, 7), "num_filter": 16, "stride": (2, 2), "pad": (3, 3)}),
    "one axis": ((4, 8, 20), {"kernel": (5,), "num_filter": 7, "dilate": (2,), "pad": (1,)}),
    "three axes": ((2, 4, 6, 7, 8), {"kernel": (3, 2, 3), "num_filter": 8, "stride": (1, 2, 1), "pad": (1, 0, 2)}),
    "all lengths are 1": ((1, 1, 1, 1), {"kernel": (1, 1), "num_filter": 1}),
}  # fmt: skip
PRODUCTS = {
    "flat": ((7, 3, 16), {"num_hidden": 100}),
    "rows": ((3, 5, 70), {"num_hidden": 33, "flatten": False}),
    "one row": ((1, 400), {"num_hidden": 200}),
    "large": ((16, 512), {"num_hidden": 130}),
}


def summed(op, data, weight):
    """Compute the sums in int64, one position of the kernel at a time."""
    data, weight = data.astype(np.int64), weight.astype(np.int64)
    if isinstance(op, Int8FullyConnected):
        rows = data.reshape(len(data), -1) if op.flatten else data
        return rows @ weight.T
    windows = op.geometry
    rank, groups = len(windows.kernel), windows.groups
    data = np.pad(data, [(0, 0), (0, 0), *[(pad, pad) for pad in windows.pad]])
    reach = [d * (k - 1) + 1 for k, d in zip(windows.kernel, windows.dilate, strict=True)]
    size = [(n - r) // s + 1 for n, r, s in zip(data.shape[2:], reach, windows.stride, strict=True)]
    total = np.zeros((len(data), len(weight), *size), np.int64)
    inside, outside = data.shape[1] // groups, len(weight) // groups
    for tap in itertools.product(*map(range, windows.kernel)):
        where = tuple(
            slice(index * d, index * d + (n - 1) * s + 1, s)
            for index, d, n, s in zip(tap, windows.dilate, size, windows.stride, strict=True)
        )
        part = data[(slice(None), slice(None), *where)]
        for group in range(groups):
            ours, theirs = slice(group * outside, (group + 1) * outside), slice(group * inside, (group + 1) * inside)
            factors = weight[(ours, slice(None), *tap)]
            total[:, ours] += np.moveaxis(np.tensordot(factors, part[:, theirs], (1, 1)), 0, 1)
    assert total.ndim == rank + 2
    return total


def expected(op, data, weight, bias=None, scale=None, addend=None):
    """Return the results of a layer in floating point, before rounding."""
    values = summed(op, data, weight).astype(np.float64)
    column = [1] * values.ndim
    column[-1 if isinstance(op, Int8FullyConnected) else 1] = -1
    if scale is not None:
        values *= scale.astype(np.float64).reshape(column)
    if bias is not None:
        values += bias.astype(np.float64).reshape(column)
    if addend is not None:
        values += addend * np.float64(np.float32(op.factor))
    if op.activation == "relu":
        return np.maximum(values, 0)
    if op.activation == "leaky":
        return np.where(values < 0, values * np.float32(op.slope), values)
    return np.clip(values, 0, np.float32(op.top)) if op.activation == "clip" else values


def is_near(values, results):
    """Return whether bytes are the nearest ones, up to rounding of the last digit, and floats agree to that digit."""
    if results.dtype == np.float32:
        return np.allclose(results, values, rtol=1e-5, atol=1e-5 * np.abs(values).max())
    ends = np.iinfo(results.dtype)
    off = np.abs(np.clip(values, ends.min, ends.max) - results)
    return off.max(initial=0) <= 0.5 + 1e-3


def layer(kind, parameters, **more):
    return kind.create(**parameters, **more)


def inputs_of(op, shape, data_type, rng, extreme=False):
    ends = np.iinfo(data_type)
    weight_shape = op.weight_shape(shape)
    if extreme:
        return np.full(shape, ends.max if data_type == UINT8 else ends.min, data_type), np.full(
            weight_shape, -128, INT8
        )
    return rng.integers(ends.min, ends.max + 1, shape).astype(data_type), rng.integers(-128, 128, weight_shape).astype(
        INT8
    )


def out_of(op, inputs):
    spec = op.spec(tuple(each.shape for each in inputs), tuple(each.dtype for each in inputs))
    return spec.shapes[0], spec.dtypes[0]


def computed(op, inputs, order, run=None):
    """Return the results of the kernel and of the fallback."""
    run = run or Run(devices.get(mx.cpu()), False)
    shape, dtype = out_of(op, inputs)
    plain, fast = np.zeros(shape, dtype), np.zeros(shape, dtype)
    op.forward(run, inputs, [plain])
    laid = order if isinstance(op, Int8Convolution) else "C"
    fast = in_order(fast, laid)
    kernel_for("cpu", op.name).compute(op, run, [in_order(each, laid) for each in inputs], [fast])
    return plain, fast


def cases():
    for name, (shape, parameters) in CONVOLUTIONS.items():
        yield pytest.param(Int8Convolution, shape, parameters, id=name)
    for name, (shape, parameters) in PRODUCTS.items():
        yield pytest.param(Int8FullyConnected, shape, parameters, id=name)


@pytest.mark.parametrize("data_type", [INT8, UINT8], ids=str)
@pytest.mark.parametrize(("kind", "shape", "parameters"), [*cases()])
def test_sums_are_exact(kind, shape, parameters, data_type):
    rng = np.random.default_rng(0)
    op = layer(kind, parameters, no_bias=True, unsigned=data_type == UINT8)
    for extreme in (False, True):
        inputs = inputs_of(op, shape, data_type, rng, extreme)
        for order in ("C", "channels last"):
            for sums in computed(op, inputs, order):
                np.testing.assert_array_equal(sums, summed(op, *inputs))


ENDINGS = [
    {"out_dtype": "uint8", "activation": "relu"},
    {"out_dtype": "int8"},
    {"out_dtype": "float32", "activation": "leaky", "slope": 0.1},
    {"out_dtype": "uint8", "activation": "clip", "top": 90.0},
    {"out_dtype": "int8", "no_bias": True},
]
SUMS = [
    (INT8, {"out_dtype": "int8"}),
    (UINT8, {"out_dtype": "uint8", "activation": "relu"}),
    (INT8, {"out_dtype": "uint8", "activation": "clip", "top": 127.0}),
]


def scales(op, inputs, rng):
    """Return a bias and a scale with which the results fill the range of a byte."""
    sums = summed(op, *inputs)
    size = 100 / max(1, np.abs(sums).max())
    count = len(inputs[1])
    scale = (size * rng.uniform(0.5, 2, count)).astype(np.float32)
    return [*([] if op.no_bias else [rng.uniform(-30, 30, count).astype(np.float32)]), scale]


@pytest.mark.parametrize("data_type", [INT8, UINT8], ids=str)
@pytest.mark.parametrize(("kind", "shape", "parameters"), [*cases()])
def test_layers_with_fused_successors(kind, shape, parameters, data_type):
    rng = np.random.default_rng(0)
    for ending in ENDINGS:
        op = layer(kind, parameters, scaled=True, unsigned=data_type == UINT8, **ending)
        inputs = inputs_of(op, shape, data_type, rng)
        vectors = scales(op, inputs, rng)
        values = expected(op, *inputs, *([None] if op.no_bias else []), *vectors)
        for results in computed(op, [*inputs, *vectors], "channels last"):
            assert is_near(values, results), ending


@pytest.mark.parametrize("name", list(CONVOLUTIONS))
def test_convolutions_with_a_fused_addition(name):
    rng = np.random.default_rng(0)
    shape, parameters = CONVOLUTIONS[name]
    for (addend_type, ending), data_type in itertools.product(SUMS, (INT8, UINT8)):
        options = {**parameters, "scaled": True, "has_addend": True, "factor": 0.7, **ending}
        op = layer(Int8Convolution, options, unsigned=data_type == UINT8)
        inputs = inputs_of(op, shape, data_type, rng)
        vectors = scales(op, inputs, rng)
        ends = np.iinfo(addend_type)
        addend = rng.integers(ends.min, ends.max + 1, op.output_shape(shape)).astype(addend_type)
        values = expected(op, *inputs, *vectors, addend)
        for order in ("C", "channels last"):
            for results in computed(op, [*inputs, *vectors, addend], order):
                assert is_near(values, results), ending
        place = in_order(addend, "channels last")  # the output may lie where the addend does
        out = place.view(out_of(op, [*inputs, *vectors, addend])[1])
        run = Run(devices.get(mx.cpu()), False)
        kernel_for("cpu", op.name).compute(
            op, run, [*(in_order(each, "channels last") for each in inputs), *vectors, place], [out]
        )
        assert is_near(values, out), ending


@needs_vnni
@pytest.mark.parametrize("data_type", [INT8, UINT8], ids=str)
@pytest.mark.parametrize(("kind", "shape", "parameters"), [*cases()])
def test_packed_weights_give_the_same_results(kind, shape, parameters, data_type):
    rng = np.random.default_rng(0)
    options = {**parameters, "scaled": True, "unsigned": data_type == UINT8, "out_dtype": "uint8", "activation": "relu"}
    op = layer(kind, options)
    size = packed_size("cpu", layer(kind, options, packed=True), shape, data_type)
    is_small = shape == (1, 1, 1, 1) or (kind is Int8FullyConnected and np.prod(shape) * op.num_hidden < 1 << 15)
    if size is None:
        assert is_small or len(shape) != 4
        return
    pack = PackInt8Convolution if kind is Int8Convolution else PackInt8FullyConnected
    layout = {name: each for name, each in options.items() if name in (*parameters, "unsigned", "out_dtype")}
    run = Run(devices.get(mx.cpu()), False)
    inputs = inputs_of(op, shape, data_type, rng)
    vectors = scales(op, inputs, rng)
    packed = np.zeros(size, INT8)
    kernel = kernel_for("cpu", pack.name)
    kernel.compute(pack.create(**layout, packed=True, data_shape=shape, size=size), run, [inputs[1]], [packed])
    _, plain = computed(op, [*inputs, *vectors], "channels last")
    _, fast = computed_packed(layer(kind, options, packed=True), inputs, packed, vectors, plain)
    np.testing.assert_array_equal(fast, plain)


def computed_packed(op, inputs, packed, vectors, like):
    run = Run(devices.get(mx.cpu()), False)
    out = np.empty_like(like)
    order = "channels last" if isinstance(op, Int8Convolution) else "C"
    kernel_for("cpu", op.name).compute(op, run, [in_order(inputs[0], order), packed, *vectors], [out])
    return op, out


@needs_vnni
@pytest.mark.parametrize("name", list(CONVOLUTIONS))
@pytest.mark.parametrize("data_type", [INT8, UINT8], ids=str)
def test_the_fast_path_is_used(name, data_type):
    shape, parameters = CONVOLUTIONS[name]
    op = layer(
        Int8Convolution, parameters, scaled=True, unsigned=data_type == UINT8, out_dtype="uint8", activation="relu"
    )
    inputs = inputs_of(op, shape, data_type, np.random.default_rng(0))
    vectors = scales(op, inputs, np.random.default_rng(0))
    out = in_order(np.zeros(*out_of(op, [*inputs, *vectors])), "channels last")
    work = kernel_for("cpu", op.name).work(op, [in_order(inputs[0], "channels last"), inputs[1], *vectors], [out])
    assert work is not None
    assert "vnni" in work.implementation() or "amx" in work.implementation()


# -- operators without products------------------------------------------------------------------------------


def ends(low, high):
    return [np.full((1,), each, np.float32) for each in (low, high)]


def others():
    """Operators without products, with their inputs: (name, parameters, inputs, the largest difference in steps)."""
    rng = np.random.default_rng(0)
    shape = (2, 20, 16, 16)
    real = rng.standard_normal(shape).astype(np.float32) * 2
    signed, unsigned = (
        rng.integers(*each, shape).astype(kind) for each, kind in (((-128, 128), INT8), ((0, 256), UINT8))
    )
    calibrated = {"min_calib_range": -1.5, "max_calib_range": 3.0}
    for out_type in ("int8", "uint8", "auto"):
        yield "_contrib_quantize_v2", {"out_type": out_type}, [real], 0
        yield "_contrib_quantize_v2", {"out_type": out_type, **calibrated}, [real], 0
    sums = rng.integers(-(10**6), 10**6, shape).astype(np.int32)
    for options in ({}, calibrated):
        yield "_contrib_requantize", options, [sums, *ends(-3000, 3000)], 0
    for data in (signed, unsigned):
        yield "_contrib_dequantize", {}, [data, *ends(-1, 2)], 0
        yield "_contrib_quantized_flatten", {}, [data, *ends(-1, 2)], 0
        yield "_contrib_quantized_act", {"act_type": "relu"}, [data, *ends(-1, 2)], 0
        for window in (
            {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)},
            {"kernel": (2, 2), "stride": (2, 2)},
            {"kernel": (3, 3), "stride": (2, 2), "pooling_convention": "full"},
            {"kernel": (1, 1), "global_pool": True},
            {"kernel": (3, 3), "pad": (1, 1), "count_include_pad": False},
        ):
            for kind in ("max", "avg"):
                yield "_contrib_quantized_pooling", {"pool_type": kind, **window}, [data, *ends(-1, 2)], kind == "avg"
        yield "_contrib_quantized_elemwise_add", calibrated, [data, data[::-1].copy(), *ends(-1, 2), *ends(-3, 1)], 1
    both = [signed, unsigned]
    yield "_contrib_quantized_concat", {"num_args": 2, "dim": 1}, [*both, *ends(-1, 2), *ends(0, 3)], 0
    yield "_contrib_quantized_concat", {"num_args": 2, "dim": 1}, [unsigned, unsigned, *ends(0, 3), *ends(0, 2)], 0
    yield "_contrib_quantized_elemwise_add", calibrated, [*both, *ends(-1, 2), *ends(0, 3)], 0


@pytest.mark.parametrize("order", ["C", "channels last"])
@pytest.mark.parametrize("case", list(others()), ids=lambda case: f"{case[0].removeprefix('_contrib_')} {case[1]}")
def test_other_operators_match_the_plain_forward(case, order):
    name, parameters, inputs, steps = case
    op, run = lookup(name).create(**parameters), Run(devices.get(mx.cpu()), False)
    spec = op.spec(tuple(each.shape for each in inputs), tuple(each.dtype for each in inputs))
    plain, fast = ([np.zeros(*each) for each in zip(spec.shapes, spec.dtypes, strict=True)] for _ in range(2))
    op.forward(run, inputs, plain)
    laid = order if op.traits.keeps_layout or op.traits.makes_channels_last else "C"
    fast = [in_order(each, laid) for each in fast]
    kernel = kernel_for("cpu", name)
    (op.forward if kernel is None else partial(kernel.compute, op))(
        run, [in_order(each, order) for each in inputs], fast
    )
    off = np.abs(plain[0].astype(np.float64) - fast[0])
    assert off.max() <= steps and (off > 0).mean() < 0.01
    for expected_end, end in zip(plain[1:], fast[1:], strict=True):
        np.testing.assert_array_equal(end, expected_end)


def test_values_outside_the_range_saturate():
    values = np.array([[np.inf, -np.inf, 1e30, -1e30, 0.0, 1.0, -1.0, 300.0] * 1024], np.float32)
    for out_type, high, low in (("int8", 127, -128), ("uint8", 255, 0)):
        results = mx.nd.contrib.quantize_v2(
            mx.nd.array(values), out_type=out_type, min_calib_range=-2.0, max_calib_range=2.0
        )[0].asnumpy()  # fmt: skip
        np.testing.assert_array_equal(results[0, :4], [high, low, high, low])
        assert results[0, 7] == high


# -- plans ---------------------------------------------------------------------------------------------------


def network():
    net = mx.gluon.nn.HybridSequential()
    for channels in (8, 16):
        net.add(mx.gluon.nn.Conv2D(channels, 3, padding=1), mx.gluon.nn.BatchNorm(), mx.gluon.nn.Activation("relu"))
    net.add(mx.gluon.nn.MaxPool2D(), mx.gluon.nn.Flatten(), mx.gluon.nn.Dense(32, activation="relu"))
    net.add(mx.gluon.nn.Dense(32), mx.gluon.nn.GELU(), mx.gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier())
    return net


def quantized(net, data, **options):
    batches = mx.io.NDArrayIter(data, batch_size=len(data))
    result = quantization.quantize_net_v2(net, calib_mode="naive", calib_data=batches, **options)
    result.hybridize()
    return result


DATA = np.random.default_rng(0).standard_normal((4, 3, 12, 12)).astype(np.float32)


def bound(block):
    """Return an executor of a quantized block."""
    symbol = block._traced.symbol
    arrays = {name: param.data() for name, param in block.collect_params().items()}
    aux = {name: arrays[name] for name in symbol.list_auxiliary_states()}
    args = {name: arrays[name] for name in symbol.list_arguments() if name in arrays}
    return symbol.bind(mx.cpu(), {**args, "data": mx.nd.array(DATA)}, aux_states=aux, grad_req="null")


@pytest.mark.parametrize("granularity", ["tensor-wise", "channel-wise"])
@pytest.mark.parametrize("dtype", ["int8", "auto"])
def test_plans_match_single_operators(monkeypatch, dtype, granularity):
    mx.random.seed(0)
    net = quantized(network(), DATA, quantized_dtype=dtype, quantize_granularity=granularity)
    executor = bound(net)
    layers = [node.op.name for node in executor.plan.forward if node.op.name.startswith("_int8_")]
    assert layers == ["_int8_Convolution"] * 2 + ["_int8_FullyConnected"] * 3
    assert not any(node.op.name.startswith("_sg_") for node in executor.plan.forward)
    assert "Layers by precision: 5 in int8\n" in executor.plan.explain(0)
    monkeypatch.setattr(compiler, "PASSES", [each for each in compiler.PASSES if each is not fold_int8])
    plain = bound(net)
    assert any(node.op.name.startswith("_sg_") for node in plain.plan.forward)
    outputs, expected = (each.forward()[0].asnumpy() for each in (executor, plain))
    assert np.abs(outputs - expected).max() <= 1.5 * np.abs(expected).max() / 127
    np.testing.assert_allclose(net(mx.nd.array(DATA)).asnumpy(), outputs, rtol=1e-5, atol=1e-6)


def test_filters_are_packed_again_only_when_a_parameter_changes(monkeypatch):
    calls = []
    whole = subgraph_layers.quantize_filters
    monkeypatch.setattr(subgraph_layers, "quantize_filters", lambda *outputs: calls.append(None) or whole(*outputs))
    net = quantized(network(), DATA)
    outputs = [net(mx.nd.array(DATA)).asnumpy() for _ in range(3)]
    assert len(calls) == 2  # the two convolutions; fully connected layers have int8 weights
    for name, param in net.collect_params().items():
        if name.endswith(("gamma", "weight")) and param.dtype == np.float32:
            param.set_data(param.data() * 0.5)
    changed = net(mx.nd.array(DATA)).asnumpy()
    assert len(calls) == 4
    assert np.abs(changed - outputs[0]).max() > 0.1 * np.abs(outputs[0]).max()
    np.testing.assert_allclose(changed, bound(net).forward()[0].asnumpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(outputs[0], outputs[2])


def test_filters_are_packed_once_without_known_ranges(monkeypatch):
    calls = []
    whole = subgraph_layers.quantize_filters
    monkeypatch.setattr(subgraph_layers, "quantize_filters", lambda *value: calls.append(None) or whole(*value))
    net = network()
    net(mx.nd.array(DATA))
    quantized = quantization.quantize_net_v2(net, calib_mode="none", data_shapes=[("data", DATA.shape)])
    quantized.hybridize()
    outputs = [quantized(mx.nd.array(DATA)).asnumpy() for _ in range(2)]
    assert len(calls) == 2
    names = [node.op.name for node in bound(quantized).plan.forward]
    assert names.count("_convolution_by_filters") == 2
    np.testing.assert_array_equal(*outputs)
    monkeypatch.setattr(compiler, "PASSES", [each for each in compiler.PASSES if each is not fold_int8])
    np.testing.assert_array_equal(bound(quantized).forward()[0].asnumpy(), outputs[0])


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
import numpy as np
from tests.ops import test_int8 as t
assert not t.found.multiplies_bytes()
for kind, shape, parameters in [each.values for each in t.cases()]:
    for data_type in (t.INT8, t.UINT8):
        t.test_sums_are_exact(kind, shape, parameters, data_type)
made = t.quantized(t.network(), t.DATA)
assert np.isfinite(made(t.mx.nd.array(t.DATA)).asnumpy()).all()
print("exact")
"""


@pytest.mark.skipif(found is None, reason="the oneDNN library is not installed")
def test_sums_are_exact_on_processors_without_vnni(new_python):
    root = str(Path(__file__).parent.parent.parent)
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(root=root)], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
    )  # fmt: skip
    assert process.stdout.strip() == "exact", process.stderr


# -- ONNX ----------------------------------------------------------------------------------------------------


def exported(net, tmp_path):
    arrays = {name: param.data() for name, param in net.collect_params().items()}
    path = str(tmp_path / "net.onnx")
    mx.contrib.onnx.export_model(net._traced.symbol, arrays, [DATA.shape], np.float32, path)
    return path


@pytest.mark.parametrize("granularity", ["tensor-wise", "channel-wise"])
def test_quantized_networks_are_written_as_onnx(tmp_path, granularity):
    onnx = pytest.importorskip("onnx")
    mx.random.seed(0)
    net = quantized(network(), DATA, quantize_granularity=granularity)
    path = exported(net, tmp_path)
    graph = onnx.load(path).graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("QuantizeLinear") >= 6 and {"Conv", "Gemm", "MaxPool", "Relu"} <= set(kinds)
    assert "BatchNormalization" not in kinds
    assert sum(each.data_type == onnx.TensorProto.INT8 and len(each.dims) > 1 for each in graph.initializer) == 5
    symbol, arguments, auxiliary = mx.contrib.onnx.import_model(path)
    back = mx.gluon.SymbolBlock(symbol, mx.sym.var("data"))
    parameters = back.collect_params()
    parameters.load_dict(
        {name: {**arguments, **auxiliary}[name] for name in parameters}, cast_dtype=True, dtype_source="saved"
    )
    outputs, expected = (each(mx.nd.array(DATA)).asnumpy() for each in (back, net))
    assert np.abs(outputs - expected).max() <= 0.02 * np.abs(expected).max()


def test_unknown_ranges_are_not_exported_to_onnx(tmp_path):
    pytest.importorskip("onnx")
    net = network()
    net(mx.nd.array(DATA))
    quantized_net = quantization.quantize_net_v2(net, calib_mode="none", data_shapes=[("data", DATA.shape)])
    with pytest.raises(mx.base.MXNetError, match="range is computed in each call: quantize with calib_mode 'naive'"):
        exported(quantized_net, tmp_path)


@pytest.mark.skipif(found is None, reason="the oneDNN library is not installed")
def test_sums_beyond_int32_use_the_plain_forward(monkeypatch):
    monkeypatch.setattr(
        kernels, "library_or_raise", lambda: SimpleNamespace(sums_int8_exactly=lambda name: name == "exact")
    )
    most = (2**31 - 1) // (255 * 128)
    kernels._check_exactness("exact", most)
    with pytest.raises(onednn.Unsupported, match=f"{most + 1} products"):
        kernels._check_exactness("exact", most + 1)
    with pytest.raises(onednn.Unsupported, match="does not sum int8 products exactly"):
        kernels._check_exactness("another", 1)
