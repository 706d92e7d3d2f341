"""Backward passes as few operations: gradients do not change, and errors reach only dependent results."""

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd
from flowmx.errors import AutogradError
from flowmx.ndarray.backward import BackwardPass
from flowmx.ndarray.gradient_rules import learn, rule_for
from flowmx.ops.nn.activation import BackwardActivation
from flowmx.ops.registry.operators import lookup

LAYERS, WIDTH = 4, 1500  # 9 MB a layer: a bulk each


def marked(*shape, seed=0):
    x = mx.nd.array(np.random.default_rng(seed).standard_normal(shape))
    x.attach_grad()
    return x


def network(x, w, b):
    with autograd.record():
        hidden = mx.nd.FullyConnected(x, w, b, num_hidden=5)
        shaped = mx.nd.relu(hidden + hidden * 2).reshape((5, -1)).reshape((3, 5))
        first, second = mx.nd.split(mx.nd.concat(shaped, hidden, dim=1), num_outputs=2, axis=1)
        return (mx.nd.tanh(first) * x[:, :5] - second / 3).sum() + b.sum()


def gradients(by_rule, monkeypatch):
    if not by_rule:
        monkeypatch.setattr(BackwardPass, "_apply_rule", lambda self, node, grads: None)
    x, w, b = marked(3, 6), marked(5, 6, seed=1), marked(5, seed=2)
    for _ in range(2):
        network(x, w, b).backward()
    return [each.grad.asnumpy() for each in (x, w, b)]


