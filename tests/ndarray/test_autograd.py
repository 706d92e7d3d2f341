"""Autograd: recording, gradients, requests, higher orders, refusals."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import flowmx as mx
from flowmx import autograd
from flowmx.errors import AutogradError


def marked(values, request="write"):
    x = mx.nd.array(values)
    x.attach_grad(request)
    return x


def test_gradients_of_a_chain():
    x = marked([1, 2, 3])
    with autograd.record():
        y = (x * x + mx.nd.exp(x) / 2).sum()
    y.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), 2 * x.asnumpy() + np.exp(x.asnumpy()) / 2, rtol=1e-6)


def test_scopes():
    assert not autograd.is_recording()
    assert not autograd.is_training()
    with autograd.record():
        assert autograd.is_recording()
        assert autograd.is_training()
        with autograd.pause():
            assert not autograd.is_recording()
            assert not autograd.is_training()
            with autograd.train_mode():
                assert autograd.is_training()
        with autograd.predict_mode():
            assert autograd.is_recording()
            assert not autograd.is_training()
    with autograd.record(train_mode=False):
        assert not autograd.is_training()
    assert not autograd.is_recording()


async def test_scopes_of_two_tasks_are_independent():
    async def one():
        with autograd.record():
            await asyncio.sleep(0)
            assert autograd.is_recording()
            await asyncio.sleep(0)

    async def two():
        assert not autograd.is_recording()
        await asyncio.sleep(0)
        assert not autograd.is_recording()

    await asyncio.gather(one(), two())


def test_head_gradients_and_several_heads():
    x = marked([1, 2])
    with autograd.record():
        a, b = x * 2, x * x
    autograd.backward([a, b], [mx.nd.array([1, 10]), None])
    assert x.grad.asnumpy().tolist() == [2 + 2, 20 + 4]
    with autograd.record():
        y = x * 2
    with pytest.raises(AutogradError, match=r"head gradient 0 has shape \(3,\), expected \(2,\)"):
        y.backward(mx.nd.array([1, 2, 3]))


def test_requests():
    x, y, z = marked([1, 2]), marked([1, 2], "add"), marked([1, 2], "null")
    for _ in range(3):
        with autograd.record():
            out = x * 2 + y * 3 + z
        out.backward()
    assert x.grad.asnumpy().tolist() == [2, 2]
    assert y.grad.asnumpy().tolist() == [9, 9]
    assert z.grad is None
    with pytest.raises(ValueError, match="grad_req"):
        x.attach_grad("sum")


def test_mark_variables():
    x, g = mx.nd.array([3]), mx.nd.full((1,), 0)
    autograd.mark_variables(x, g)
    with autograd.record():
        y = x * x
    y.backward()
    assert g.asscalar() == 6
    with pytest.raises(ValueError, match="2 variables, 1 gradients"):
        autograd.mark_variables([x, x], [g])


def test_retain_graph():
    x = marked([2])
    with autograd.record():
        y = x * x
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.asscalar() == 4
    with pytest.raises(AutogradError, match="retain_graph=True"):
        y.backward()


def test_grad_and_higher_orders():
    x = marked([0.5, 1.5])
    with autograd.record():
        y = mx.nd.exp(x * 2)
        (first,) = autograd.grad(y, x, create_graph=True)
        (second,) = autograd.grad(first, x, create_graph=True)
        third = second * second
    third.backward()
    e = np.exp(2 * x.asnumpy())
    np.testing.assert_allclose(first.asnumpy(), 2 * e, rtol=1e-5)
    np.testing.assert_allclose(second.asnumpy(), 4 * e, rtol=1e-5)
    np.testing.assert_allclose(x.grad.asnumpy(), 2 * 4 * e * 8 * e, rtol=1e-5)


def test_grad_of_several_variables_leaves_buffers_unchanged():
    x, y = marked([1]), marked([2])
    with autograd.record():
        z = x * y
    gx, gy = autograd.grad(z, [x, y])
    assert (gx.asscalar(), gy.asscalar()) == (2, 1)
    assert x.grad.asscalar() == 0
    with autograd.record():
        z = x * 1
    with pytest.raises(AutogradError, match="do not depend on variable 0"):
        autograd.grad(z, y)
    with pytest.raises(AutogradError, match="was not marked"):
        autograd.grad(z, mx.nd.array([1]), retain_graph=True)


def test_grad_returns_a_list_even_for_one_array():
    x = marked([[1, 2], [3, 4]])
    with autograd.record():
        y = (x * x).sum()
    gradients = autograd.grad(y, x)
    assert isinstance(gradients, list)
    assert gradients[0].asnumpy().tolist() == [[2, 4], [6, 8]]


def test_grad_of_a_long_tape_leaves_buffers_unchanged():
    x, b = marked([1, 2]), marked([3, 4])
    b.grad[:] = 7
    with autograd.record():
        y = x
        for _ in range(100):
            y = y * 1.01
        z = y * b
        for _ in range(50):
            z = z * 1.01
    gradients = autograd.grad(z, [x, b])
    np.testing.assert_allclose(gradients[1].asnumpy(), 1.01**150 * x.asnumpy(), 1e-5)
    assert b.grad.asnumpy().tolist() == [7, 7]


def test_grad_of_a_hybridized_block_leaves_buffers_unchanged():
    net = mx.gluon.nn.HybridLambda("tanh")
    net.hybridize()
    x = marked([0, 0])
    x.grad[:] = 7
    with autograd.record():
        y = net(x)
    (gradient,) = autograd.grad(y, x)
    assert gradient.asnumpy().tolist() == [1, 1]
    assert x.grad.asnumpy().tolist() == [7, 7]


def test_gradients_share_no_memory():
    x, y, head = marked([1, 2]), marked([3, 4]), mx.nd.array([5, 6])
    with autograd.record():
        z = x + y
    gx, gy = autograd.grad(z, [x, y], head)
    gx[:] = 0
    assert gy.asnumpy().tolist() == head.asnumpy().tolist() == [5, 6]


# -- variables that no gradient reaches ---------------------------------------------------------------------


def stale(values, request="write"):
    x = marked(values, request)
    x.grad[:] = 7
    return x


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x > 2).sum(),
        lambda x: mx.nd.argmax(x, axis=0),
        lambda x: x.shape_array(),
        lambda x: mx.nd.BlockGrad(x * x),
        lambda x: mx.nd.zeros_like(x) + mx.nd.ones_like(x),
        lambda x: mx.nd.floor(x) * mx.nd.sign(x),
        lambda x: mx.nd.one_hot(x, 4),
        lambda x: (x > 2) * (x < 5),
    ],
)
def test_zeros_are_written_if_no_gradient_flows(function):
    x, added = stale([1, 2, 3]), stale([1, 2, 3], "add")
    for each in (x, added):
        with autograd.record():
            y = function(each)
        y.backward()
    assert x.grad.asnumpy().tolist() == [0, 0, 0]
    assert added.grad.asnumpy().tolist() == [7, 7, 7]


def test_zeros_are_written_only_for_variables_of_the_heads():
    x, w, other, index = stale([1, 2, 3]), stale([5]), stale([9]), stale([0, 2])
    with autograd.record():
        y = (x > 2).sum() + w
        z = mx.nd.take(x, index)
        other * 2
    autograd.backward([y, z])
    assert (x.grad.asnumpy().tolist(), w.grad.asnumpy().tolist()) == ([1, 0, 1], [1])
    assert (other.grad.asnumpy().tolist(), index.grad.asnumpy().tolist()) == ([7], [0, 0])
    with autograd.record():
        y = (x > 2) + w
    assert autograd.grad(y, x)[0].asnumpy().tolist() == [0, 0, 0]


def test_zeros_of_an_array_without_axes():
    x = marked(np.float32(3))
    x.grad[...] = 7
    with autograd.record():
        y = x > 2
    y.backward()
    assert x.grad.asnumpy() == 0


# -- second derivatives ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["relu", "abs", "floor", "sign", "round", "radians", "degrees", "negative", "identity"]
)
def test_second_derivatives_of_piecewise_linear_functions_are_zero(name):
    check_second(getattr(mx.nd, name), 0)


LINEAR = {
    "clip": lambda x: mx.nd.clip(x, 0, 2),
    "Dropout": lambda x: mx.nd.Dropout(x, 0.5),
    "arithmetic": lambda x: x * 2 + 1,
    "reshape": lambda x: x.reshape((1, 3)),
    "slice": lambda x: x[0:2],
    "take": lambda x: mx.nd.take(x, mx.nd.array([0, 1])),
    "maximum": lambda x: mx.nd.maximum(x, 1),
    "sum": lambda x: x.sum(),
    "max": lambda x: x.max(),
    "Pooling": lambda x: mx.nd.Pooling(x.reshape((1, 1, 3)), kernel=(2,)),
    "MakeLoss": mx.nd.MakeLoss,
    "MAERegressionOutput": lambda x: mx.nd.MAERegressionOutput(x, mx.nd.zeros(3)),
    "sort": mx.nd.sort,
    "Activation": lambda x: mx.nd.Activation(x, "relu"),
    "LeakyReLU": mx.nd.LeakyReLU,
    "hard_sigmoid": mx.nd.hard_sigmoid,
    "where": lambda x: mx.nd.where(x > 0, x, -x),
    "astype": lambda x: x.astype("float64"),
}


@pytest.mark.parametrize("name", LINEAR)
def test_second_derivatives_of_linear_calls_are_zero(name):
    check_second(LINEAR[name], 0)


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "round", "sign", "floor", "logical_not", "BlockGrad"])
def test_a_gradient_that_is_zero_everywhere_does_not_depend_on_the_head(name):
    x, head = mx.nd.array([3.0, -4]), mx.nd.array([1.0, 2])
    x.attach_grad()
    head.attach_grad()
    head.grad[:] = 7
    with autograd.record():
        y = getattr(mx.nd, name)(x)
        (gradient,) = autograd.grad([y], [x], [head], create_graph=True)
        (gradient + head * 0).backward(retain_graph=True)
        head.grad[:] = 7
        gradient.backward()
    assert gradient.asnumpy().tolist() == [0, 0]
    assert head.grad.asnumpy().tolist() == [7, 7]
    with autograd.record():
        y = getattr(mx.nd, name)(x)
    y.backward()
    assert x.grad.asnumpy().tolist() == [0, 0]


def test_second_derivatives_that_are_not_zero():
    check_second(lambda x: x * x, 2)
    check_second(lambda x: mx.nd.relu(x) ** 2, [0, 2, 2])


def check_second(function, expected):
    x = stale([-1, 2, 3])
    with autograd.record():
        y = function(x)
        (first,) = autograd.grad(y, x, create_graph=True)
    first.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), np.broadcast_to(expected, 3))


def test_gradients_are_linear_in_the_head_gradient():
    x, head = stale([-1, 2]), stale([3, 4])
    with autograd.record():
        y = mx.nd.relu(x)
        (first,) = autograd.grad(y, x, head, create_graph=True)
    first.backward(mx.nd.array([10, 20]))
    assert head.grad.asnumpy().tolist() == [0, 20]
    assert x.grad.asnumpy().tolist() == [0, 0]


@pytest.mark.parametrize("size", [4, 200_000])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("function", [mx.nd.relu, lambda x: mx.nd.Activation(x, "relu")])
def test_relu_passes_nan_on(function, dtype, size):
    x = mx.nd.array(np.resize([np.nan, 1, -1, 0], size), dtype=dtype)
    x.attach_grad()
    with autograd.record():
        y = function(x)
    y.backward()
    np.testing.assert_array_equal(y.asnumpy()[:4], [np.nan, 1, 0, 0])
    np.testing.assert_array_equal(x.grad.asnumpy()[:4], [np.nan, 1, 0, 0])


# -- freed tapes -------------------------------------------------------------------------------------------


def test_nodes_freed_by_an_earlier_pass_are_constants():
    x, w = stale([1, 2]), stale([3, 4])
    with autograd.record():
        y = x * x
    y.backward()
    x.grad[:] = 7
    with autograd.record():
        z = y * w
    with pytest.warns(UserWarning, match=r"'broadcast_mul' \(called at .* freed by an earlier .* counts as a constant"):
        z.backward()
    assert w.grad.asnumpy().tolist() == [1, 4]
    assert x.grad.asnumpy().tolist() == [7, 7]


def test_operations_recorded_before_the_tape_was_freed_are_refused():
    x = marked([1, 2])
    with autograd.record():
        h = x * x
        y, z, mask = h * 2, h * 3, h > 2
    y.backward()
    for head in (z, mask):
        with pytest.raises(AutogradError, match="freed by an earlier backward pass; pass retain_graph=True"):
            head.backward()


def test_not_recorded():
    x = marked([1])
    y = x * 2
    with pytest.raises(AutogradError, match="not computed inside"):
        y.backward()


def test_variables_are_not_changed_in_place_while_recording():
    x = marked([1, 2])
    with autograd.record():
        for change in (
            lambda: x.__iadd__(1),
            lambda: x.__setitem__(slice(None), 3),
            lambda: x[0:1].__imul__(2),
            lambda: mx.nd.ones(2).copyto(x),
            lambda: mx.nd.exp(mx.nd.ones(2), out=x),
            lambda: x.__setitem__(mx.nd.array([0], dtype="int32"), 5),
        ):
            with pytest.raises(
                AutogradError, match=r"variable .* cannot be changed in place while recording; write to"
            ):
                change()
    assert x.asnumpy().tolist() == [1, 2]


def test_changes_of_arrays_that_a_gradient_reads_are_refused():
    x = marked([1, 2])
    with autograd.record():
        y = mx.nd.exp(x)
        z = y * y
    x += 1  # not needed by the gradients of exp and multiplication
    y += 1  # needed
    with pytest.raises(AutogradError, match="changed in place after it was recorded"):
        z.backward()


def test_changes_of_arrays_that_no_gradient_reads_are_allowed():
    x = marked([1, 2])
    with autograd.record():
        y = x + 1
    x += 5
    y.backward()
    assert x.grad.asnumpy().tolist() == [1, 1]


def test_gradients_of_broadcast_arrays_are_summed():
    x, b = marked(np.ones((4, 3))), marked(np.arange(3.0))
    with autograd.record():
        y = (x * b).sum()
    y.backward()
    assert b.grad.asnumpy().tolist() == [4, 4, 4]
    assert x.grad.asnumpy().tolist() == [[0, 1, 2]] * 4


def test_indexing_and_reshape_are_recorded():
    x = marked(np.arange(6.0).reshape(2, 3))
    with autograd.record():
        y = (x[1] * 2).sum() + x[:, 1:].reshape((-1,)).sum() + x[mx.nd.array([0, 0], dtype="int32")].sum()
    y.backward()
    assert x.grad.asnumpy().tolist() == [[2, 3, 3], [2, 3, 3]]


def test_gradients_cross_devices():
    x = marked([1, 2])
    with autograd.record():
        y = (x * 2).as_in_context(mx.cpu(1)) * 3
    y.backward()
    assert x.grad.context == mx.cpu(0)
    assert x.grad.asnumpy().tolist() == [6, 6]


def test_detach_and_block():
    x = marked([3])
    with autograd.record():
        y = x * x.detach() + mx.nd.BlockGrad(x * x)
    y.backward()
    assert x.grad.asscalar() == 3


def test_custom_function():
    class Sigmoid(autograd.Function):
        def forward(self, x):
            y = 1 / (1 + mx.nd.exp(-x))
            self.save_for_backward(y)
            return y

        def backward(self, dy):
            (y,) = self.saved_tensors
            return dy * y * (1 - y)

    x = marked([-1, 0, 2])
    function = Sigmoid()
    with autograd.record():
        y = function(x) * 2
    y.backward()
    s = 1 / (1 + np.exp(-x.asnumpy()))
    np.testing.assert_allclose(x.grad.asnumpy(), 2 * s * (1 - s), rtol=1e-5)
    with pytest.raises(AutogradError, match="only be called once"):
        function(x)


def test_custom_function_with_a_wrong_number_of_gradients():
    class Two(autograd.Function):
        def forward(self, a, b):
            return a + b

        def backward(self, dy):
            return dy

    a, b = marked([1]), marked([1])
    with autograd.record():
        y = Two()(a, b)
    with pytest.raises(AutogradError, match="returned 1 gradients, expected 2"):
        y.backward()


class Cube(autograd.Function):
    def forward(self, x):
        self.save_for_backward(x)
        self.square = x * x
        return self.square * x

    def backward(self, head):
        return 3 * self.square * head


def test_arrays_that_a_custom_function_stored_must_not_change():
    x = marked([1, 2])
    function = Cube()
    with autograd.record():
        y = function(x)
    function.square += 1
    with pytest.raises(AutogradError, match=r"array that Cube.forward stored \(shape \(2,\)\) was changed in place"):
        y.backward()


def test_a_custom_function_has_no_second_derivative():
    x = marked([1, 2])
    with autograd.record():
        y = Cube()(x)
        (first,) = autograd.grad(y, x, create_graph=True)
    assert first.asnumpy().tolist() == [3, 12]
    with pytest.raises(AutogradError, match="the gradient of Cube is not differentiable"):
        first.backward()


def test_deep_graphs():
    x = marked([1])
    with autograd.record():
        y = x
        for _ in range(5000):
            y = y + x
    y.backward()
    assert x.grad.asscalar() == 5001


async def test_awaiting_gradients():
    x = marked([1, 2])
    with autograd.record():
        y = x * x
    y.backward()
    await x.grad
    assert x.grad.asnumpy().tolist() == [2, 4]


# -- memory of gradients -----------------------------------------------------------------------------------


BIG = np.ones((300, 300), np.float32)


def big_gradient(x, function, head=None):
    with mx.autograd.record():
        y = function(x)
    y.backward(head)
    return x.grad.asnumpy()


def test_a_gradient_buffer_stays_the_same_array():
    x = marked(BIG)
    grad, part = x.grad, x.grad[2:4]
    for factor in (2.0, 3.0):
        assert (big_gradient(x, lambda x, factor=factor: x * factor) == factor).all()
        assert x.grad is grad
        assert (part.asnumpy() == factor).all()


def test_memory_of_a_gradient_that_is_in_use_elsewhere_stays_in_place():
    x = marked(BIG)
    big_gradient(x, lambda x: x * 2)
    view = np.from_dlpack(x.grad)
    assert (big_gradient(x, lambda x: x * 3) == 3).all()
    assert (view == 3).all()


def test_the_memory_of_head_gradients_is_not_moved():
    x, head = marked(BIG), mx.nd.full((300, 300), 5)
    assert (big_gradient(x, lambda x: x + 1, head) == 5).all()
    head[:] = 7
    assert (x.grad.asnumpy() == 5).all()
    assert (head.asnumpy() == 7).all()


def test_one_gradient_of_two_variables():
    x, y = marked(BIG), marked(BIG)
    with mx.autograd.record():
        z = (x + y) * 3
    z.backward()
    x.grad[:] = 0
    assert (y.grad.asnumpy() == 3).all()


def test_the_memory_of_gradients_that_a_function_stores_is_not_moved():
    stored = mx.nd.full((300, 300), 4)

    class Stores(mx.autograd.Function):
        def forward(self, x):
            return x * 1

        def backward(self, head):
            return stored

    x = marked(BIG)
    assert (big_gradient(x, Stores()) == 4).all()
    stored[:] = 9
    assert (x.grad.asnumpy() == 4).all()


def test_updates_pushed_before_the_next_gradient_read_the_previous_one():
    x = marked(BIG)
    total = mx.nd.zeros((300, 300))
    for factor in range(1, 30):
        with mx.autograd.record():
            y = x * factor
        y.backward()
        total += x.grad
    assert (total.asnumpy() == sum(range(1, 30))).all()


def test_an_error_in_the_last_gradient_reaches_the_buffer():
    head, x = mx.nd.ones((2, 2)), mx.nd.ones((2, 2))
    mx.engine.push(lambda: 1 / 0, writes=[head])
    x.attach_grad()
    with mx.autograd.record():
        y = x * 2
    y.backward(head)
    with pytest.raises(ZeroDivisionError):
        x.grad.asnumpy()


@pytest.mark.parametrize("is_referenced", [False, True])
def test_the_memory_of_a_total_moves_to_the_buffer_unless_it_is_referenced(is_referenced):
    """This must hold for every reference count that the interpreter itself adds."""
    x = mx.nd.ones((300, 300))
    x.attach_grad()
    x.grad.wait_to_read()
    before = x.grad.storage.array
    references = [before] if is_referenced else []
    identity = id(before)
    del before
    with mx.autograd.record():
        y = x * 3
    y.backward()
    assert x.grad.asnumpy()[0, 0] == 3
    assert (id(x.grad.storage.array) == identity) is is_referenced
    del references


# -- operators without a gradient --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: mx.nd.shuffle(x),
        lambda x: mx.nd.image.resize(x.reshape((2, 2, 1)), size=3),
        lambda x: mx.nd.sgd_update(x * 1, mx.nd.ones(4), lr=0.1),
        lambda x: mx.nd.lamb_update_phase2(x * 1, x, mx.nd.ones(1), mx.nd.ones(1), lr=0.1),
    ],
)
def test_operators_without_a_gradient_raise(function):
    x = marked([1, 2, 3, 4])
    with autograd.record():
        y = function(x)
    with pytest.raises(AutogradError, match="has no gradient"):
        y.backward()


def test_the_gradient_of_sums_of_squares():
    x, y = marked([[1, 2, 3]]), marked([4])
    with autograd.record():
        z = mx.nd.multi_sum_sq(x, y, num_arrays=2)
    z.backward(mx.nd.array([10, 100]))
    assert x.grad.asnumpy().tolist() == [[20, 40, 60]]
    assert y.grad.asnumpy().tolist() == [800]


def test_arrays_that_an_operator_sets_to_zero_have_no_history():
    x = marked([1, 2])
    with autograd.record():
        y = x * 3
        mx.nd.reset_arrays(y, num_arrays=1)
        z = y + x
    z.backward()
    assert x.grad.asnumpy().tolist() == [1, 1]


async def test_one_scope_may_be_entered_by_several_tasks():
    scope = autograd.record()

    async def task(turns):
        with scope:
            for _ in range(turns):
                await asyncio.sleep(0)
                assert autograd.is_recording()
        return autograd.is_recording()

    assert await asyncio.gather(task(1), task(3), task(2)) == [False, False, False]
