"""Products with quantized weights: the kernel's results are those of the fallback, which rounds data the same way."""

import os
import subprocess
import sys

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.errors import AutogradError, ParameterError, ShapeError, TypeInferenceError
from flowmx.ops.kernels.llvm import compiler, packed_dense, packed_rows
from flowmx.ops.quantization import interleaved_weights
from flowmx.ops.quantization.block_formats import FORMATS
from flowmx.ops.quantization.packed_dense import PackedDense, PackedEmbedding, rounded
from flowmx.ops.registry.dtypes import as_dtype
from flowmx.ops.registry.operators import Run
from tests.native_runs import eager_native_runs

RUN = Run(devices.get(mx.cpu()), False)
INTEGERS = [name for name, form in FORMATS.items() if form.bits]
DTYPES = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
ROWS = (1, 2, 3, 5, 16, 17, 130)
INSTRUCTIONS = ("vnni", "vnni256", "pairs", "plain")
needs_compiler = pytest.mark.skipif(not compiler.available(), reason="llvmlite is not installed")


def _weight(name, rows, columns, seed=0):
    return FORMATS[name].quantize(np.random.default_rng(seed).standard_normal((rows, columns)))


def _data(dtype, *shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(as_dtype(dtype))


def _operator(name, rows, columns, **more):
    return PackedDense.create(format=name, num_hidden=rows, in_units=columns, interleaved=True, **more)


def _supported(instructions):
    """Return whether this processor has some instructions."""
    needed = {"vnni": "avx512vnni", "vnni256": "avxvnni", "pairs": "avx2", "plain": ""}[instructions]
    return not needed or needed in compiler.features()


def _compare(op, data, weight, *bias):
    """Compare the loops with the fallback."""
    actual, expected = (np.full((len(data), op.num_hidden), 9, data.dtype) for _ in range(2))
    assert packed_dense._multiply(op, [data, weight, *bias], [actual])
    op.forward(RUN, [data, weight, *bias], [expected])
    tolerance = DTYPES[data.dtype.name]
    size = np.abs(expected.astype(np.float32)).max()
    np.testing.assert_allclose(
        actual.astype(np.float32), expected.astype(np.float32), rtol=tolerance, atol=tolerance * size
    )


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "bits"), [*((name, 8) for name in FORMATS), *((name, 16) for name in INTEGERS)])
def test_the_kernel_computes_what_the_fallback_does(name, bits, dtype):
    for rows, units in ((37, 256), (16, 512), (1, 256)):
        weight = interleaved_weights.interleave(name, _weight(name, rows, units))
        for count in ROWS:
            _compare(_operator(name, rows, units, data_bits=bits), _data(dtype, count, units), weight)
    bias = _data(dtype, 37)
    weight = interleaved_weights.interleave(name, _weight(name, 37, 256))
    _compare(_operator(name, 37, 256, no_bias=False), _data(dtype, 9, 256), weight, bias)


@needs_compiler
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", INTEGERS)
def test_all_instructions_give_the_same_bits(monkeypatch, name, bits, instructions):
    if not _supported(instructions):
        pytest.skip(f"the processor has no {instructions}")
    weight = interleaved_weights.interleave(name, _weight(name, 40, 512))
    outputs = [np.empty((11, 40), np.float32) for _ in range(2)]
    for out, kind in zip(outputs, ("plain", instructions), strict=True):
        monkeypatch.setattr(packed_dense, "instructions_of", lambda features, kind=kind: kind)
        op = _operator(name, 40, 512, data_bits=bits)
        assert packed_dense._multiply(op, [_data("float32", 11, 512), weight], [out])
    np.testing.assert_array_equal(*outputs)


@needs_compiler
@pytest.mark.parametrize("name", ["Q4_1", "Q8_0"])
def test_rows_of_any_odd_number_of_blocks(name):
    for units in (32, 96, 576):
        weight = interleaved_weights.interleave(name, _weight(name, 21, units))
        _compare(_operator(name, 21, units), _data("float32", 3, units), weight)


