"""Symbols as functions of arrays: the same results as operators called one by one, recorded as one."""

import gc
import threading

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.cached_op import CachedOp
from flowmx.errors import AutogradError, DeviceError, ShapeError
from flowmx.ndarray.array import NDArray
from tests.strided import strided


def layers(F, x, w1, b1, gamma, beta, mean, var, w2, b2):
    x = F.FullyConnected(x, w1, b1, num_hidden=6)
    x = F.BatchNorm(x, gamma, beta, mean, var, fix_gamma=False)
    x = F.Activation(x, act_type="tanh")
    return F.FullyConnected(x, w2, b2, num_hidden=3)


NAMES = ["x", "w1", "b1", "gamma", "beta", "mean", "var", "w2", "b2"]


def network(**kwargs):
    return CachedOp(layers(mx.sym, *map(mx.sym.Variable, NAMES)), data_names=["x"], **kwargs)


def arrays(batch=4, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(batch, 5), (6, 5), (6,), (6,), (6,), (6,), (6,), (3, 6), (3,)]
    values = [mx.nd.array(rng.standard_normal(shape), dtype="float32") for shape in shapes]
    values[6][:] = 1
    return values


def trained(function, inputs):
    """Return the results of a forward and backward pass."""
    for array in inputs:
        array.attach_grad()
    with mx.autograd.record():
        out = function(*inputs)
        loss = (out * out).sum()
    loss.backward()
    return [out, *(array.grad for i, array in enumerate(inputs) if i not in (5, 6)), inputs[5], inputs[6]]


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("static", [False, True])
def test_matches_single_operators(static):
    op = network(static_alloc=static, static_shape=static)
    for seed in range(3):
        inputs, same = arrays(seed=seed), arrays(seed=seed)
        assert_same(trained(op, inputs), trained(lambda *args: layers(mx.nd, *args), same))
        assert_same([op(*inputs)], [layers(mx.nd, *same)])


def test_several_calls_before_the_backward_pass():
    op, inputs = network(), arrays()
    other = arrays(seed=1)[0]
    for array in inputs:
        array.attach_grad()

    def loss(function):
        inputs[5][:], inputs[6][:] = 0, 1
        with mx.autograd.record():
            total = function(*inputs) * function(other, *inputs[1:])
            total = (total + function(inputs[0] * 2, *inputs[1:])).sum()
        total.backward()
        return [
            total.copy(),
            *(inputs[i].grad.copy() for i in (0, 1, 2, 3, 4, 7, 8)),
            inputs[5].copy(),
            inputs[6].copy(),
        ]

    assert_same(loss(op), loss(lambda *args: layers(mx.nd, *args)))


def test_shapes_and_modes_change():
    op = network()
    for batch in (4, 2, 7, 4, 1, 7):
        inputs, same = arrays(batch), arrays(batch)
        assert_same([op(*inputs)], [layers(mx.nd, *same)])
        assert_same(trained(op, inputs), trained(lambda *args: layers(mx.nd, *args), same))


def test_changed_parameters_are_used():
    op, inputs = network(static_alloc=True, static_shape=True), arrays()
    before = op(*inputs).asnumpy()
    for position in range(1, len(inputs)):
        inputs[position] *= 1.5
        results = op(*inputs)
        assert_same([results], [layers(mx.nd, *inputs)])
    assert not np.allclose(before, results.asnumpy())
    inputs[1] = inputs[1] * 2
    assert_same([op(*inputs)], [layers(mx.nd, *inputs)])


def test_outputs_that_are_inputs_views_or_the_same_twice():
    x = mx.sym.Variable("x")
    y = mx.sym.exp(x)
    op = CachedOp(mx.sym.Group([x, mx.sym.Reshape(x, shape=(-1,)), y, y, mx.sym.Reshape(y, shape=(3, 2))]))
    data = mx.nd.array(np.arange(6).reshape(2, 3), dtype="float32")
    data.attach_grad()
    with mx.autograd.record():
        results = op(data)
        total = sum((result * (i + 1)).sum() for i, result in enumerate(results))
    total.backward()
    expected = np.arange(6, dtype="float32").reshape(2, 3)
    for result, value in zip(results, [expected, expected.ravel(), *[np.exp(expected)] * 2, None], strict=True):
        if value is not None:
            np.testing.assert_allclose(result.asnumpy(), value, rtol=1e-6)
    np.testing.assert_allclose(data.grad.asnumpy(), 3 + 12 * np.exp(expected), rtol=1e-5)


