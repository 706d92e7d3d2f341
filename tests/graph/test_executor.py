"""Executors: binding, passes, gradients, errors, and the paper's loop."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import ShapeError, TypeInferenceError
from flowmx.ndarray import core

KINDS = ["NaiveEngine", "ThreadedEngine", "ThreadedEnginePerDevice"]


@pytest.fixture(autouse=True)
def fresh_names():
    with mx.name.NameManager():
        yield


def mlp(loss=True):
    data = mx.sym.Variable("data")
    fc1 = mx.sym.FullyConnected(data, num_hidden=8, name="fc1")
    act = mx.sym.Activation(fc1, act_type="tanh", name="act")
    fc2 = mx.sym.FullyConnected(act, num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(fc2, name="softmax") if loss else fc2


def filled(executor, seed=0):
    random = np.random.default_rng(seed)
    for name, bound in executor.arg_dict.items():
        bound[:] = random.integers(0, 3, bound.shape) if "label" in name else random.normal(size=bound.shape)
    return executor


def imperative_gradients(executor):
    """Compute the gradients of the same network on the tape."""
    arrays = {name: bound.copy() for name, bound in executor.arg_dict.items()}
    for bound in arrays.values():
        bound.attach_grad()
    with mx.autograd.record():
        h = mx.nd.FullyConnected(arrays["data"], arrays["fc1_weight"], arrays["fc1_bias"], num_hidden=8)
        h = mx.nd.Activation(h, act_type="tanh")
        h = mx.nd.FullyConnected(h, arrays["fc2_weight"], arrays["fc2_bias"], num_hidden=3)
        out = mx.nd.SoftmaxOutput(h, arrays["softmax_label"])
    out.backward()
    return out, {name: bound.grad for name, bound in arrays.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_forward_and_backward_equal_the_tape(kind):
    with mx.engine.using(engine_type=kind):
        executor = filled(mlp().simple_bind(mx.cpu(), data=(4, 6)))
        out = executor.forward(is_train=True)[0]
        executor.backward()
        expected, grads = imperative_gradients(executor)
        np.testing.assert_allclose(out.asnumpy(), expected.asnumpy(), rtol=1e-6)
        # Both compute tanh with an error of one bit; sums of terms near 1 that cancel have that absolute error.
        for name, value in grads.items():
            np.testing.assert_allclose(executor.grad_dict[name].asnumpy(), value.asnumpy(), rtol=1e-5, atol=5e-7)


def test_forward_backward_equals_the_two_passes():
    one, two = (filled(mlp().simple_bind(mx.cpu(), data=(4, 6))) for _ in range(2))
    one.forward(is_train=True)
    one.backward()
    two.forward_backward()
    for name, value in one.grad_dict.items():
        assert np.array_equal(value.asnumpy(), two.grad_dict[name].asnumpy())


def test_backward_twice_after_one_forward_gives_the_same():
    executor = filled(mlp().simple_bind(mx.cpu(), data=(4, 6)))
    executor.forward(is_train=True)
    executor.backward()
    first = {name: value.asnumpy() for name, value in executor.grad_dict.items()}
    executor.backward()
    for name, value in executor.grad_dict.items():
        assert np.array_equal(value.asnumpy(), first[name])


def test_the_papers_loop_needs_no_wait():
    executor = filled(mlp().simple_bind(mx.cpu(), data=(16, 6)))
    names = [name for name in executor.arg_dict if name not in ("data", "softmax_label")]
    label = executor.arg_dict["softmax_label"].asnumpy().astype(int)

    def loss():
        out = executor.forward()[0].asnumpy()
        return -np.log(out[np.arange(16), label]).mean()

    before = loss()
    for _ in range(60):
        executor.forward_backward()
        for name in names:
            w, g = executor.arg_dict[name], executor.grad_dict[name]
            w -= 0.05 * g
    assert loss() < before / 4


def test_gradient_requests():
    x = mx.sym.Variable("x")
    a = mx.nd.array([1, 2, 3])
    for request, expected in (("write", [2, 4, 6]), ("add", [12, 14, 16])):
        grad = mx.nd.full((3,), 10)
        executor = (x * x).bind(mx.cpu(), [a], [grad], request)
        executor.forward(is_train=True)
        executor.backward()
        assert grad.asnumpy().tolist() == expected
    executor = (x * x).bind(mx.cpu(), [a], [mx.nd.full((3,), 10)], "null")
    executor.forward(is_train=True)
    executor.backward()  # no gradient is requested
    assert executor.forward_backward()[0].asnumpy().tolist() == [1, 4, 9]


def test_a_backward_pass_follows_the_mode_of_its_forward_pass():
    x = mx.sym.Variable("x")
    executor = (x * x).simple_bind(mx.cpu(), x=(3,))
    executor.arg_dict["x"][:] = mx.nd.array([1, 2, 3])
    executor.backward()
    assert executor.grad_dict["x"].asnumpy().tolist() == [2, 4, 6], "without a forward pass"
    executor.forward()
    executor.backward(mx.nd.array([1, 10, 100]))
    assert executor.grad_dict["x"].asnumpy().tolist() == [2, 40, 600]
    for mode, expected in (("training", lambda output: 1), ("always", lambda output: output)):
        dropping = mx.sym.Dropout(x, p=0.5, mode=mode).simple_bind(mx.cpu(), x=(100,))
        dropping.arg_dict["x"][:] = 1
        for _ in range(2):
            dropping.forward(is_train=False)
            dropping.backward(is_train=False)
            output = dropping.outputs[0].asnumpy()
            assert (dropping.grad_dict["x"].asnumpy() == expected(output)).all()


def test_backward_in_prediction_mode_treats_moving_statistics_as_constants():
    x = mx.sym.Variable("x")
    executor = mx.sym.BatchNorm(x, fix_gamma=False, eps=0, name="bn").simple_bind(mx.cpu(), x=(4, 2))
    executor.arg_dict["x"][:] = mx.nd.array([[0, 1], [4, 9], [16, 25], [36, 49]])
    executor.arg_dict["bn_gamma"][:] = 3
    executor.aux_dict["bn_moving_var"][:] = 4
    executor.forward(is_train=False)
    executor.backward()
    assert (executor.grad_dict["x"].asnumpy() == 1.5).all()
    assert executor.aux_dict["bn_moving_mean"].asnumpy().tolist() == [0, 0]


def test_superfluous_head_gradients_are_ignored():
    x = mx.sym.Variable("x")
    executor = mx.sym.Group([x * 2, mx.sym.shape_array(x)]).simple_bind(mx.cpu(), x=(3,))
    executor.forward(is_train=True)
    executor.backward([mx.nd.ones(3), mx.nd.ones((7,)), mx.nd.ones(4)])
    assert executor.grad_dict["x"].asnumpy().tolist() == [2, 2, 2]
    two = mx.sym.Group([x * 2, x * 3]).simple_bind(mx.cpu(), x=(3,))
    two.forward(is_train=True)
    with pytest.raises(ValueError, match="1 out_grads were given, the symbol has 2 outputs"):
        two.backward([mx.nd.ones(3)])


def test_head_gradients():
    x = mx.sym.Variable("x")
    a, grad = mx.nd.array([1, 2, 3]), mx.nd.full((3,), 0)
    executor = (x * x).bind(mx.cpu(), {"x": a}, {"x": grad})
    executor.forward(is_train=True)
    executor.backward(mx.nd.array([1, 10, 100]))
    assert grad.asnumpy().tolist() == [2, 40, 600]
    executor.backward()
    assert grad.asnumpy().tolist() == [2, 4, 6], "ones again when none are given"
    with pytest.raises(ShapeError, match=r"out_grad 0 has shape \(2,\), expected \(3,\)"):
        executor.backward(mx.nd.array([1, 2]))


def test_a_variable_used_twice_and_an_unused_one():
    x, y = mx.sym.Variable("x"), mx.sym.Variable("y")
    net = mx.sym.Group([x * x + x, mx.sym.BlockGrad(y)])
    gx, gy = mx.nd.full((2,), 5), mx.nd.full((2,), 5)
    executor = net.bind(mx.cpu(), {"x": mx.nd.array([1, 2]), "y": mx.nd.array([3, 4])}, {"x": gx, "y": gy})
    executor.forward(is_train=True)
    executor.backward()
    assert gx.asnumpy().tolist() == [3, 5]
    assert gy.asnumpy().tolist() == [0, 0]


def test_outputs_that_are_variables_views_or_repeated():
    x = mx.sym.Variable("x")
    y = mx.sym.exp(x)
    net = mx.sym.Group([x, y, y.reshape((2, 1)), y])
    outputs = net.bind(mx.cpu(), [mx.nd.array([0, 1])]).forward()
    e = np.exp([0.0, 1.0])
    for output, expected in zip(outputs, ([0, 1], e, e.reshape(2, 1), e), strict=True):
        np.testing.assert_allclose(output.asnumpy(), expected, rtol=1e-6)


def test_only_the_needed_part_runs():
    x = mx.sym.Variable("x")
    broken = mx.sym.reshape(mx.sym.exp(x, name="e"), shape=(5,), name="r")
    executor = broken.get_internals()["e_output"].bind(mx.cpu(), [mx.nd.array([0, 1])])
    assert executor.forward()[0].shape == (2,)


def test_batchnorm_updates_its_states_in_training_only():
    net = mx.sym.BatchNorm(mx.sym.Variable("data"), name="bn", momentum=0.5)
    executor = net.simple_bind(mx.cpu(), data=(8, 2))
    executor.arg_dict["data"][:] = np.arange(16).reshape(8, 2)
    executor.forward(is_train=False)
    assert executor.aux_dict["bn_moving_mean"].asnumpy().tolist() == [0, 0]
    executor.forward(is_train=True)
    assert executor.aux_dict["bn_moving_mean"].asnumpy().tolist() == [3.5, 4]


def test_small_arrays_are_filled_by_one_operation(monkeypatch):
    pushed = []
    real = core.push_on

    def push_on(device, function, arguments, reads, writes, name, *more):
        pushed.append((name, len(writes)))
        real(device, function, arguments, reads, writes, name, *more)

    monkeypatch.setattr(core, "push_on", push_on)
    net = mx.sym.FullyConnected(mx.sym.BatchNorm(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=9)), num_hidden=3)
    executor = net.simple_bind(mx.cpu(), data=(2, 40_000))
    arrays = [*executor.arg_arrays, *executor.grad_arrays, *executor.aux_arrays]
    large = [array for array in arrays if array.size > 50_000]
    zeros = [each for each in pushed if each[0] == "_zeros"]
    assert zeros == [*[("_zeros", 1)] * len(large), ("_zeros", len(arrays) - len(large))]
    assert not any(array.asnumpy().any() for array in arrays)


def test_binding_errors():
    x, y = mx.sym.Variable("x"), mx.sym.Variable("y")
    a = mx.nd.array([1, 2])
    with pytest.raises(ValueError, match="arguments are missing for y"):
        (x + y).bind(mx.cpu(), {"x": a})
    with pytest.raises(ValueError, match="1 arguments were given, expected 2: x, y"):
        (x + y).bind(mx.cpu(), [a])
    with pytest.raises(ShapeError, match="_plus"):
        (x + y).bind(mx.cpu(), [a, mx.nd.array([1, 2, 3])])
    with pytest.raises(TypeInferenceError):
        (x + y).bind(mx.cpu(), [a, a.astype("float64")])
    with pytest.raises(mx.MXNetError, match="is on cpu"):
        (x + y).bind(mx.cpu(), [a, a.as_in_context(mx.cpu(1))])
    with pytest.raises(TypeError, match="expected an NDArray"):
        (x + y).bind(mx.cpu(), [a, 3])
    with pytest.raises(ShapeError, match="'x' cannot be inferred"):
        (x + y).simple_bind(mx.cpu())
    with pytest.raises(ValueError, match="grad_req is 'wrte'"):
        (x + y).bind(mx.cpu(), [a, a], [a, a], "wrte")


def test_running_errors():
    executor = mlp().simple_bind(mx.cpu(), data=(4, 6))
    with pytest.raises(ValueError, match="no argument 'dta'"):
        executor.forward(dta=mx.nd.full((4, 6), 0))
    with pytest.raises(ShapeError, match="bound with"):
        executor.forward(data=mx.nd.full((4, 7), 0))


def test_an_error_deep_in_the_graph_names_the_node_and_its_line():
    net = mlp()
    executor = filled(net.simple_bind(mx.cpu(), data=(4, 6)))
    executor.forward(is_train=True)[0].wait_to_read()
    (segment,) = executor._modes[True]._segments.values()
    steps = segment[0].part.steps
    position = next(i for i, step in enumerate(steps) if step.node.name == "fc2")

    def fail(run, inputs, outputs):
        raise ZeroDivisionError("planted")

    steps[position] = steps[position]._replace(forward=fail)
    out = executor.forward(is_train=True)[0]
    with pytest.raises(ZeroDivisionError, match="planted") as caught:
        out.asnumpy()
    notes = "\n".join(caught.value.__notes__)
    assert "node 'fc2'" in notes
    assert "test_executor.py" in notes
    assert "fc1_output: (4, 8) float32" in notes
    assert "enqueued at" in notes


def test_reshape_shares_parameters():
    executor = filled(mlp().simple_bind(mx.cpu(), data=(4, 6)))
    other = executor.reshape(data=(2, 6), softmax_label=(2,))
    assert other.arg_dict["fc1_weight"] is executor.arg_dict["fc1_weight"]
    other.arg_dict["data"][:] = executor.arg_dict["data"][:2]
    np.testing.assert_allclose(other.forward()[0].asnumpy(), executor.forward()[0].asnumpy()[:2], rtol=1e-6)
    with pytest.raises(ShapeError, match="would grow"):
        executor.reshape(data=(8, 6), softmax_label=(8,))
    bigger = executor.reshape(allow_up_sizing=True, data=(8, 6), softmax_label=(8,))
    assert bigger.forward()[0].shape == (8, 3)


def test_shared_executor_and_params():
    executor = filled(mlp().simple_bind(mx.cpu(), data=(4, 6)))
    other = mlp().simple_bind(mx.cpu(), grad_req="null", shared_exec=executor, data=(1, 6))
    assert other.arg_dict["fc2_weight"] is executor.arg_dict["fc2_weight"]
    assert other.arg_dict["data"] is not executor.arg_dict["data"]
    with pytest.raises(ValueError, match="no argument 'nothing'"):
        executor.copy_params_from({"nothing": mx.nd.array([1])})
    executor.copy_params_from({"nothing": mx.nd.array([1])}, allow_extra_params=True)


def test_inference_takes_less_memory_than_training():
    x = mx.sym.Variable("x")
    net = x
    for _ in range(10):
        net = mx.sym.sigmoid(mx.sym.broadcast_add(net, x))
    training = net.simple_bind(mx.cpu(), x=(64, 64))
    inference = net.simple_bind(mx.cpu(), grad_req="null", x=(64, 64))
    assert inference.plan.internal_bytes() < training.plan.internal_bytes() / 4
    assert inference.plan.internal_bytes() <= 2 * 64 * 64 * 4
    assert "allocated for internal values" in training.debug_str()


def test_dropout_in_a_graph_repeats_with_the_seed():
    net = mx.sym.Dropout(mx.sym.Variable("x"), p=0.5)
    executor = net.bind(mx.cpu(), [mx.nd.full((100,), 1)])
    results = []
    for _ in range(2):
        mx.random.seed(3)
        results.append(executor.forward(is_train=True)[0].asnumpy())
    assert np.array_equal(*results)
    assert 20 < (results[0] == 0).sum() < 80
    assert np.array_equal(executor.forward(is_train=False)[0].asnumpy(), np.ones(100))


async def test_awaiting_outputs():
    executor = filled(mlp().simple_bind(mx.cpu(), data=(4, 6)))
    (out,) = executor.forward()
    await out
    np.testing.assert_allclose(out.asnumpy().sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("match_range", [0, 10])
def test_memory_settings_change_the_bytes_and_not_the_result(in_place, match_range):
    x = mx.sym.Variable("x")
    net = x
    for _ in range(6):
        net = mx.sym.softmax(mx.sym.broadcast_add(net, x))  # these operators are not joined to one loop
    values = np.linspace(-1, 1, 64).astype(np.float32)
    plain = net.bind(mx.cpu(), [mx.nd.array(values)])
    with mx.engine.using(exec_enable_inplace=in_place, exec_match_range=match_range):
        other = net.bind(mx.cpu(), [mx.nd.array(values)])
    assert np.array_equal(plain.forward()[0].asnumpy(), other.forward()[0].asnumpy())
    values_alive = {(False, 0): 11, (False, 10): 2, (True, 0): 1, (True, 10): 1}[in_place, match_range]
    assert other.plan.internal_bytes() == values_alive * 64 * 4


def test_executors_of_several_shapes_share_one_arena():
    net = mlp()
    largest = filled(net.simple_bind(mx.cpu(), data=(64, 6)))
    largest.forward(is_train=True)
    largest.backward()
    mx.nd.waitall()
    before = largest.arena.nbytes
    small = largest.reshape(partial_shaping=True, data=(3, 6))
    other = net.simple_bind(mx.cpu(), shared_exec=largest, data=(5, 6))
    assert small.arena is other.arena is largest.arena
    for executor in (small, other, largest, small):
        executor.forward(is_train=True)
        executor.backward()
        alone = net.simple_bind(mx.cpu(), data=executor.arg_dict["data"].shape)
        alone.copy_params_from(executor.arg_dict)
        alone.forward(is_train=True)
        alone.backward()
        for name, gradient in executor.grad_dict.items():
            np.testing.assert_array_equal(gradient.asnumpy(), alone.grad_dict[name].asnumpy())
    assert largest.arena.nbytes == before


def test_an_executor_releases_a_block_that_is_too_small():
    net = mlp()
    small = filled(net.simple_bind(mx.cpu(), data=(3, 6)))
    small.forward(is_train=True)
    mx.nd.waitall()
    (before,) = small.arena._blocks.values()
    memory = weakref.ref(before.memory)
    large = net.simple_bind(mx.cpu(), shared_exec=small, data=(64, 6))
    large.forward(is_train=True)
    mx.nd.waitall()
    del before
    gc.collect()
    assert memory() is None
    again = small.forward(is_train=True)[0].asnumpy()
    alone = net.simple_bind(mx.cpu(), data=(3, 6))
    alone.copy_params_from(small.arg_dict)
    np.testing.assert_array_equal(again, alone.forward(is_train=True)[0].asnumpy())


def test_a_backward_pass_after_another_executor_used_the_arena():
    net = mlp()
    first = filled(net.simple_bind(mx.cpu(), data=(4, 6)))
    second = first.reshape(partial_shaping=True, data=(2, 6))
    first.forward(is_train=True)
    first.backward()
    expected = first.grad_dict["fc1_weight"].asnumpy()
    first.forward(is_train=True)
    second.forward()
    first.forward()  # a prediction counts as a pass too
    first.backward()
    np.testing.assert_array_equal(first.grad_dict["fc1_weight"].asnumpy(), expected)


@pytest.mark.parametrize("kind", ["a view", "whole"])
def test_a_gradient_written_to_a_view_leaves_the_rest_unchanged(kind):
    def fails():
        raise OSError("the data is gone")

    memory, x = mx.nd.zeros((2, 3)), mx.nd.array([[1, 2, 3]])
    mx.engine.push(fails, writes=[memory])
    target = memory[1:] if kind == "a view" else memory
    x = x if kind == "a view" else mx.nd.array([[1, 2, 3]] * 2)
    executor = (mx.sym.var("x") ** 2).bind(mx.cpu(), {"x": x}, args_grad={"x": target})
    executor.forward(is_train=True)
    executor.backward(mx.nd.ones(x.shape))
    if kind == "whole":  # the pass overwrites the values, which are valid again
        np.testing.assert_array_equal(memory.asnumpy(), [[2, 4, 6]] * 2)
    else:
        with pytest.raises(OSError, match="the data is gone"):
            memory.asnumpy()
