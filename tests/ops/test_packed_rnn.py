"""Recurrent layers in prediction: packed parameters, compared with the operator called imperatively."""

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.ops.compiled.packed_rnn import PackedRNN, PackRNN
from flowmx.ops.kernels.onednn import library as onednn
from flowmx.ops.kernels.onednn import rnn
from flowmx.ops.recurrent import time_loops
from flowmx.ops.recurrent.rnn import RNN
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Run

library = onednn.library()
needs_onednn = pytest.mark.skipif(library is None, reason="oneDNN is not installed")
KINDS = {"lstm": mx.gluon.rnn.LSTM, "gru": mx.gluon.rnn.GRU, "rnn": mx.gluon.rnn.RNN}


def layer(kind, units, layers, inputs, bidirectional, dtype="float32"):
    result = KINDS[kind](units, layers, input_size=inputs, bidirectional=bidirectional)
    result.initialize(mx.init.Uniform(0.3))
    result.cast(dtype)
    return result


def imperative_result(net, x, states):
    output, last = net(x, states)
    return [array.astype("float32").asnumpy() for array in (output, *last)]


def hybridized(net):
    net.hybridize(static_alloc=True, static_shape=True)
    return net


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(("time", "batch", "inputs", "units"), [(5, 2, 16, 16), (9, 4, 20, 33), (3, 1, 7, 5)])
def test_predictions_match_single_steps(kind, bidirectional, layers, time, batch, inputs, units):
    net = layer(kind, units, layers, inputs, bidirectional)
    x = mx.nd.random.normal(shape=(time, batch, inputs))
    states = [mx.nd.random.normal(shape=array.shape) for array in net.begin_state(batch)]
    expected = imperative_result(net, x, states)
    hybridized(net)
    for _ in range(2):
        for arguments, requested in zip(imperative_result(net, x, states), expected, strict=True):
            np.testing.assert_allclose(arguments, requested, rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("kind", ["lstm", "rnn"])
def test_predictions_in_bfloat16(kind):
    net = layer(kind, 33, 2, 20, True, "bfloat16")
    x = mx.nd.random.normal(shape=(6, 4, 20)).astype("bfloat16")
    states = [mx.nd.random.normal(shape=array.shape).astype("bfloat16") for array in net.begin_state(4)]
    expected = imperative_result(net, x, states)
    for arguments, requested in zip(imperative_result(hybridized(net), x, states), expected, strict=True):
        np.testing.assert_allclose(arguments, requested, rtol=0.05, atol=0.05 * np.abs(requested).max())


def test_modified_parameters_are_packed_again():
    net = hybridized(layer("lstm", 8, 1, 6, False))
    x = mx.nd.random.normal(shape=(4, 2, 6))
    before = net(x).asnumpy()
    net.l0_h2h_bias.set_data(mx.nd.ones(32))
    after = net(x).asnumpy()
    assert np.abs(after - before).max() > 0.01
    net.hybridize(False)
    np.testing.assert_allclose(after, net(x).asnumpy(), rtol=1e-5, atol=1e-6)


@needs_onednn
def test_16_bit_layers_use_packed_float32_without_hardware_support(monkeypatch):
    if library.multiplies(onednn.DType.F16):
        pytest.skip("the processor multiplies float16")
    ran = []
    compute = rnn.compute
    monkeypatch.setattr(rnn, "compute", lambda run, work, data, *others: (
        ran.append(data.dtype), compute(run, work, data, *others)
    ))  # fmt: skip
    net = layer("lstm", 12, 2, 6, False, "float16")
    x = mx.nd.random.normal(shape=(4, 2, 6)).astype("float16")
    expected = net(x).astype("float32").asnumpy()
    hybridized(net)
    for _ in range(2):
        np.testing.assert_allclose(net(x).astype("float32").asnumpy(), expected, rtol=0.01, atol=0.003)
    assert ran == [np.float32] * 2
    net.l0_h2h_bias.set_data(mx.nd.ones(48, dtype="float16"))
    after = net(x).astype("float32").asnumpy()
    assert np.abs(after - expected).max() > 0.01
    net.hybridize(False)
    np.testing.assert_allclose(after, net(x).astype("float32").asnumpy(), rtol=0.01, atol=0.003)


def test_a_symbol_with_a_parameter_vector():
    symbol = mx.sym.RNN(mx.sym.var("data"), state_size=8, num_layers=2, mode="lstm", state_outputs=True, name="r")
    shapes = dict(zip(symbol.list_arguments(), symbol.infer_shape(data=(4, 3, 6))[0], strict=True))
    args = {name: mx.nd.random.normal(0, 0.3, shape=shape) for name, shape in shapes.items()}
    bound = symbol.bind(mx.cpu(), args, grad_req="null")
    expected = mx.nd.RNN(*args.values(), state_size=8, num_layers=2, mode="lstm", state_outputs=True)
    for arguments, requested in zip(bound.forward(is_train=False), expected, strict=True):
        np.testing.assert_allclose(arguments.asnumpy(), requested.asnumpy(), rtol=1e-5, atol=1e-6)


def test_gradients_of_a_hybridized_layer_use_the_saved_values():
    net = layer("lstm", 8, 1, 6, False)
    x = mx.nd.random.normal(shape=(4, 2, 6))
    grads = []
    for _ in range(2):
        with mx.autograd.record(train_mode=False):
            net(x).sum().backward()
        grads.append(net.l0_i2h_weight.grad().asnumpy())
        hybridized(net)
    np.testing.assert_allclose(*grads, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "arguments",
    [
        {"use_sequence_length": True},
        {"projection_size": 3},
        {"lstm_state_clip_min": -0.1, "lstm_state_clip_max": 0.1},
    ],
)
def test_modes_without_a_primitive_run_step_by_step(arguments):
    names = ["data", "parameters", "state", "state_cell"]
    if "use_sequence_length" in arguments:
        names.append("sequence_length")
    symbol = mx.sym.RNN(*map(mx.sym.var, names), state_size=5, num_layers=1, mode="lstm", **arguments)
    shapes = symbol.infer_shape(data=(4, 3, 6))[0]
    args = [mx.nd.random.normal(0, 0.5, shape=shape) for shape in shapes]
    if "use_sequence_length" in arguments:
        args[-1] = mx.nd.array([4, 2, 1])
    net = mx.gluon.SymbolBlock(symbol, [mx.sym.var(name) for name in names if name != "parameters"])
    net.collect_params().load_dict({"parameters": args[1]}, mx.cpu())
    expected = mx.nd.RNN(*args, state_size=5, num_layers=1, mode="lstm", **arguments).asnumpy()
    np.testing.assert_allclose(hybridized(net)(args[0], *args[2:]).asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_fallback_forward_reads_an_unpacked_copy():
    arguments = {"state_size": 4, "num_layers": 2, "mode": "lstm", "state_outputs": True}
    shape = (3, 2, 5)
    count = RNN.create(**arguments).layout.parameter_count(5)
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(count - 6,)).astype("f"), rng.normal(size=(2, 3)).astype("f")]
    run = Run(devices.get(mx.cpu()), False)
    packing = PackRNN.create(**arguments, num_args=2, data_shape=shape, size=4 * count)
    packed = np.zeros(4 * count, np.uint8)
    packing.forward(run, parts, [packed])
    np.testing.assert_array_equal(packed.view("f"), np.concatenate([item.reshape(-1) for item in parts]))
    x, *states = (rng.normal(size=item).astype("f") for item in (shape, (2, 2, 4), (2, 2, 4)))
    layers = PackedRNN.create(**arguments)
    result = [np.empty(item, "f") for item in layers.infer_shape([shape, None, None, None])[1]]
    layers.forward(run, [x, packed, *states], result)
    expected = mx.nd.RNN(*map(mx.nd.array, (x, packed.view("f"), *states)), **arguments)
    for first, second in zip(result, expected, strict=True):
        np.testing.assert_allclose(first, second.asnumpy(), rtol=1e-5, atol=1e-6)


@needs_onednn
def test_parameters_are_packed_once_for_each_change(monkeypatch):
    packings = []
    pack = rnn.pack
    monkeypatch.setattr(rnn, "pack", lambda *arguments: packings.append(1) or pack(*arguments))
    net = hybridized(layer("lstm", 8, 2, 6, False))
    x = mx.nd.random.normal(shape=(4, 2, 6))
    for _ in range(3):
        net(x).wait_to_read()
    assert len(packings) == 1
    net.l0_h2h_bias.set_data(mx.nd.ones(32))
    net(x).wait_to_read()
    assert len(packings) == 2


def test_steps_have_compiled_loops():
    kernel_for("cpu", "RNN")
    assert {("cpu", "lstm"), ("cpu", "gru")} <= set(time_loops._loops)