def test_views_of_arrays():
    op = CachedOp(mx.sym.Reshape(mx.sym.Variable("x"), shape=(-1,)) * 2)
    whole = mx.nd.array(np.arange(24).reshape(4, 6), dtype="float32")
    for part in (whole[1:3], whole[:, 2:4], whole[2], strided(whole, slice(None), slice(2, 4))):
        np.testing.assert_array_equal(op(part).asnumpy(), 2 * part.asnumpy().ravel())


def test_gradients_of_gradients():
    x = mx.nd.array([0.5, 1.5, -2.0])
    x.attach_grad()
    variable = mx.sym.Variable("x")
    op = CachedOp(mx.sym.sin(variable) * variable)
    with mx.autograd.record():
        y = op(x)
        (first,) = mx.autograd.grad([y], [x], create_graph=True)
        total = (first * first).sum()
    total.backward()
    v = x.asnumpy()
    slope = np.sin(v) + v * np.cos(v)
    np.testing.assert_allclose(first.asnumpy(), slope, rtol=1e-5)
    np.testing.assert_allclose(x.grad.asnumpy(), 2 * slope * (2 * np.cos(v) - v * np.sin(v)), rtol=1e-5)


def test_backward_twice():
    x = mx.nd.array([0.5, 1.5])
    x.attach_grad()
    op = CachedOp(mx.sym.exp(mx.sym.sigmoid(mx.sym.Variable("x"))))
    with mx.autograd.record():
        y = op(x)
    y.backward(retain_graph=True)
    first = x.grad.asnumpy()
    y.backward()
    np.testing.assert_array_equal(x.grad.asnumpy(), first)

    op = CachedOp(mx.sym.Dropout(mx.sym.Variable("x"), p=0.5))
    with mx.autograd.record():
        y = op(x)
    y.backward(retain_graph=True)
    with pytest.raises(AutogradError, match="other random numbers"):
        y.backward()


def test_dropout_draws_a_new_mask_for_each_call():
    op = CachedOp(mx.sym.Dropout(mx.sym.Variable("x"), p=0.5))
    x = mx.nd.ones((1000,))
    x.attach_grad()
    with mx.autograd.record():
        first, second = op(x), op(x)
        total = first + 10 * second
    total.backward()
    assert (first.asnumpy() != second.asnumpy()).any()
    np.testing.assert_array_equal(x.grad.asnumpy(), first.asnumpy() + 10 * second.asnumpy())
    np.testing.assert_array_equal(op(x).asnumpy(), 1)


def test_an_input_changed_before_the_backward_pass_is_refused():
    op, inputs = network(), arrays()
    for array in inputs:
        array.attach_grad()
    with mx.autograd.record():
        out = op(*inputs)
    inputs[7][:] = 0
    with pytest.raises(AutogradError, match="changed in place"):
        out.backward()


def test_a_shape_only_input_may_change_before_the_backward_pass():
    op, x = CachedOp(mx.sym.sum(mx.sym.Variable("x"))), mx.nd.ones((2, 3))
    x.attach_grad()
    with mx.autograd.record():
        out = op(x)
    x[:] = 5
    out.backward()
    np.testing.assert_array_equal(x.grad.asnumpy(), np.ones((2, 3)))


def test_wrong_calls():
    op, inputs = network(), arrays()
    with pytest.raises(TypeError, match="8 arrays were given, expected 9"):
        op(*inputs[1:])
    with pytest.raises(ShapeError, match="w1"):
        op(inputs[0], inputs[7], *inputs[2:])
    with pytest.raises(DeviceError, match="as_in_context"):
        op(inputs[0].as_in_context(mx.cpu(1)), *inputs[1:])


def test_an_error_inside_names_the_node_and_leaves_the_op_usable():
    op = CachedOp(mx.sym.Embedding(mx.sym.Variable("i"), mx.sym.Variable("w"), input_dim=3, output_dim=2, name="emb"))
    weight = mx.nd.ones((3, 2))
    original = op._compile

    def broken(*args):
        compiled = original(*args)
        compiled.predict = lambda *_: 1 / 0
        return compiled

    op._compile = broken
    with pytest.raises(ZeroDivisionError):
        op(mx.nd.zeros((2,)), weight).asnumpy()
    op._compile = original
    op._compiled.clear()
    np.testing.assert_array_equal(op(mx.nd.zeros((2,)), weight).asnumpy(), 1)