@needs_compiler
@pytest.mark.usefixtures("two_threads_a_kernel")
def test_two_threads_give_the_bits_of_one():
    weight = interleaved_weights.interleave("Q4_1", _weight("Q4_1", 1000, 640))
    data = _data("float32", 70, 640)
    op, outputs = _operator("Q4_1", 1000, 640), [np.empty((70, 1000), np.float32) for _ in range(2)]
    for threads, out in zip((1, 2), outputs, strict=True):
        with mx.engine.using(cpu_kernel_nthreads=threads):
            assert packed_dense._multiply(op, [data, weight], [out])
    np.testing.assert_array_equal(*outputs)


@needs_compiler
@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q6_K"])
def test_a_row_does_not_depend_on_the_other_rows(name):
    weight = interleaved_weights.interleave(name, _weight(name, 33, 256))
    data, op = _data("float32", 23, 256), _operator(name, 33, 256)
    together, alone = np.empty((23, 33), np.float32), np.empty((23, 33), np.float32)
    assert packed_dense._multiply(op, [data, weight], [together])
    for at in range(23):
        assert packed_dense._multiply(op, [data[at : at + 1], weight], [alone[at : at + 1]])
    np.testing.assert_array_equal(together, alone)


@needs_compiler
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", INTEGERS)
def test_nan_and_infinity_give_nan_in_their_rows_only(name, bits):
    weight = interleaved_weights.interleave(name, _weight(name, 20, 256))
    data = _data("float32", 6, 256)
    data[0, 3], data[1, 255], data[2, 40] = np.nan, np.inf, -np.inf
    data[3], data[4] = 1e-40, 0
    for compute in (packed_dense._multiply, lambda op, inputs, outputs: op.forward(RUN, inputs, outputs)):
        out = np.empty((6, 20), np.float32)
        compute(_operator(name, 20, 256, data_bits=bits), [data, weight], [out])
        assert np.isnan(out[:3]).all()
        assert not out[3:5].any()
        assert np.isfinite(out[5]).all()


@pytest.mark.parametrize(("bits", "count"), [(8, 127), (16, 32512)])
def test_rounding_is_within_half_a_step(bits, count):
    data = _data("float32", 5, 96)
    steps = np.abs(data.reshape(5, 3, 32)).max(axis=2, keepdims=True) / count
    errors = np.abs(rounded(np, data, bits) - data).reshape(5, 3, 32)
    assert (errors <= steps * 0.502).all()


@pytest.mark.parametrize("name", INTEGERS)
def test_data_of_16_bits_give_the_exact_product(name):
    weight = _weight(name, 20, 256)
    data = mx.nd.array(_data("float32", 9, 256))
    exact = data.asnumpy().astype(np.float64) @ FORMATS[name].dequantize(weight).T
    tiles = mx.nd.contrib.interleave_weight(mx.nd.array(weight, dtype="uint8"), format=name)
    parameters = {"format": name, "num_hidden": 20, "in_units": 256, "interleaved": True, "data_bits": 16}
    out = mx.nd.contrib.packed_dense(data, tiles, **parameters).asnumpy()
    assert np.abs(out - exact).max() < 1e-4 * np.abs(exact).max()


@pytest.mark.parametrize("name", FORMATS)
def test_arrays_symbols_and_interleaved_weights_agree(name):
    weight = mx.nd.array(_weight(name, 20, 256), dtype="uint8")
    data = mx.nd.array(_data("float32", 2, 3, 256))
    exact = data.asnumpy() @ FORMATS[name].dequantize(weight.asnumpy()).T
    parameters = {"format": name, "num_hidden": 20, "in_units": 256}
    out = mx.nd.contrib.packed_dense(data, weight, **parameters)
    assert out.shape == (2, 3, 20)
    np.testing.assert_allclose(out.asnumpy(), exact, rtol=1e-4, atol=1e-4)
    tiles = mx.nd.contrib.interleave_weight(weight, format=name)
    near = mx.nd.contrib.packed_dense(data, tiles, interleaved=True, **parameters).asnumpy()
    assert np.abs(near - exact).max() < 0.02 * np.abs(exact).max()
    symbol = mx.sym.contrib.packed_dense(mx.sym.var("x"), mx.sym.var("w"), interleaved=True, **parameters)
    bound = symbol.bind(mx.cpu(), {"x": data, "w": tiles})
    np.testing.assert_allclose(bound.forward()[0].asnumpy(), near, rtol=1e-5, atol=1e-5)


