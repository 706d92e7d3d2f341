"""Compiled loops with weights in panels compute layers, 1x1 convolutions and LSTM layers as the plain forwards do."""

from dataclasses import replace

import numpy as np
import pytest

import flowmx as mx
from flowmx.executor import executor as executors
from flowmx.graph import compiler as graphs
from flowmx.graph.running.runner import Runner
from flowmx.ops.kernels.llvm import compiler
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.onednn import algorithm_choice, library, panel_lstm, panels
from tests.ops.test_onednn import assert_close

pytestmark = [
    pytest.mark.skipif(library.library() is None, reason="the oneDNN library is not installed"),
    pytest.mark.skipif("avx512f" not in compiler.features(), reason="the loops need AVX-512"),
]


@pytest.fixture(autouse=True)
def packing(monkeypatch):
    """Bound symbols are compiled with packed weights, and small layers are computed in panels, too."""
    options_of = graphs.options_of
    monkeypatch.setattr(executors, "options_of", lambda kind: replace(options_of(kind), pack=True))
    monkeypatch.setattr(algorithm_choice, "_PANEL_WEIGHTS", 1)
    monkeypatch.setattr(algorithm_choice, "_PADDED_SHARE", 1)


def predict(net, **shapes):
    rng = np.random.default_rng(0)
    bound = net.simple_bind(mx.cpu(), grad_req="null", **shapes)
    for name, array in sorted({**bound.arg_dict, **bound.aux_dict}.items()):
        array[:] = rng.uniform(0.5, 2, array.shape) if name.endswith("var") else rng.standard_normal(array.shape)
    return [[output.asnumpy() for output in bound.forward()] for _ in range(3)], bound


def compare(monkeypatch, net, **shapes):
    """Compare the prediction in panels, also in native runs, with that of oneDNN."""
    results, bound = predict(net, **shapes)
    layers = [node.op for node in bound.plan.forward if node.op.name.startswith("_fused")]
    assert layers
    assert all(op.panels for op in layers)
    monkeypatch.setattr(algorithm_choice, "_uses_panel_kernel", lambda op, data: False)
    (expected, *_), _ = predict(net, **shapes)
    for result in results:
        assert_close(expected, result)


@pytest.mark.parametrize("rows", [1, 2, 7, 49, 301])
@pytest.mark.parametrize("inputs", [5, 96, 1601])
@pytest.mark.parametrize("outputs", [64, 130])
def test_sizes(monkeypatch, rows, inputs, outputs):
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=outputs, name="fc")
    compare(monkeypatch, net, data=(rows, inputs))


ACTIVATIONS = {
    "": lambda x: x,
    "relu": mx.sym.relu,
    "leaky": lambda x: mx.sym.LeakyReLU(x, act_type="leaky", slope=0.1),
    "clip": lambda x: mx.sym.clip(x, a_min=0, a_max=6),
    "sigmoid": mx.sym.sigmoid,
    "tanh": lambda x: mx.sym.Activation(x, act_type="tanh"),
    "swish": lambda x: x * mx.sym.sigmoid(x),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("has_addend", [False, True])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_convolutions(monkeypatch, activation, norm, has_addend, is_compiled):
    if not is_compiled:
        monkeypatch.setattr(Program, "get", lambda self: None)
    data = mx.sym.Variable("data")
    x = mx.sym.Convolution(data, kernel=(1, 1), num_filter=72, no_bias=norm, name="conv")
    x = mx.sym.BatchNorm(x, fix_gamma=False) if norm else x
    x = x + mx.sym.Variable("addend") if has_addend else x
    more = {"addend": (2, 72, 5, 3)} if has_addend else {}
    compare(monkeypatch, ACTIVATIONS[activation](x), data=(2, 40, 5, 3), **more)


def test_rows_in_chunks_on_two_threads(monkeypatch, two_threads_a_kernel):
    monkeypatch.setattr(panels, "_CHUNK", 1 << 12)
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=768, name="fc")
    compare(monkeypatch, net, data=(200, 900))


def test_other_convolutions_are_direct():
    for more in ({"stride": (2, 2)}, {"pad": (1, 1)}, {"num_group": 2}, {"kernel": (3, 3)}):
        net = mx.sym.Convolution(
            mx.sym.Variable("data"), **{"kernel": (1, 1), "num_filter": 128, "no_bias": True, **more}
        )
        _, bound = predict(net, data=(1, 64, 6, 6))
        assert not any(getattr(node.op, "panels", False) for node in bound.plan.forward)


def lstm(units, layers, is_bidirectional, inputs):
    net = mx.gluon.rnn.LSTM(units, num_layers=layers, input_size=inputs, bidirectional=is_bidirectional)
    net.initialize(mx.init.Uniform(0.2))
    return net


@pytest.mark.parametrize(
    ("shape", "units", "layers", "is_bidirectional"),
    [((5, 3, 7), 128, 2, False), ((4, 1, 40), 130, 1, True), ((6, 16, 33), 144, 3, True), ((1, 8, 9), 160, 1, False)],
)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_lstm(monkeypatch, runners, shape, units, layers, is_bidirectional, is_compiled):
    net, rng = lstm(units, layers, is_bidirectional, shape[2]), np.random.default_rng(0)
    x = mx.nd.array(rng.standard_normal(shape))
    states = [mx.nd.array(rng.standard_normal((layers * (1 + is_bidirectional), shape[1], units))) for _ in range(2)]
    with mx.autograd.record():  # computes the gates one by one
        expected, expected_states = net(x, states)
    if not is_compiled:
        monkeypatch.setattr(Program, "get", lambda self: None)
    net.hybridize(static_alloc=True, static_shape=True)
    for _ in range(3):
        results, last = net(x, states)
        for one, other in zip([expected, *expected_states], [results, *last], strict=True):
            np.testing.assert_allclose(other.asnumpy(), one.asnumpy(), rtol=1e-5, atol=1e-5)
    plan = runners[-1].plan
    (layer,) = [node for node in plan.forward if node.op.name == "_packed_RNN"]
    packed = plan.graph.shapes[layer.inputs[1]]
    assert packed == (4 * panel_lstm.packed_length(layer.op.layout, shape[2]),)


@pytest.fixture
def runners(monkeypatch):
    """The runners that are created."""
    created, initialize = [], Runner.__init__

    def record(self, *arguments, **keywords):
        created.append(self)
        initialize(self, *arguments, **keywords)

    monkeypatch.setattr(Runner, "__init__", record)
    return created