def retained(net, train, shape):
    """Return the inputs' gradients of two backward passes through one call."""
    x = mx.nd.random.normal(shape=shape)
    x.attach_grad()
    with mx.autograd.record(train_mode=train):
        y = net(x)
    results = []
    for _ in range(2):
        y.backward(retain_graph=True)
        results.append(x.grad.asnumpy())
    return results


class Looped(mx.gluon.HybridBlock):
    """A normalization inside nested loops."""

    def __init__(self, loops):
        super().__init__()
        self._loops = loops
        with self.name_scope():
            self.norm = mx.gluon.nn.BatchNorm(in_channels=3)

    def hybrid_forward(self, F, x):
        return self.inside(F, x, F.zeros((1,)), self._loops)

    def inside(self, F, x, count, loops):
        if not loops:
            return self.norm(x)

        def body(part, states):
            return self.inside(F, part, states[0], loops - 1), [states[0] + 1]

        return F.contrib.foreach(body, x, [count])[0]


@pytest.mark.parametrize("loops", [0, 1, 2])
def test_a_backward_pass_does_not_update_statistics(loops):
    net, shape = Looped(loops), (2, 4, 5, 3)[2 - loops :]
    net.initialize()
    net.hybridize()
    x = mx.nd.random.normal(shape=shape)
    x.attach_grad()
    with mx.autograd.record():
        y = net(x)
    before = net.norm.running_mean.data().asnumpy()
    y.backward()
    np.testing.assert_array_equal(net.norm.running_mean.data().asnumpy(), before)
    with pytest.raises(AutogradError, match="statistics twice"):
        retained(net, True, shape)
    before = net.norm.running_mean.data().asnumpy()
    first, second = retained(net, False, shape)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(net.norm.running_mean.data().asnumpy(), before)


def test_many_shapes_use_the_memory_of_the_largest():
    x = mx.sym.Variable("x")
    for _ in range(4):
        x = mx.sym.sigmoid(mx.sym.broadcast_add(x, mx.sym.sum(x, axis=0, keepdims=True)))
    op = CachedOp(x)
    rng = np.random.default_rng(0)
    for rows in rng.integers(1, 1000, 200):
        op(mx.nd.ones((int(rows), 100))).wait_to_read()
    alone = CachedOp(x)
    alone(mx.nd.ones((1000, 100))).wait_to_read()
    (blocks,), (largest,) = op._blocks.values(), alone._blocks.values()
    assert blocks.idle_bytes <= 1.3 * largest.idle_bytes
    assert len(op._compiled) > 100


def test_a_dropped_recorded_call_releases_its_memory():
    op, inputs = network(), arrays()
    for array in inputs:
        array.attach_grad()
    for _ in range(5):
        with mx.autograd.record():
            op(*inputs).wait_to_read()
        gc.collect()
    (blocks,) = op._blocks.values()
    assert len(blocks._free) == 1


def residual():
    """Return a network whose values take memory proportional to the number of rows."""
    net = mx.sym.Variable("x")
    for _ in range(3):
        net = mx.sym.sigmoid(mx.sym.broadcast_add(net, mx.sym.sum(net, axis=0, keepdims=True)))
    return net


def test_a_running_call_keeps_its_memory_when_an_older_block_is_freed():
    op = CachedOp(residual())
    for rows in (4, 8, 1000):
        op(mx.nd.ones((rows, 100))).wait_to_read()
    tiny, small, large = sorted(op._compiled.values(), key=lambda compiled: compiled.nbytes)
    (blocks,) = op._blocks.values()
    blocks._free.clear()
    small.pool.give(small.pool.take())
    buffer = tiny.pool.take()  # on the block that the small one ran on
    running = small.pool.take()
    arrays = running.arrays
    places = [entry for entry in running.plan.place if arrays[entry] is not None]
    tiny.pool.give(buffer)
    large.pool.give(large.pool.take())
    assert places and all(arrays[entry] is not None for entry in places)