def test_strided_data_and_empty_batches():
    tiles = mx.nd.contrib.interleave_weight(mx.nd.array(_weight("Q4_1", 20, 64), dtype="uint8"), format="Q4_1")
    parameters = {"format": "Q4_1", "num_hidden": 20, "in_units": 64, "interleaved": True}
    data = mx.nd.array(_data("float32", 64, 6))
    expected = mx.nd.contrib.packed_dense(mx.nd.array(data.asnumpy().T.copy()), tiles, **parameters)
    strided = mx.nd.contrib.packed_dense(data.T, tiles, **parameters)
    np.testing.assert_array_equal(strided.asnumpy(), expected.asnumpy())
    with mx.util.np_shape():
        assert mx.nd.contrib.packed_dense(mx.nd.zeros((0, 64)), tiles, **parameters).shape == (0, 20)


@needs_compiler
def test_a_network_with_quantized_weights_is_one_native_run():
    weights = [interleaved_weights.interleave("Q4_1", _weight("Q4_1", 64, 64, seed)) for seed in range(2)]
    out = mx.sym.var("x")
    for at in range(2):
        out = mx.sym.contrib.packed_dense(
            out, mx.sym.var(f"w{at}"), format="Q4_1", num_hidden=64, in_units=64, interleaved=True
        )
        out = mx.sym.tanh(out)
    arrays = {f"w{at}": mx.nd.array(each, dtype="uint8") for at, each in enumerate(weights)}
    data = mx.nd.array(_data("float32", 3, 64))
    bound = out.bind(mx.cpu(), {"x": data, **arrays})
    expected = bound.forward()[0].asnumpy()
    with eager_native_runs():
        again = out.bind(mx.cpu(), {"x": data, **arrays})
        for _ in range(4):
            np.testing.assert_array_equal(again.forward()[0].asnumpy(), expected)
        arrays["w0"][:] = mx.nd.array(weights[1], dtype="uint8")
        changed = again.forward()[0].asnumpy()
    assert np.abs(changed - expected).max() > 0.1


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_computes_with_two_threads():
    out = subprocess.run([sys.executable, "-c", _FORKING], capture_output=True, text=True, check=False, timeout=120)
    assert (out.stdout, out.returncode) == ("good\n", 0), out.stderr


_FORKING = """
import os
import numpy as np
import flowmx as mx
from flowmx.ops.quantization.block_formats import FORMATS

rng = np.random.default_rng(0)
weight = mx.nd.array(FORMATS["Q4_1"].quantize(rng.standard_normal((2000, 640))), dtype="uint8")
tiles = mx.nd.contrib.interleave_weight(weight, format="Q4_1")
data = mx.nd.array(rng.standard_normal((5, 640)))

def work():
    out = mx.nd.contrib.packed_dense(data, tiles, format="Q4_1", num_hidden=2000, in_units=640, interleaved=True)
    return out.asnumpy().tobytes()

with mx.engine.using(cpu_kernel_nthreads=2):
    expected = work()
    for _ in range(2):
        child = os.fork()
        if child == 0:
            os._exit(work() != expected)
        assert work() == expected
        assert os.waitpid(child, 0)[1] == 0
print("good")
"""


def test_the_gradient_of_data_is_that_of_the_dequantized_weight():
    for tiles in (False, True):
        weight = _weight("Q4_0", 7, 64)
        packed = mx.nd.array(interleaved_weights.interleave("Q4_0", weight) if tiles else weight, dtype="uint8")
        data, bias, head = (mx.nd.array(_data("float32", *shape)) for shape in ((2, 3, 64), (7,), (2, 3, 7)))
        for each in (data, bias, head):
            each.attach_grad()
        with mx.autograd.record():
            out = mx.nd.contrib.packed_dense(
                data, packed, bias, format="Q4_0", num_hidden=7, in_units=64, interleaved=tiles, no_bias=False
            )
            (grad,) = mx.autograd.grad(out, [data], head_grads=head, create_graph=True, retain_graph=True)
            loss = (grad * grad).sum()
        values = FORMATS["Q4_0"].dequantize(weight)
        np.testing.assert_allclose(grad.asnumpy(), head.asnumpy() @ values, rtol=1e-4, atol=1e-4)
        loss.backward()
        expected = 2 * grad.asnumpy() @ values.T
        assert np.abs(head.grad.asnumpy() - expected).max() < 0.02 * np.abs(expected).max()
        out.backward(head)
        np.testing.assert_allclose(bias.grad.asnumpy(), head.asnumpy().sum((0, 1)), rtol=1e-4, atol=1e-4)


