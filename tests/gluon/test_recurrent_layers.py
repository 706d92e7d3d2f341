"""Recurrent layers and modified cells: states, lengths, errors (values: tests/gluon/test_mxnet_blocks.py)."""

from __future__ import annotations

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon import contrib, nn, rnn

X = mx.nd.array(np.random.default_rng(0).standard_normal((5, 3, 4)))
"""Five steps of three samples."""


def initialize(cell):
    mx.random.seed(4)
    cell.initialize(mx.init.Xavier())
    return cell


LAYERS = {
    "rnn": lambda **kwargs: rnn.RNN(6, 2, **kwargs),
    "lstm": lambda **kwargs: rnn.LSTM(6, 2, **kwargs),
    "gru": lambda **kwargs: rnn.GRU(6, 2, **kwargs),
}


@pytest.fixture(params=LAYERS)
def make_layer(request):
    return LAYERS[request.param]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_layer_matches_its_cells_and_shares_their_files(make_layer, bidirectional, tmp_path):
    layer = initialize(make_layer(bidirectional=bidirectional))
    output = layer(X)
    cells = layer._unfuse()
    unrolled, _ = cells.unroll(5, X, layout="TNC", merge_outputs=True)
    np.testing.assert_allclose(unrolled.asnumpy(), output.asnumpy(), atol=1e-6)
    layer.save_parameters(tmp_path / "layer.params")
    other = make_layer(bidirectional=bidirectional)
    other.load_parameters(tmp_path / "layer.params")
    np.testing.assert_array_equal(other(X).asnumpy(), output.asnumpy())


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_length_of_inputs_is_inferred_inside_a_compiled_network(make_layer, bidirectional):
    net = nn.HybridSequential()
    net.add(make_layer(bidirectional=bidirectional, layout="NTC"), nn.Dense(3))
    initialize(net).hybridize()
    assert net(X).shape == (5, 3)
    assert net[0].l0_i2h_weight.shape[1] == 4
    with mx.autograd.record():
        total = net(X).sum()
    total.backward()
    assert float(net[0].l0_i2h_weight.grad().abs().sum().asscalar()) > 0


def test_states_can_be_passed_and_are_returned(make_layer):
    layer = initialize(make_layer())
    complete, last = layer(X, layer.begin_state(3))
    first, states = layer(X[:2], layer.begin_state(3))
    second, states = layer(X[2:], states)
    np.testing.assert_allclose(mx.nd.concat(first, second, dim=0).asnumpy(), complete.asnumpy(), atol=1e-6)
    for ours, expected in zip(states, last, strict=True):
        np.testing.assert_allclose(ours.asnumpy(), expected.asnumpy(), atol=1e-6)
    layer.hybridize()
    np.testing.assert_allclose(layer(X).asnumpy(), complete.asnumpy(), atol=1e-6)
    np.testing.assert_allclose(layer(X, layer.begin_state(3))[0].asnumpy(), complete.asnumpy(), atol=1e-6)


def test_lengths_end_each_sample(make_layer):
    layer = initialize(make_layer(use_sequence_length=True))
    output = layer(X, layer.begin_state(3), mx.nd.array([2, 5, 1]))[0]
    plain = make_layer(params=layer.params)
    np.testing.assert_allclose(output[:2, 0].asnumpy(), plain(X[:2])[:, 0].asnumpy(), atol=1e-6)
    assert not output[2:, 0].asnumpy().any()
    with pytest.raises(ValueError, match="sequence_length is expected"):
        layer(X)
    with pytest.raises(ValueError, match="sequence_length is not expected"):
        plain(X, None, mx.nd.array([2, 5, 1]))


def test_projections_and_clipped_states():
    layer = initialize(rnn.LSTM(6, 2, projection_size=3, state_clip_min=-0.1, state_clip_max=0.1))
    output, (hidden, cell) = layer(X, layer.begin_state(3))
    assert (output.shape, hidden.shape, cell.shape) == ((5, 3, 3), (2, 3, 3), (2, 3, 6))
    assert np.abs(cell.asnumpy()).max() <= np.float32(0.1)
    assert layer.l1_h2r_weight.shape == (3, 6)
    with pytest.raises(ValueError, match="cannot be unfused"):
        layer._unfuse()


def test_a_layer_refuses_invalid_arguments():
    layer = initialize(rnn.LSTM(6, input_size=4))
    with pytest.raises(ValueError, match=r"states have shapes .*expected \[\(1, 3, 6\), \(1, 3, 6\)\]"):
        layer(X, [mx.nd.zeros((1, 3, 5))] * 2)
    with pytest.raises(ValueError, match="expected 'TNC' or 'NTC'"):
        rnn.GRU(3, layout="NCT")
    with pytest.raises(ValueError, match="expected 'relu' or 'tanh'"):
        rnn.RNN(3, activation="gelu")


