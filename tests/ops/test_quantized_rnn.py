"""Int8 LSTMs: the operators, their kernels and fallbacks, quantized networks."""

import os
import subprocess
import sys

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.contrib import quantization
from flowmx.ops.kernels.onednn import library as onednn
from flowmx.ops.kernels.onednn import rnn
from flowmx.ops.quantization.quantized_rnn import QuantizedRNN
from flowmx.ops.registry.operators import Run

found = onednn.library()
needs_vnni = pytest.mark.skipif(found is None or not found.sums_int8_exactly(""), reason="the processor has no VNNI")

# The results of MXNet 1.9.1 on a processor with AVX512.
_REAL = [-3.0, -2.5, -1.0, -0.1, 0.0, 0.05, 0.5, 1.2, 2.5, 2.9]
_OF_MXNET = [
    ({}, [0, 22, 86, 125, 130, 132, 151, 182, 238, 255], 43.2203369140625, 129.6610107421875),
    (
        {"min_calib_range": -2.0, "max_calib_range": 2.5},
        [0, 0, 57, 108, 113, 116, 142, 181, 255, 255], 56.66666793823242, 113.33332824707031,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("given", "numbers", "scale", "shift"), _OF_MXNET)
def test_asymmetric_quantization_matches_mxnet(given, numbers, scale, shift):
    outputs = mx.nd.contrib.quantize_asym(mx.nd.array(_REAL).reshape((1, 2, 5)), **given)
    assert [each.dtype for each in outputs] == [np.uint8, np.float32, np.float32]
    assert outputs[0].asnumpy().reshape(-1).tolist() == numbers
    assert (outputs[1].asscalar(), outputs[2].asscalar()) == (scale, shift)


@pytest.mark.parametrize("value", [0.0, 3.0, -2.0])
def test_a_constant_input_has_a_nonempty_range(value):
    numbers, scale, shift = mx.nd.contrib.quantize_asym(mx.nd.full((2, 3), value))
    real = (numbers.astype("float32") - shift) / scale
    np.testing.assert_allclose(real.asnumpy(), value, atol=1e-6)


def arrays(layers, bidirectional, time, batch, inputs, units, seed=0):
    """Return data as bytes, parameters, state, cell, scale and shift; and the data in floating point."""
    rng = np.random.default_rng(seed)
    sides = 1 + bidirectional
    op = operator(layers, bidirectional, units)
    x = rng.uniform(-1, 1, (time, batch, inputs)).astype("f")
    parameters = rng.uniform(-0.3, 0.3, op.layout.parameter_count(inputs)).astype("f")
    states = [rng.uniform(-1, 1, (layers * sides, batch, units)).astype("f") for _ in range(2)]
    scale, shift = np.float32(127.5), np.float32(127.5)
    numbers = np.clip(np.rint(x * scale + shift), 0, 255).astype(np.uint8)
    return [numbers, parameters, *states, np.array([scale]), np.array([shift])], x


def operator(layers, bidirectional, units):
    return QuantizedRNN.create(
        state_size=units, num_layers=layers, mode="lstm", state_outputs=True, bidirectional=bidirectional
    )


def outputs_for(op, inputs):
    return [np.empty(shape, "f") for shape in op.infer_shape([inputs[0].shape, *[None] * 5])[1]]


def forward(op, inputs):
    """Compute the outputs by the fallback."""
    outputs = outputs_for(op, inputs)
    op.forward(Run(devices.get(mx.cpu()), False), inputs, outputs)
    return outputs


SIZES = [(5, 2, 16, 16), (9, 4, 20, 33), (6, 1, 7, 5)]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("sizes", SIZES)
def test_quantized_layers_are_close_to_floating_point(layers, bidirectional, sizes):
    inputs, x = arrays(layers, bidirectional, *sizes)
    outputs = forward(operator(layers, bidirectional, sizes[-1]), inputs)
    options = {"state_size": sizes[-1], "num_layers": layers, "mode": "lstm", "state_outputs": True}
    expected = mx.nd.RNN(*map(mx.nd.array, [x, *inputs[1:4]]), bidirectional=bidirectional, **options)
    for one, other in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(one, other.asnumpy(), rtol=0, atol=2 / 127.5)


@needs_vnni
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("sizes", SIZES)
def test_the_kernel_matches_the_plain_forward(layers, bidirectional, sizes):
    op = operator(layers, bidirectional, sizes[-1])
    inputs, _ = arrays(layers, bidirectional, *sizes)
    assert rnn.packed_size(op, inputs[0].shape, inputs[0].dtype) is not None
    called = mx.nd.contrib.quantized_rnn(
        mx.nd.array(inputs[0], dtype="uint8"), *map(mx.nd.array, inputs[1:]), state_size=op.state_size,
        num_layers=layers, mode="lstm", state_outputs=True, bidirectional=bidirectional,
    )  # fmt: skip
    for output, expected, atol in zip(called, forward(op, inputs), (0, 0, 1e-6), strict=True):
        # A state on the border between two bytes may fall to either side.
        far = np.abs(output.asnumpy() - expected) > atol + 1e-6
        assert far.mean() < 0.01
        np.testing.assert_allclose(output.asnumpy(), expected, rtol=0, atol=2 / 127.5)


def test_states_are_optional_outputs_and_invalid_calls_are_refused():
    inputs, _ = arrays(1, False, 5, 2, 16, 16)
    arguments = [mx.nd.array(inputs[0], dtype="uint8"), *map(mx.nd.array, inputs[1:])]
    single = mx.nd.contrib.quantized_rnn(*arguments, state_size=16, num_layers=1, mode="lstm")
    assert single.shape == (5, 2, 16)
    with pytest.raises(ValueError, match="'gru', expected 'lstm'"):
        mx.nd.contrib.quantized_rnn(*arguments, state_size=16, num_layers=1, mode="gru")
    real = arguments[0].astype("float32")
    with pytest.raises(TypeError, match="data has dtype float32, expected uint8"):
        mx.nd.contrib.quantized_rnn(real, *arguments[1:], state_size=16, num_layers=1, mode="lstm")
    with pytest.raises(ValueError, match="projection_size"):
        mx.nd.contrib.quantized_rnn(*arguments, state_size=16, num_layers=1, mode="lstm", projection_size=4)


# -- networks -------------------------------------------------------------------------------------------------


class Sums(mx.gluon.HybridBlock):
    """A classifier of the last step: whether the weighted sum of a sequence is more than 0."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.layers = mx.gluon.rnn.LSTM(24, 2, layout="TNC", input_size=6, bidirectional=True)
            self.answer = mx.gluon.nn.Dense(2, in_units=48)

    def hybrid_forward(self, F, x):
        return self.answer(F.SequenceLast(self.layers(x)))


@pytest.fixture(scope="module")
def trained():
    mx.random.seed(3)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(12, 600, 6)).astype("f")
    y = ((x * np.linspace(0.3, 1, 12)[:, None, None]).sum((0, 2)) > 0).astype("f")
    net = Sums()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(6):
        for start in range(0, 500, 50):
            with mx.autograd.record():
                wrong = loss(net(mx.nd.array(x[:, start : start + 50])), mx.nd.array(y[start : start + 50]))
            wrong.backward()
            trainer.step(50)
    return net, x[:, 500:], y[500:]


def operators(block):
    """Return the nodes of a block by the names of their operators."""
    return {node.op.name: node for node in block(mx.sym.var("data")).nodes() if node.op is not None}


def accuracy(net, x, y):
    return float((net(mx.nd.array(x)).asnumpy().argmax(1) == y).mean())


class Sequences(mx.io.DataIter):
    """One batch of sequences (time, batch, features)."""

    def __init__(self, x):
        super().__init__(x.shape[1])
        self.provide_data, self.provide_label = [mx.io.DataDesc("data", x.shape, layout="TNC")], []
        self._x, self._left = x, True

    def reset(self):
        self._left = True

    def next(self):
        if not self._left:
            raise StopIteration
        self._left = False
        return mx.io.DataBatch([mx.nd.array(self._x)], [], pad=0)


@pytest.mark.parametrize("mode", ["none", "naive"])
@pytest.mark.parametrize("static", [False, True])
def test_a_trained_network_keeps_its_accuracy(trained, mode, static):
    net, x, y = trained
    quantized = quantization.quantize_net_v2(net, calib_mode=mode, calib_data=Sequences(x))
    quantized.hybridize(static_alloc=static, static_shape=static)
    real = accuracy(net, x, y)
    assert real > 0.85
    assert abs(accuracy(quantized, x, y) - real) <= 0.03
    far = np.abs(quantized(mx.nd.array(x)).asnumpy() - net(mx.nd.array(x)).asnumpy())
    assert far.mean() < 0.05 * np.abs(net(mx.nd.array(x)).asnumpy()).mean()
    first, again = (quantized(mx.nd.array(x)).asnumpy() for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_the_graph_has_mxnets_operators(trained):
    net, x, _ = trained
    quantized = quantization.quantize_net_v2(net, calib_mode="naive", calib_data=Sequences(x * 3))
    nodes = operators(quantized)
    layer, conversion = nodes["_contrib_quantized_rnn"], nodes["_contrib_quantize_asym"]
    assert layer.name == f"quantized_{layer.name.removeprefix('quantized_')}"
    assert [entry.index for entry in layer.inputs if entry.node is conversion] == [0, 1, 2]
    assert conversion.op.min_calib_range == pytest.approx(3 * x.min())
    assert "RNN" not in nodes
    left = quantization.quantize_net_v2(
        net, calib_mode="naive", calib_data=Sequences(x), exclude_operators=["RNN"]
    )  # fmt: skip
    assert "RNN" in operators(left)


def test_states_widen_the_range_of_small_data(trained):
    net, x, _ = trained
    quantized = quantization.quantize_net_v2(net, calib_mode="naive", calib_data=Sequences(x / 100))
    conversion = operators(quantized)["_contrib_quantize_asym"].op
    assert (conversion.min_calib_range, conversion.max_calib_range) == (-1, 1)


def test_other_recurrent_layers_stay_in_floating_point():
    net = mx.gluon.rnn.GRU(8, input_size=6)
    net.initialize()
    quantized = quantization.quantize_net_v2(net, calib_mode="none", data_shapes=[mx.io.DataDesc("data", (4, 2, 6))])
    assert "RNN" in operators(quantized)


def test_files_survive_a_round_trip(trained, tmp_path):
    net, x, _ = trained
    quantized = quantization.quantize_net_v2(net, calib_mode="naive", calib_data=Sequences(x))
    quantized.hybridize()
    expected = quantized(mx.nd.array(x)).asnumpy()
    quantized.export(f"{tmp_path}/net")
    read = mx.gluon.SymbolBlock.imports(f"{tmp_path}/net-symbol.json", ["data"], f"{tmp_path}/net-0000.params")
    np.testing.assert_array_equal(read(mx.nd.array(x)).asnumpy(), expected)


_HIDDEN = """
import numpy as np
from tests.ops.test_quantized_rnn import arrays, forward, operator
import flowmx as mx
inputs, _ = arrays(2, True, 5, 2, 6, 8)
made = mx.nd.contrib.quantized_rnn(mx.nd.array(inputs[0], dtype="uint8"), *map(mx.nd.array, inputs[1:]), state_size=8,
    num_layers=2, mode="lstm", state_outputs=True, bidirectional=True)
for one, other in zip(made, forward(operator(2, True, 8), inputs)):
    np.testing.assert_array_equal(one.asnumpy(), other)
net = mx.gluon.rnn.LSTM(8, 2, input_size=6)
net.initialize(mx.init.Uniform(0.3))
x = mx.nd.random.normal(shape=(5, 2, 6))
expected = net(x).asnumpy()
net.hybridize(static_alloc=True, static_shape=True)
np.testing.assert_allclose(net(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)
"""


def test_without_the_instructions_layers_run_step_by_step():
    hidden = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    subprocess.run([sys.executable, "-c", _HIDDEN], check=True, env=hidden, timeout=120)