def test_the_gradient_of_a_quantized_weight_is_refused():
    weight, data = mx.nd.array(_weight("Q4_0", 7, 64), dtype="uint8"), mx.nd.ones((2, 64))
    weight.attach_grad()
    data.attach_grad()
    with mx.autograd.record():
        out = mx.nd.contrib.packed_dense(data, weight, format="Q4_0", num_hidden=7, in_units=64)
    out.backward()
    with pytest.raises(AutogradError, match=r"a quantized weight has no gradient.*set grad_req='null'"):
        weight.grad.asnumpy()


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMATS)
def test_the_loop_dequantizes_rows_as_the_fallback_does(name, dtype):
    op = PackedEmbedding.create(format=name, input_dim=37, output_dim=256, interleaved=True, dtype=dtype)
    table = interleaved_weights.interleave(name, _weight(name, 37, 256))
    for index in ("int32", "int64"):
        tokens = np.array([[0, 36, 16], [15, 99, -1]], index)
        actual, expected = (np.full((2, 3, 256), 9, as_dtype(dtype)) for _ in range(2))
        assert packed_rows._dequantize(op, [tokens, table], [actual])
        op.forward(RUN, [tokens, table], [expected])
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("tiles", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_a_quantized_table(name, tiles):
    weight = _weight(name, 20, 256)
    table = mx.nd.array(interleaved_weights.interleave(name, weight) if tiles else weight, dtype="uint8")
    tokens = mx.nd.array([[0, 19, 16], [99, -5, 7]], dtype="int32")
    for dtype in DTYPES:
        rows = mx.nd.contrib.packed_embedding(
            tokens, table, format=name, input_dim=20, output_dim=256, interleaved=tiles, dtype=dtype
        )
        expected = FORMATS[name].dequantize(weight)[[[0, 19, 16], [19, 0, 7]]].astype(as_dtype(dtype))
        np.testing.assert_array_equal(rows.asnumpy(), expected)


def test_wrong_arguments_are_refused():
    weight, data = mx.nd.array(_weight("Q4_0", 7, 64), dtype="uint8"), mx.nd.ones((2, 64))
    dense = mx.nd.contrib.packed_dense
    with pytest.raises(ParameterError, match=r"in_units is 60: a row of 60 values .* multiple of 32"):
        dense(data, weight, format="Q4_0", num_hidden=7, in_units=60)
    with pytest.raises(ParameterError, match="format"):
        dense(data, weight, format="Q3_K", num_hidden=7, in_units=64)
    with pytest.raises(ShapeError, match=r"weight has shape \(7, 36\), expected \(7, 40\)"):
        dense(data, weight, format="Q4_1", num_hidden=7, in_units=64)
    with pytest.raises(ShapeError, match=r"data has shape \(2, 32\), expected \(2, 64\)"):
        dense(mx.nd.ones((2, 32)), weight, format="Q4_0", num_hidden=7, in_units=64)
    with pytest.raises(TypeInferenceError, match="weight has dtype float32, expected uint8"):
        dense(data, mx.nd.zeros((7, 36)), format="Q4_0", num_hidden=7, in_units=64)
    with pytest.raises(TypeInferenceError, match="data has dtype int32, expected a floating-point one"):
        dense(data.astype("int32"), weight, format="Q4_0", num_hidden=7, in_units=64)
    with pytest.raises(ParameterError, match="a row of 37 bytes is not in format Q4_0"):
        mx.nd.contrib.interleave_weight(mx.nd.zeros((7, 37), dtype="uint8"), format="Q4_0")