def test_a_cast_layer_makes_states_of_its_dtype():
    layer = initialize(rnn.GRU(6, input_size=4))
    layer.cast("float64")
    assert layer(X.astype("float64")).dtype == np.float64
    assert layer.begin_state(2)[0].dtype == np.float64


# -- modifiers -------------------------------------------------------------------------------------------


def test_zoneout_keeps_random_elements():
    cell = initialize(rnn.ZoneoutCell(rnn.RNNCell(400), zoneout_outputs=0.5, zoneout_states=0.3))
    with mx.autograd.train_mode():
        first, states = cell(X[0], cell.begin_state(3))
        second, _ = cell(X[1], states)
    share = (first.asnumpy() == second.asnumpy()).mean()
    assert 0.4 < share < 0.6
    assert 0.2 < (states[0].asnumpy() == 0).mean() < 0.4
    cell.reset()
    with mx.autograd.train_mode():
        again, _ = cell(X[0], cell.begin_state(3))
    assert 0.4 < (again.asnumpy() == 0).mean() < 0.6


@pytest.mark.parametrize("compiled", [False, True])
def test_variational_dropout_is_the_same_at_all_steps(compiled):
    cell = initialize(contrib.rnn.VariationalDropoutCell(rnn.RNNCell(300), drop_states=0.2, drop_outputs=0.5))
    if compiled:
        cell.hybridize()
    with mx.autograd.train_mode():
        outputs, _ = cell.unroll(5, X, layout="TNC", merge_outputs=True)
    zeros = outputs.asnumpy() == 0
    assert (zeros == zeros[0]).all()
    assert 0.4 < zeros.mean() < 0.6
    mask = cell.drop_outputs_mask.asnumpy()
    cell.reset()
    assert cell.drop_outputs_mask is None
    with mx.autograd.train_mode():
        cell.unroll(5, X, layout="TNC")
    assert not np.array_equal(cell.drop_outputs_mask.asnumpy(), mask)


def test_a_hybridized_modified_cell_steps():
    plain, compiled = (
        initialize(rnn.ZoneoutCell(rnn.LSTMCell(4, input_size=4, prefix="z_"), 0.5, 0.5)) for _ in range(2)
    )
    compiled.hybridize()
    for step in range(3):
        ours = compiled(X[step], compiled.begin_state(3))[0]
        np.testing.assert_allclose(ours.asnumpy(), plain(X[step], plain.begin_state(3))[0].asnumpy(), atol=1e-6)


