"""The fused RNN operator: names, shapes, lengths, dropout, dtypes, refusals, registered loops."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.ops import lookup
from flowmx.ops.recurrent import time_loops
from flowmx.test_utils import assert_almost_equal

pytestmark = pytest.mark.usefixtures("two_threads_a_kernel")

MODES = ["rnn_relu", "rnn_tanh", "lstm", "gru"]


def arguments(mode, time=5, batch=3, features=4, dtype="float32", **params):
    """Return the parameters of the operator, and small random inputs in the order of its names."""
    params = {"mode": mode, "state_size": 6, "num_layers": 2, **params}
    symbol = mx.sym.RNN(mx.sym.Variable("data"), name="rnn", **params)
    shapes, _, _ = symbol.infer_shape(data=(time, batch, features))
    rng = np.random.default_rng(0)
    return params, [mx.nd.array(rng.standard_normal(shape) * 0.5, dtype=dtype) for shape in shapes]


def test_names_and_shapes_as_mxnet():
    data = mx.sym.Variable("data")
    params = {"state_size": 5, "num_layers": 2, "bidirectional": True, "mode": "lstm"}
    net = mx.sym.RNN(data, name="r", state_outputs=True, **params)
    assert net.list_arguments() == ["data", "r_parameters", "r_state", "r_state_cell"]
    assert net.list_outputs() == ["r_output", "r_state_output", "r_statecell_output"]
    arguments_, outputs, _ = net.infer_shape(data=(7, 3, 4))
    assert arguments_ == [(7, 3, 4), (1120,), (4, 3, 5), (4, 3, 5)]
    assert outputs == [(7, 3, 10), (4, 3, 5), (4, 3, 5)]
    assert net.infer_shape_partial(data=(7, 0, 4))[0] == [(7, 0, 4), (1120,), (4, 0, 5), (4, 0, 5)]
    assert mx.sym.RNN(data, name="r", **params).list_outputs() == ["r_output"]
    lengths = mx.sym.RNN(data, name="r", use_sequence_length=True, state_size=5, num_layers=1, mode="gru")
    assert lengths.list_arguments() == ["data", "r_parameters", "r_state", "r_sequence_length"]
    projected = mx.sym.RNN(data, name="r", projection_size=2, state_outputs=True, **params)
    assert projected.infer_shape(data=(7, 3, 4))[1] == [(7, 3, 4), (4, 3, 2), (4, 3, 5)]


def test_shapes_of_states_follow_backwards():
    state = mx.sym.zeros(shape=(2, 0, 5))
    net = mx.sym.RNN(mx.sym.Variable("data"), mx.sym.Variable("p"), state, state_size=5, num_layers=2, mode="gru")
    assert net.infer_shape(data=(7, 3, 4))[0] == [(7, 3, 4), (345,)]
    # The batch can be inferred from a state too.
    net = mx.sym.RNN(mx.sym.Variable("data"), name="r", state_size=5, num_layers=2, mode="gru")
    assert net.infer_shape(data=(7, 0, 4), r_state=(2, 3, 5))[1] == [(7, 3, 5)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_sequences_of_a_batch_equal_single_sequences(mode, bidirectional):
    params, arrays = arguments(mode, bidirectional=bidirectional, state_outputs=True)
    lengths = [2, 5, 1]
    together = mx.nd.RNN(*arrays, mx.nd.array(lengths), use_sequence_length=True, **params)
    for example, length in enumerate(lengths):
        data, vector, *states = arrays
        alone = mx.nd.RNN(data[:length, example : example + 1], vector,
                          *(state[:, example : example + 1] for state in states), **params)  # fmt: skip
        assert_almost_equal(together[0][:length, example : example + 1], alone[0], rtol=1e-5)
        assert not together[0][length:, example].asnumpy().any()
        for ours, last in zip(together[1:], alone[1:], strict=True):
            assert_almost_equal(ours[:, example : example + 1], last, rtol=1e-5)


def test_data_after_the_end_of_a_sequence_is_ignored():
    params, arrays = arguments("lstm", bidirectional=True)
    plain = arrays[0].asnumpy()
    plain[2:, 0] = 1e3
    results = []
    for data in (arrays[0], mx.nd.array(plain)):
        data.attach_grad()
        with mx.autograd.record():
            out = mx.nd.RNN(data, *arrays[1:], mx.nd.array([2, 5, 5]), use_sequence_length=True, **params)
        out.backward()
        assert data.grad is not None
        results.append((out.asnumpy(), data.grad.asnumpy()))
        assert not data.grad[2:, 0].asnumpy().any()
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("mode", MODES)
def test_bound_as_recorded(mode):
    params, arrays = arguments(mode, bidirectional=True, state_outputs=True)
    for array in arrays:
        array.attach_grad()
    with mx.autograd.record():
        outputs = mx.nd.RNN(*arrays, **params)
        loss = (outputs[0] * outputs[0]).sum()
    loss.backward()
    net = mx.sym.RNN(mx.sym.Variable("data"), name="r", **params)
    grads = [mx.nd.zeros(array.shape) for array in arrays]
    executor = net.bind(mx.cpu(), [array.copy() for array in arrays], grads)
    bound = executor.forward(is_train=True)
    executor.backward([2 * bound[0], *(mx.nd.zeros(array.shape) for array in bound[1:])])
    for ours, reference in zip([*bound, *grads], [*outputs, *(array.grad for array in arrays)], strict=True):
        assert_almost_equal(ours, reference, rtol=1e-5, atol=1e-6)


def test_dropout_is_between_layers_and_only_in_training():
    params, arrays = arguments("gru", p=0.5)
    plain = {**params, "p": 0}
    assert_almost_equal(mx.nd.RNN(*arrays, **params), mx.nd.RNN(*arrays, **plain), 1e-4, 1e-6)
    with mx.autograd.train_mode():
        assert np.abs((mx.nd.RNN(*arrays, **params) - mx.nd.RNN(*arrays, **plain)).asnumpy()).max() > 1e-3
        single = {**params, "num_layers": 1}
        first = [arrays[0], arrays[1][: lookup("RNN").create(**single).layout.parameter_count(4)], arrays[2][:1]]
        assert_almost_equal(mx.nd.RNN(*first, **single), mx.nd.RNN(*first, **{**single, "p": 0}), 1e-4, 1e-6)
        # All outputs are dropped: the input of the second layer is zero for any data.
        dropped = [mx.nd.RNN(data, *arrays[1:], **{**params, "p": 1}) for data in (arrays[0], arrays[0] * 2)]
        assert_almost_equal(dropped[0], dropped[1], 1e-4, 1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes(mode, dtype):
    actual = {}
    for kind in (dtype, "float32"):
        params, arrays = arguments(mode, dtype=kind, bidirectional=True, state_outputs=True)
        for array in arrays:
            array.attach_grad()
        with mx.autograd.record():
            outputs = mx.nd.RNN(*arrays, **params)
        outputs[0].backward()
        actual[kind] = [*outputs, *(array.grad for array in arrays)]
        assert {array.dtype for array in actual[kind]} == {np.dtype(kind).type}
    for first, second in zip(actual[dtype], actual["float32"], strict=True):
        assert_almost_equal(first.astype("float32"), second, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("time", "batch"), [(0, 3), (5, 0)])
def test_no_steps_and_no_samples(mode, time, batch):
    params, arrays = arguments(mode)
    data = mx.nd.array(np.zeros((time, batch, 4), "float32"))
    states = [mx.nd.array(np.ones((2, batch, 6), "float32")) for _ in arrays[2:]]
    vector = arrays[1]
    vector.attach_grad()
    with mx.autograd.record():
        outputs = mx.nd.RNN(data, vector, *states, state_outputs=True, **params)
    outputs[0].backward()
    assert outputs[0].shape == (time, batch, 6)
    for state, last in zip(states, outputs[1:], strict=True):
        assert last.shape == state.shape
        assert time or np.array_equal(last.asnumpy(), state.asnumpy())
    assert not vector.grad.asnumpy().any()


def test_clipping_replaces_nan_if_requested():
    params, arrays = arguments("lstm", num_layers=1, lstm_state_clip_min=-1, lstm_state_clip_max=1)
    arrays[0][0] = np.nan
    assert np.isnan(mx.nd.RNN(*arrays, **params).asnumpy()).any()
    clipped = mx.nd.RNN(*arrays, lstm_state_clip_nan=True, state_outputs=True, **params)
    assert np.abs(clipped[2].asnumpy()).max() <= 1


REFUSED = [
    ({"mode": "lstm", "state_size": 0}, {}, "state_size is 0"),
    ({"mode": "elman"}, {}, "mode is 'elman'"),
    ({"mode": "gru", "projection_size": 2}, {}, "projection_size is 2"),
    ({"mode": "lstm", "lstm_state_clip_min": 0.0}, {}, "expected both or neither"),
    ({"mode": "gru", "p": 1.5}, {}, "p is 1.5"),
    ({"mode": "gru"}, {0: (5, 3)}, "data has shape .*expected 3 axes"),
    ({"mode": "gru"}, {1: (7,)}, r"parameters has shape \(7,\), expected \(468,\)"),
    ({"mode": "gru"}, {2: (2, 4, 6)}, r"state has shape \(2, 4, 6\), expected \(2, 3, 6\)"),
    ({"mode": "lstm"}, {3: (1, 3, 6)}, r"state_cell has shape \(1, 3, 6\), expected \(2, 3, 6\)"),
]


@pytest.mark.parametrize(("params", "shapes", "message"), REFUSED, ids=lambda value: str(value)[:50])
def test_refused_at_the_call(params, shapes, message):
    good, arrays = arguments("lstm" if params["mode"] == "lstm" else "gru")
    for position, shape in shapes.items():
        arrays[position] = mx.nd.zeros(shape)
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        mx.nd.RNN(*arrays, **{**good, **params})
    assert "RNN" in str(caught.value)


def test_a_missing_input_is_named():
    params, arrays = arguments("lstm")
    with pytest.raises(TypeError, match="input state_cell is missing"):
        mx.nd.RNN(*arrays[:3], **params)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_registered_loop_runs_plain_layers(bidirectional, monkeypatch):
    calls = []

    def fast(run, layer_arrays):
        calls.append(layer_arrays.hidden.shape)
        time_loops.lstm_forward(run, layer_arrays)

    monkeypatch.setattr(time_loops, "_loops", {})
    time_loops.loop("cpu", "lstm")(fast)
    params, arrays = arguments("lstm", bidirectional=bidirectional)
    mx.nd.RNN(*arrays, **params).wait_to_read()
    assert calls == [(5, 3, 6)] * (4 if bidirectional else 2)
    mx.nd.RNN(*arrays, mx.nd.array([5, 5, 5]), use_sequence_length=True, **params).wait_to_read()
    assert len(calls) == (4 if bidirectional else 2)