def test_gradients_by_rules_are_those_of_calls_bit_for_bit(monkeypatch):
    by_rule = gradients(True, monkeypatch)
    for one, other in zip(by_rule, gradients(False, monkeypatch), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("settings", [{"engine_type": "NaiveEngine"}, {"engine_check": True}, {"engine_max_ops": 4}])
def test_gradients_are_the_same_on_other_engines(settings, monkeypatch):
    expected = gradients(True, monkeypatch)
    with mx.engine.using(**settings):
        for one, other in zip(gradients(True, monkeypatch), expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_small_backward_pass_is_one_operation():
    x, w, b = marked(3, 6), marked(5, 6, seed=1), marked(5, seed=2)
    network(x, w, b).backward()
    loss = network(x, w, b)
    before = mx.engine.stats()["pushed"]
    loss.backward()
    assert mx.engine.stats()["pushed"] - before == 1


def test_gradients_with_request_add_are_summed():
    x = mx.nd.array([1, 2])
    x.attach_grad("add")
    for _ in range(3):
        with autograd.record():
            y = x * x + x
        y.backward()
    np.testing.assert_array_equal(x.grad.asnumpy(), [9, 15])


@pytest.mark.parametrize("factors", [0, 1, 2])
def test_one_gradient_of_two_arrays_is_stored_separately(factors):
    a, b = marked(4), marked(4, seed=1)
    for _ in range(2):  # the second pass is a replay
        with autograd.record():
            y = a + b
            for _ in range(factors):
                y = y * 3
        y.backward(mx.nd.array([1, 2, 3, 4]))
        a.grad[:] = 0
        np.testing.assert_array_equal(b.grad.asnumpy(), np.array([1, 2, 3, 4]) * 3**factors)


def test_a_head_gradient_stays_the_users():
    x = marked(2, 3)
    head = mx.nd.ones((3, 2))
    with autograd.record():
        y = x.reshape((3, 2))
    y.backward(head)
    x.grad[:] = 7
    np.testing.assert_array_equal(head.asnumpy(), np.ones((3, 2)))


def test_grad_returns_arrays_that_share_nothing_with_the_tape():
    x = marked(3)
    with autograd.record():
        y = x * 2
        z = y * y
    (first,) = autograd.grad([z], [x], retain_graph=True)
    first[:] = 0
    (second,) = autograd.grad([z], [x])
    np.testing.assert_allclose(second.asnumpy(), 8 * x.asnumpy(), rtol=1e-6)


def test_an_error_reaches_only_dependent_results(monkeypatch):
    def broken(self, run, inputs, outputs):
        raise FloatingPointError("no slope today")

    monkeypatch.setattr(BackwardActivation, "forward", broken)
    monkeypatch.setattr(BackwardActivation, "bound", lambda *_: None)
    x, w = marked(2, 13), marked(2, 13, seed=1)
    with autograd.record():
        loss = mx.nd.Activation(x, act_type="softsign") + w * 2
    loss.backward()
    np.testing.assert_array_equal(w.grad.asnumpy(), np.full((2, 13), 2))
    with pytest.raises(FloatingPointError, match="no slope today") as caught:
        x.grad.asnumpy()
    notes = "\n".join(caught.value.__notes__)
    assert "_backward_Activation" in notes
    assert "loss.backward()" in notes
    monkeypatch.undo()
    with autograd.record():
        loss = x * 3 + w
    loss.backward()  # a new gradient clears the error
    np.testing.assert_array_equal(x.grad.asnumpy(), np.full((2, 13), 3))


def test_an_error_of_the_forward_pass_reaches_the_gradients_that_need_it():
    def fails():
        raise OSError("the data is gone")

    x, w, bad = marked(3), marked(3, seed=1), mx.nd.ones(3)
    mx.engine.push(fails, writes=[bad])
    with autograd.record():
        well, ill = w * 2, x * bad
    autograd.backward([well, ill])
    np.testing.assert_array_equal(w.grad.asnumpy(), [2, 2, 2])
    with pytest.raises(OSError, match="the data is gone"):
        x.grad.asnumpy()
    with pytest.raises(OSError, match="the data is gone"):
        ill.asnumpy()


def test_an_array_that_was_changed_is_refused_where_a_rule_would_read_it():
    x, y = marked(3), mx.nd.ones(3)
    for _ in range(2):
        with autograd.record():
            z = x * y
        z.backward()
    with autograd.record():
        z = x * y
    y[:] = 5
    with pytest.raises(AutogradError, match=r"input 1 of 'broadcast_mul' .* was changed in place"):
        z.backward()


def test_large_gradients_are_stored_while_others_are_computed():
    weights = [marked(WIDTH, WIDTH, seed=index) for index in range(LAYERS)]
    x = marked(2, WIDTH)

    def step():
        with autograd.record():
            y = x
            for weight in weights:
                y = mx.nd.FullyConnected(y, weight, num_hidden=WIDTH, no_bias=True)
        y.backward()

    step()
    mx.nd.waitall()
    step()
    order = []
    for name, array in (("first layer", weights[0].grad), ("last layer", weights[-1].grad)):
        mx.engine.push(lambda name=name: order.append(name), reads=[array], device=mx.cpu(1))
    mx.nd.waitall()
    assert order == ["last layer", "first layer"]


def test_a_gradient_that_reads_a_gradient_buffer_sees_its_old_content():
    weights = [marked(WIDTH, WIDTH, seed=index) for index in range(LAYERS)]
    last = weights[-1].grad
    last[:] = 3
    with autograd.record():
        y = weights[0] * last
        for weight in weights[1:]:
            y = y + weight
    y.backward()
    np.testing.assert_array_equal(weights[0].grad.asnumpy()[:2], np.full((2, WIDTH), 3))
    np.testing.assert_array_equal(last.asnumpy()[:2], np.ones((2, WIDTH)))


def test_calls_that_cannot_be_traced_have_no_rule():
    x, device = mx.nd.ones(3), mx.cpu(0)
    on = x.storage.device
    assert learn(lambda F, i, o, h: [i[0] * 2], [x], (), (True,), (), on) is not None
    assert learn(lambda F, i, o, h: [i[0].as_in_context(mx.cpu(1))], [x], (), (True,), (), on) is None
    assert learn(lambda F, i, o, h: [i[0] * mx.nd.ones(3, ctx=device)], [x], (), (True,), (), on) is None
    assert learn(lambda F, i, o, h: [i[0].__setitem__(0, 1)], [x], (), (True,), (), on) is None
    assert learn(lambda F, i, o, h: [i[0][:2]], [x], (), (True,), (), on) is None  # not a reshape of the whole
    assert rule_for("test", [x], lambda F, i, o, h: [1 / 0], on) is None


# -- calls -------------------------------------------------------------------------------------------------


def test_calls_with_equal_keys_are_distinguished():
    x = mx.nd.array([0, 1])
    for number in (0.0, -0.0, 0, 1, 1.0):
        expected = np.array([0, 1]) + np.float32(0) if number == 0 else np.array([1, 2])
        np.testing.assert_array_equal(mx.nd._internal._plus_scalar(x, scalar=number).asnumpy(), expected)
    assert np.signbit(mx.nd._internal._mul_scalar(mx.nd.ones(1), scalar=-0.0).asnumpy()[0])
    assert not np.signbit(mx.nd._internal._mul_scalar(mx.nd.ones(1), scalar=0).asnumpy()[0])
    assert not np.signbit(mx.nd._internal._mul_scalar(mx.nd.ones(1), scalar=0.0).asnumpy()[0])


def test_arrays_by_name_come_in_the_operators_order():
    data, weight = mx.nd.array([[1, 2]]), mx.nd.array([[3, 4], [5, 6]])
    for _ in range(2):
        result = mx.nd.FullyConnected(weight=weight, no_bias=True, data=data, num_hidden=2)
        np.testing.assert_array_equal(result.asnumpy(), [[11, 17]])
    np.testing.assert_array_equal(mx.nd.dot(weight, weight).asnumpy(), weight.asnumpy() @ weight.asnumpy())
    np.testing.assert_array_equal(mx.nd.dot(data, weight).asnumpy(), [[13, 16]])


def test_a_wrong_call_is_refused_every_time():
    x = mx.nd.ones((2, 3))
    for _ in range(2):
        with pytest.raises(TypeError, match="weight is missing"):
            mx.nd.FullyConnected(x, num_hidden=2)
        with pytest.raises(mx.errors.ParameterError, match="no parameter 'axes'"):
            mx.nd.sum(x, axes=1)


def test_alternating_calls_keep_their_shapes():
    small, big = mx.nd.ones((2, 1)), mx.nd.ones((2, 3))
    for _ in range(3):
        assert (small + big).shape == (2, 3)
        assert (small + small).shape == (2, 1)
        assert (big + big).shape == (2, 3)


def test_rules_are_cached_in_the_spec():
    spec = lookup("tanh").create().spec(((7, 11),), (np.dtype("float32"),))
    x = marked(7, 11)
    with autograd.record():
        y = mx.nd.tanh(x)
    y.backward()
    assert len(spec.rules) == 1