def test_a_network_of_modified_cells_is_compiled():
    class Network(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.cell = rnn.BidirectionalCell(
                rnn.ZoneoutCell(rnn.LSTMCell(3), 0.5, 0.5),
                contrib.rnn.VariationalDropoutCell(rnn.ResidualCell(rnn.GRUCell(4)), 0.5, 0.5, 0.5),
            )

        def hybrid_forward(self, F, x, lengths):
            return self.cell.unroll(5, x, layout="TNC", merge_outputs=True, valid_length=lengths)[0]

    net, lengths = initialize(Network()), mx.nd.array([1, 5, 3])
    expected = net(X, lengths).asnumpy()
    net.hybridize()
    np.testing.assert_allclose(net(X, lengths).asnumpy(), expected, atol=1e-6)
    with mx.autograd.record():
        total = net(X, lengths).sum()
    total.backward()
    assert np.isfinite(total.asscalar())


def test_refuses_inner_cells_and_single_steps():
    inner = rnn.LSTMCell(4)
    rnn.ResidualCell(inner)
    with pytest.raises(RuntimeError, match="inside a cell that modifies it"):
        inner.begin_state(2)
    with pytest.raises(ValueError, match="already inside a modifier"):
        rnn.ZoneoutCell(inner)
    both = rnn.BidirectionalCell(rnn.GRUCell(2), rnn.GRUCell(2))
    with pytest.raises(NotImplementedError, match="use unroll"):
        both(X[0], both.begin_state(3))
    with pytest.raises(ValueError, match="cannot compute single steps"):
        rnn.ZoneoutCell(both, 0.5)
    with pytest.raises(ValueError, match="cannot compute single steps"):
        contrib.rnn.VariationalDropoutCell(both, drop_states=0.5)
    with pytest.raises(TypeError, match="expected a number"):
        rnn.DropoutCell("0.5")


def test_convolutional_cells_refuse_invalid_arguments():
    cell = contrib.rnn.Conv2DLSTMCell
    for arguments, message in [
        (((2, 5, 5), 3, 3, 2), "expected odd lengths"),
        (((2, 5, 5), 3, (3, 3, 3), 3), "expected a number or 2 of them"),
        (((2, 5, 5), 3, 3, 3, 0, 1, 1, None, None, "zeros", "zeros", "NCW"), "conv_layout is 'NCW'"),
    ]:
        with pytest.raises(ValueError, match=message):
            cell(*arguments)


def test_channels_may_be_last_in_a_convolutional_cell():
    cell = contrib.rnn.Conv2DGRUCell((5, 4, 2), 3, 3, 3, conv_layout="NHWC")
    assert cell.state_info(7) == [{"shape": (7, 3, 2, 3), "__layout__": "NHWC"}]
    assert [cell.i2h_weight.shape, cell.h2h_weight.shape] == [(9, 3, 3, 2), (9, 3, 3, 3)]
    assert repr(cell) == "Conv2DGRUCell(2 -> 9, tanh, NHWC)"


def test_a_convolutional_cell_on_images_of_one_pixel_matches_a_dense_cell():
    convolving, dense = (
        initialize(contrib.rnn.Conv2DLSTMCell((4, 1, 1), 6, 1, 1)),
        initialize(rnn.LSTMCell(6, input_size=4)),
    )
    for ours, param in zip(convolving.collect_params().values(), dense.collect_params().values(), strict=True):
        assert ours.shape == (*param.shape, *[1] * (2 * (len(param.shape) - 1)))
        ours.set_data(param.data().reshape(ours.shape))
    begin = [mx.nd.array(np.random.default_rng(seed).standard_normal((3, 6))) for seed in range(2)]
    expected, states = dense(X[0], begin)
    output, images = convolving(X[0].reshape((3, 4, 1, 1)), [state.reshape((3, 6, 1, 1)) for state in begin])
    for ours, theirs in zip((output, *images), (expected, *states), strict=True):
        np.testing.assert_allclose(ours.asnumpy()[:, :, 0, 0], theirs.asnumpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [rnn.LSTMCell, rnn.GRUCell, rnn.RNNCell, lambda n, **kw: rnn.RNNCell(n, "relu", **kw)])
@pytest.mark.parametrize("lengths", [None, [2, 5, 1]])
def test_a_cell_unrolled_at_once_matches_its_steps(make, lengths):
    cell = initialize(make(6, input_size=4))
    valid = None if lengths is None else mx.nd.array(lengths)
    begin = [mx.nd.array(np.random.default_rng(2).standard_normal((3, 6))) for _ in cell.state_info()]
    results = []
    for at_once in (True, False):
        handle = None if at_once else cell.register_forward_hook(lambda *args: None)  # a hook is called for each step
        x = X.copy()
        x.attach_grad()
        with mx.autograd.record():
            outputs, states = cell.unroll(5, x, begin, "TNC", merge_outputs=True, valid_length=valid)
            total = mx.nd.add_n(*((array * array).sum() for array in (outputs, *states)))
        total.backward()
        grads = [x.grad, *(param.grad() for param in cell.collect_params().values())]
        results.append([array.asnumpy().copy() for array in (outputs, *states, *grads)])
        assert cell._counter == 4
        if handle is not None:
            handle.detach()
    for ours, expected in zip(*results, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_hooks_are_called_for_each_step():
    cell, shapes = initialize(rnn.LSTMCell(6, input_size=4)), []
    cell.register_forward_hook(lambda block, inputs, result: shapes.append(result[0].shape))
    outputs, _ = cell.unroll(5, X, layout="TNC")
    assert shapes == [(3, 6)] * 5 == [output.shape for output in outputs]


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("compiled", [False, True])
def test_initial_states_have_the_dtype_of_the_cell(dtype, compiled):
    class Unrolled(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.cell = rnn.BidirectionalCell(rnn.LSTMCell(4), rnn.GRUCell(2))

        def hybrid_forward(self, F, x):
            return self.cell.unroll(5, x, layout="TNC", merge_outputs=True)[0]

    net = Unrolled()
    net.cast(dtype)
    net.initialize()
    if compiled:
        net.hybridize()
    assert net(X.astype(dtype)).dtype == np.dtype(dtype)


@pytest.mark.parametrize("base", [rnn.RNNCell, rnn.LSTMCell, rnn.GRUCell])
def test_a_derived_cell_passes_weights_by_position(base):
    class Derived(base):
        def hybrid_forward(self, F, inputs, states, i2h_weight, h2h_weight, i2h_bias, h2h_bias):
            return super().hybrid_forward(F, inputs, states, i2h_weight, h2h_weight, i2h_bias, h2h_bias)

    plain = initialize(base(4, input_size=3))
    derived = Derived(4, input_size=3, params=plain.params)
    x = mx.nd.ones((2, 3))
    expected, _ = plain(x, plain.begin_state(2))
    output, _ = derived(x, derived.begin_state(2))
    np.testing.assert_array_equal(output.asnumpy(), expected.asnumpy())


SUMS_AND_PRODUCTS = {
    rnn.RNNCell: ["plus0", "out"],
    rnn.LSTMCell: ["plus0", "mul0", "mul1", "state", "activation0", "out"],
    rnn.GRUCell: ["plus1", "plus0", "mul0", "plus2", "mul1", "mul20", "out"],
}


@pytest.mark.parametrize("cell", SUMS_AND_PRODUCTS)
def test_sums_and_products_of_a_step_have_names_as_in_mxnet(cell):
    created = cell(3, prefix="c_", input_size=2)
    output, _ = created(mx.sym.Variable("x"), created.begin_state(func=mx.sym.Variable))
    names = output.get_internals().list_outputs()
    expected = [f"c_t0_{name}_output" for name in SUMS_AND_PRODUCTS[cell]]
    assert [name for name in names if name in expected] == expected


def _compute_step(kind, dtype, second, at_once, monkeypatch):
    """Return the outputs and gradients of a step; with ``second``, the gradients of the sum of its cubed gradients."""
    from flowmx.gluon.rnn import gated_cells

    if not at_once:
        monkeypatch.setattr(gated_cells._GatedCell, "_can_fuse", lambda *_: False)
    rng = np.random.default_rng(0)
    cell = kind(5, input_size=4, prefix="cell_")
    cell.initialize(mx.init.Constant(0.0))
    cell.cast(dtype)
    for param in cell.collect_params().values():
        param.set_data(mx.nd.array(rng.standard_normal(param.shape), dtype=dtype))
    data, states = rng.standard_normal((3, 4)), [rng.standard_normal((3, 5)) for _ in cell.begin_state(3)]
    arrays = [mx.nd.array(value, dtype=dtype) for value in (data, *states)]
    factor = mx.nd.array(rng.standard_normal((3, 5)), dtype=dtype)
    for array in arrays:
        array.attach_grad()
    with mx.autograd.record():
        output, after = cell(arrays[0], arrays[1:])
        loss = (output * factor).sum() + (after[-1].square() * factor).sum()
        if second:
            first = mx.autograd.grad(loss, arrays, create_graph=True)
            loss = mx.nd.add_n(*[(grad * grad * grad).sum() for grad in first])
    loss.backward()
    grads = [array.grad for array in arrays] + [param.grad() for param in cell.collect_params().values()]
    return [array.asnumpy() for array in (loss, output, *after, *grads)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("kind", [mx.gluon.rnn.GRUCell, mx.gluon.rnn.LSTMCell])
def test_a_step_on_arrays_is_one_operator_with_the_same_results(kind, second, dtype, monkeypatch):
    actual = _compute_step(kind, dtype, second, True, monkeypatch)
    expected = _compute_step(kind, dtype, second, False, monkeypatch)
    tolerance = 2e-5 if dtype == "float32" else 1e-12
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * np.abs(other).max())


def test_when_a_step_is_one_operator(monkeypatch):
    from flowmx.gluon.rnn import cell_steps

    names, op = [], cell_steps.op
    monkeypatch.setattr(cell_steps, "op", lambda name, *inputs: (names.append(name), op(name, *inputs))[1])

    def operators_of(cell, dtype="float32"):
        cell.initialize()
        cell.cast(dtype)
        names.clear()
        cell(mx.nd.ones((2, 3), dtype=dtype), [state.astype(dtype) for state in cell.begin_state(2)])
        return list(names)

    rnn = mx.gluon.rnn
    assert operators_of(rnn.GRUCell(4)) == ["_gru_step"] and operators_of(rnn.LSTMCell(4)) == ["_lstm_step"]
    assert operators_of(rnn.LSTMCell(4), "float16") == [] == operators_of(rnn.RNNCell(4))

    class CustomActivation(rnn.GRUCell):
        def _get_activation(self, *args, **kwargs):
            return super()._get_activation(*args, **kwargs)

    assert operators_of(CustomActivation(4)) == [] == operators_of(rnn.LSTMCell(4, activation="relu"))
    assert '"_gru_step"' not in rnn.GRUCell(4)(mx.sym.var("x"), [mx.sym.var("s")])[0].tojson()


@pytest.mark.parametrize("cell", [mx.gluon.rnn.GRUCell, mx.gluon.rnn.LSTMCell])
def test_states_of_another_batch_are_refused_at_the_call(cell):
    net = cell(4, input_size=3)
    net.initialize()
    for states in (net.begin_state(3), [mx.nd.zeros((2, 5)) for _ in net.state_info()]):
        with pytest.raises(mx.MXNetError, match="shape"):
            net(mx.nd.ones((2, 3)), states)


def test_a_dense_layers_error_names_its_operator():
    net = mx.gluon.nn.Dense(4, activation="relu", in_units=3)
    net.initialize()
    with pytest.raises(mx.MXNetError, match=r"^FullyConnected: input weight has shape"):
        net(mx.nd.zeros((2, 5)))