def test_sizes_that_grow_while_others_run():
    net = residual()
    alone = {rows: CachedOp(net)(mx.nd.ones((rows, 40))).asnumpy() for rows in (4, 30, 200, 900)}
    wrong = []
    with mx.engine.using(cpu_worker_nthreads=2):
        for _ in range(15):
            op = CachedOp(net)

            def call(seed, op=op):
                random = np.random.default_rng(seed)
                try:
                    for number in range(12):
                        rows = int(random.choice(list(alone)[: 1 + number // 3]))
                        np.testing.assert_array_equal(op(mx.nd.ones((rows, 40))).asnumpy(), alone[rows])
                except Exception as error:
                    wrong.append(error)

            threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert not wrong


def test_from_several_threads():
    op, inputs = network(), arrays()
    expected = op(*inputs).asnumpy()
    wrong = []

    def call():
        for _ in range(50):
            if not np.array_equal(op(*inputs).asnumpy(), expected):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("static", [False, True])
def test_calls_with_different_parameters_at_the_same_time(static):
    x, *rest = map(mx.sym.Variable, ["x", "w", "gamma", "beta", "mean", "var"])
    w, *norm = rest
    net = mx.sym.Convolution(x, w, kernel=(3, 3), num_filter=16, no_bias=True)
    op = CachedOp(mx.sym.BatchNorm(net, *norm, fix_gamma=False), static, static, data_names=["x"])

    with mx.engine.using(cpu_worker_nthreads=2):  # a device made now has two workers
        device = mx.cpu(47 if static else 48)  # which no other test has made
        assert devices.get(device).compute.slots == 2

    def parameters(seed):
        rng = np.random.default_rng(seed)
        shapes = [(2, 16, 20, 20), (16, 16, 3, 3), *[(16,)] * 4]
        return [mx.nd.array(rng.uniform(0.5, 1, shape), ctx=device, dtype="float32") for shape in shapes]

    several = [parameters(seed) for seed in range(3)]
    expected = [op(*inputs).asnumpy() for inputs in several]
    results = [op(*several[turn % 3]) for turn in range(60)]
    for turn, result in enumerate(results):
        np.testing.assert_array_equal(result.asnumpy(), expected[turn % 3])


async def test_in_a_coroutine():
    op, inputs = network(), arrays()
    out = await op(*inputs)
    assert isinstance(out, NDArray)
    expected = await layers(mx.nd, *inputs)
    np.testing.assert_allclose(out.asnumpy(), expected.asnumpy(), rtol=1e-5, atol=1e-6)


def test_a_second_backward_pass_refuses_an_input_that_was_changed():
    """The second backward pass runs the forward pass again, and reads inputs that the first one did not need."""
    net = mx.gluon.nn.HybridLambda(lambda F, x: F.tanh(x * 2))
    net.hybridize()
    x = mx.nd.array([0.1, -0.2, 0.3])
    x.attach_grad("add")
    with mx.autograd.record():
        inner = x * 1
        y = net(inner)
        mx.nd.square(y, out=inner)
        y.backward(retain_graph=True)
        with pytest.raises(AutogradError, match="changed in place"):
            inner.backward(retain_graph=True)
    x.grad.asnumpy()


class Given(mx.gluon.HybridBlock):
    """Layers whose parameters come as inputs, and a loss with its labels."""

    def hybrid_forward(self, F, x, weight, gamma, beta, label):
        y = F.FullyConnected(x, weight, num_hidden=8, no_bias=True, flatten=False)
        y = F.LayerNorm(F.relu(y), gamma, beta)
        return F.pick(F.log_softmax(y), label), y


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("modes", [{}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}], ids=str)
def test_arrays_passed_to_a_call_are_not_retained(dtype, modes):
    rng = np.random.default_rng(0)
    shapes = [(40, 6), (8, 6), (8,), (8,)]
    calls = [
        [
            *[mx.nd.array(rng.standard_normal(shape)).astype(dtype) for shape in shapes],
            mx.nd.array(rng.integers(0, 8, 40)).astype(dtype),
        ]
        for _ in range(4)
    ]
    net, hybridized = Given(), Given()
    hybridized.hybridize(**modes)
    for inputs in (*calls, *calls):
        for expected, results in zip(net(*inputs), hybridized(*inputs), strict=True):
            np.testing.assert_allclose(
                results.astype("float32").asnumpy(), expected.astype("float32").asnumpy(), rtol=0.06, atol=0.06
            )
