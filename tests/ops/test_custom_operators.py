"""Custom operators: mx.operator, imperative and bound; their code may use the engine and never hangs."""

import asyncio
import threading

import numpy as np
import pytest

import flowmx as mx
from flowmx.ops.registry.operators import lookup
from flowmx.test_utils import check_numeric_gradient

KINDS = ["ThreadedEnginePerDevice", "ThreadedEngine", "NaiveEngine"]
X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]], np.float32)


@pytest.fixture(params=KINDS)
def kind(request):
    with mx.engine.using(engine_type=request.param):
        yield request.param
        mx.nd.waitall()


@pytest.fixture(params=[False, True], ids=["plain", "coroutine"])
def is_async(request):
    return request.param


def define(name, forward, backward=None, is_async=False, **hooks):
    """Register an operator by its functions: forward(in_data, out_data), backward(out_grad, in_data, in_grad)."""

    class Plain(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            forward(in_data, out_data)

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            backward(out_grad, in_data, in_grad)

    class Async(mx.operator.CustomOp):
        async def forward(self, is_train, req, in_data, out_data, aux):
            await asyncio.sleep(0)
            forward(in_data, out_data)

        async def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            await asyncio.sleep(0)
            backward(out_grad, in_data, in_grad)

    def create(self, ctx, in_shapes, in_dtypes):
        return Async() if is_async else Plain()

    mx.operator.register(name)(type("Prop", (mx.operator.CustomOpProp,), {"create_operator": create, **hooks}))


def square(in_data, out_data):
    out_data[0][:] = in_data[0] * in_data[0]


def square_gradient(out_grad, in_data, in_grad):
    in_grad[0][:] = 2 * in_data[0] * out_grad[0]


# -- the interface -----------------------------------------------------------------------------------------


def test_forward_and_gradient(kind, is_async):
    define("square", square, square_gradient, is_async)
    x = mx.nd.array(X)
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Custom(x, op_type="square")
        z = y * 3
    z.backward()
    np.testing.assert_allclose(y.asnumpy(), X**2)
    np.testing.assert_allclose(x.grad.asnumpy(), 6 * X)
    check_numeric_gradient(lambda x: mx.nd.Custom(x, op_type="square"), [X.astype(np.float64)])


def test_bound(kind, is_async):
    define("square", square, square_gradient, is_async)
    symbol = mx.sym.Custom(mx.sym.var("x"), op_type="square", name="sq") + 1
    assert symbol.list_arguments() == ["x"]
    executor = symbol.simple_bind(mx.cpu(), x=X.shape)
    for scale in (1, 2):
        executor.forward(is_train=True, x=mx.nd.array(scale * X))
        executor.backward()
        np.testing.assert_allclose(executor.outputs[0].asnumpy(), (scale * X) ** 2 + 1)
        np.testing.assert_allclose(executor.grad_dict["x"].asnumpy(), 2 * scale * X)


def test_out_may_be_an_input(kind, is_async):
    define("reversed", lambda i, o: o[0].__setitem__(slice(None), i[0].flip(axis=1)), None, is_async)
    x = mx.nd.array(X)
    mx.nd.Custom(x, op_type="reversed", out=x)
    np.testing.assert_array_equal(x.asnumpy(), X[:, ::-1])


class Affine(mx.operator.CustomOp):
    """Compute scale · a + b, and count the calls in a state."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * self.scale + in_data[1])
        self.assign(out_data[1], req[1], in_data[0] - in_data[1])
        self.assign(aux[0], "add", 1)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], self.scale * out_grad[0] + out_grad[1])
        self.assign(in_grad[1], req[1], out_grad[0] - out_grad[1])
        self.assign(aux[0], "add", 100)


@mx.operator.register("affine")
class AffineProp(mx.operator.CustomOpProp):
    def __init__(self, scale, unused="x"):
        super().__init__(need_top_grad=True)
        assert isinstance(scale, str)
        self.scale = float(scale)

    def list_arguments(self):
        return ["a", "b"]

    def list_outputs(self):
        return ["sum", "difference"]

    def list_auxiliary_states(self):
        return ["calls"]

    def infer_shape(self, in_shape):
        return [in_shape[0], in_shape[0]], [in_shape[0], in_shape[0]], [[1]]

    def infer_type(self, in_type):
        return in_type, [in_type[0]] * 2, [np.int32]

    def create_operator(self, ctx, in_shapes, in_dtypes):
        assert ctx == mx.cpu()
        assert in_shapes == [[2, 3], [2, 3]]
        return Affine(self.scale)


def test_several_inputs_outputs_and_a_state(kind):
    a, b, calls = mx.nd.array(X), mx.nd.array(X + 1), mx.nd.zeros(1, dtype="int32")
    a.attach_grad()
    b.attach_grad()
    with mx.autograd.record():
        first, second = mx.nd.Custom(b=b, a=a, calls=calls, op_type="affine", scale=2)
        total = first + 3 * second
    total.backward()
    np.testing.assert_allclose(first.asnumpy(), 3 * X + 1)
    np.testing.assert_allclose(second.asnumpy(), -np.ones_like(X))
    np.testing.assert_allclose(a.grad.asnumpy(), np.full_like(X, 5))
    np.testing.assert_allclose(b.grad.asnumpy(), np.full_like(X, -2))
    assert calls.asscalar() == 101


@pytest.mark.parametrize("train", [False, True])
def test_a_bound_operator_with_a_state(kind, train):
    symbol = mx.sym.Custom(a=mx.sym.var("a"), op_type="affine", scale=2, name="f")
    assert symbol.list_arguments() == ["a", "f_b"]
    assert symbol.list_auxiliary_states() == ["f_calls"]
    assert symbol.list_outputs() == ["f_sum", "f_difference"]
    executor = symbol.simple_bind(mx.cpu(), a=X.shape)
    executor.forward(is_train=train, a=X, f_b=X)
    executor.forward(is_train=train)
    assert executor.aux_dict["f_calls"].dtype == np.int32
    assert executor.aux_dict["f_calls"].asscalar() == 2
    if train:
        executor.backward([mx.nd.ones(X.shape), mx.nd.zeros(X.shape)])
        np.testing.assert_allclose(executor.grad_dict["a"].asnumpy(), 2 * np.ones_like(X))
        assert executor.aux_dict["f_calls"].asscalar() == 102


def test_the_json_form_is_that_of_mxnet():
    symbol = mx.sym.Custom(mx.sym.var("a"), op_type="affine", scale=2, name="f", attr={"__note__": "here"})
    again = mx.sym.load_json(symbol.tojson())
    assert again.tojson() == symbol.tojson()
    assert again.attr_dict()["f"] == {"op_type": "affine", "scale": "2", "__note__": "here"}
    assert again.list_inputs() == ["a", "f_b", "f_calls"]


class Remembering(mx.operator.CustomOp):
    """An operator whose backward reads state of its forward, although other calls run in between."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.factor = in_data[0].asnumpy().sum()
        out_data[0][:] = in_data[0] * float(self.factor)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        in_grad[0][:] = out_grad[0] * float(self.factor)


@mx.operator.register("remembering")
class RememberingProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Remembering()


def test_each_call_has_a_separate_state(kind):
    arrays = [mx.nd.array(X * scale) for scale in (1, 2, 3)]
    for array in arrays:
        array.attach_grad()
    with mx.autograd.record():
        outputs = [mx.nd.Custom(array, op_type="remembering") for array in arrays]
    mx.autograd.backward(outputs)
    for scale, array in zip((1, 2, 3), arrays, strict=True):
        np.testing.assert_allclose(array.grad.asnumpy(), np.full_like(X, scale * X.sum()), rtol=1e-6)


def test_each_bound_graph_has_a_separate_state(kind):
    symbol = mx.sym.Custom(mx.sym.var("x"), op_type="remembering")
    executors = [symbol.simple_bind(mx.cpu(), x=X.shape) for _ in range(2)]
    for scale, executor in zip((1, 2), executors, strict=True):
        executor.forward(is_train=True, x=X * scale)
    for scale, executor in zip((1, 2), executors, strict=True):
        executor.backward()
        np.testing.assert_allclose(executor.grad_dict["x"].asnumpy(), np.full_like(X, scale * X.sum()), rtol=1e-6)


def test_undeclared_inputs_of_backward_are_none():
    calls_seen = {}

    def backward(out_grad, in_data, in_grad):
        calls_seen.update(out_grad=out_grad, in_data=in_data)

    define(
        "declaring", square, backward,
        list_arguments=lambda self: ["x", "label"],
        infer_shape=lambda self, shapes: ([shapes[0], [shapes[0][0]]], [shapes[0]], []),
        declare_backward_dependency=lambda self, out_grad, in_data, out_data: [in_data[1]],
    )  # fmt: skip
    x = mx.nd.array(X)
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Custom(x, mx.nd.zeros(2), op_type="declaring")
    x[:] = 0  # the gradient does not use it
    y.backward()
    np.testing.assert_array_equal(x.grad.asnumpy(), np.zeros_like(X))  # unassigned gradients are 0
    assert calls_seen["out_grad"] == [None]
    assert calls_seen["in_data"][0] is None
    assert calls_seen["in_data"][1].shape == (2,)


def test_requests_say_which_gradients_are_needed():
    calls_seen = []

    class Op(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            calls_seen.append((is_train, req))

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            calls_seen.append(req)

    define("wanting", None, list_arguments=lambda self: ["a", "b"], create_operator=lambda *_: Op())
    a, b = mx.nd.array(X), mx.nd.array(X)
    b.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Custom(a, b, op_type="wanting")
    y.backward()
    b.grad.wait_to_read()
    mx.nd.Custom(a, b, op_type="wanting").wait_to_read()
    assert calls_seen == [(True, ["write"]), ["null", "write"], (False, ["write"])]


def test_assign():
    target, op = mx.nd.ones(2), mx.operator.CustomOp()
    for req, expected in (("null", 1), ("add", 4), ("write", 3), ("inplace", 3)):
        op.assign(target, req, mx.nd.full(2, 3))
        np.testing.assert_array_equal(target.asnumpy(), [expected] * 2)
    with pytest.raises(ValueError, match="req is 'wrong'"):
        op.assign(target, "wrong", target)


def test_an_output_layer_trains_a_module():
    class Softmax(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            shifted = np.exp(in_data[0].asnumpy() - in_data[0].asnumpy().max(axis=1, keepdims=True))
            self.assign(out_data[0], req[0], mx.nd.array(shifted / shifted.sum(axis=1, keepdims=True)))

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            label = in_data[1].asnumpy().astype(int)
            grad = out_data[0].asnumpy()
            grad[np.arange(len(label)), label] -= 1
            self.assign(in_grad[0], req[0], mx.nd.array(grad))

    @mx.operator.register("softmax")
    class SoftmaxProp(mx.operator.CustomOpProp):
        def __init__(self):
            super().__init__(need_top_grad=False)

        def list_arguments(self):
            return ["data", "label"]

        def infer_shape(self, in_shape):
            return [in_shape[0], (in_shape[0][0],)], [in_shape[0]], []

        def create_operator(self, ctx, shapes, dtypes):
            return Softmax()

    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, 60)
    data = (np.eye(3)[label] * 3 + rng.standard_normal((60, 3))).astype(np.float32)
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    net = mx.sym.Custom(data=net, name="softmax", op_type="softmax")
    assert net.list_arguments() == ["data", "fc_weight", "fc_bias", "softmax_label"]
    module = mx.mod.Module(net)
    batches = mx.io.NDArrayIter(data, label, 20)
    mx.run(module.fit(batches, num_epoch=10, optimizer_params={"learning_rate": 0.1}))
    assert dict(mx.run(module.score(batches, "acc")))["accuracy"] > 0.9


def test_unregistered_names():
    mx.operator.register("known")(mx.operator.CustomOpProp)
    with pytest.raises(mx.MXNetError, match=r"op_type is 'knwon'.*did you mean 'known'"):
        mx.nd.Custom(mx.nd.zeros(1), op_type="knwon")
    with pytest.raises(TypeError, match="input data is missing"):
        mx.nd.Custom(op_type="known")
    with pytest.raises(TypeError, match="2 inputs were given, expected 1"):
        mx.nd.Custom(mx.nd.zeros(1), mx.nd.zeros(1), op_type="known")
    assert "Custom" in mx.operator.get_all_registered_operators()
    assert mx.operator.get_operator_arguments("clip").names == ["data", "a_min", "a_max"]


def test_shapes_that_do_not_match():
    define("fitting", square, list_arguments=lambda self: ["a", "b"],
           infer_shape=lambda self, shapes: ([shapes[0], shapes[0]], [shapes[0]], []))  # fmt: skip
    with pytest.raises(mx.MXNetError, match=r"input b has shape \(2,\), expected \(3,\)"):
        mx.nd.Custom(mx.nd.zeros(3), mx.nd.zeros(2), op_type="fitting")
    define("miscounting", square, infer_shape=lambda self, shapes: (shapes, [], []))
    with pytest.raises(mx.MXNetError, match=r"returned 1 \+ 0 \+ 0 entries, expected 1 \+ 1 \+ 0"):
        mx.nd.Custom(mx.nd.zeros(3), op_type="miscounting")


# -- errors ------------------------------------------------------------------------------------------------


class Trouble(Exception):
    pass


def test_an_error_keeps_its_type_traceback_and_place(kind, is_async):
    def fail(in_data, out_data):
        raise Trouble("mine")

    define("failing", fail, None, is_async)
    y = mx.nd.Custom(mx.nd.zeros(3), op_type="failing")
    with pytest.raises(Trouble, match="mine") as caught:
        (y + 1).wait_to_read()
    assert any(entry.name == "fail" for entry in caught.traceback)
    notes = "\n".join(caught.value.__notes__)
    assert "raised by operation 'Custom'" in notes
    assert 'op_type="failing"' in notes
    executor = mx.sym.Custom(mx.sym.var("x"), op_type="failing", name="node").simple_bind(mx.cpu(), x=(3,))
    with pytest.raises(Trouble) as caught:
        executor.forward()[0].wait_to_read()
    assert "in node 'node'" in "\n".join(caught.value.__notes__)
    mx.nd.waitall()


def test_an_error_of_an_operation_pushed_inside(kind):
    def forward(in_data, out_data):
        def fail():
            raise Trouble("inner")

        mx.engine.push(fail, writes=[out_data[0]])

    define("failing inside", forward)
    y = mx.nd.Custom(mx.nd.zeros(3), op_type="failing inside")
    with pytest.raises(Trouble, match="inner"):
        y.wait_to_read()


def test_inputs_may_not_be_written():
    define("writing", lambda i, o: i[0].__setitem__(slice(None), 1))
    x = mx.nd.zeros(3)
    with pytest.raises(ValueError, match="read-only"):
        mx.nd.Custom(x, op_type="writing").wait_to_read()
    np.testing.assert_array_equal(x.asnumpy(), np.zeros(3))


# -- using the engine inside -------------------------------------------------------------------------------


def busy(in_data, out_data):
    """Wait in every way, for small and large work on the same device."""
    big = mx.nd.ones((300, 300))
    product = mx.nd.dot(big, big)
    assert product.asnumpy()[0, 0] == 300
    done = []
    mx.engine.push(lambda: done.append(product.asnumpy().sum()), reads=[product], device=mx.cpu()).wait()
    assert done
    if threading.current_thread() is not mx.engine.engine.hosting.loop_thread:  # which would wait for itself
        mx.nd.waitall()
    with mx.autograd.record():
        small = in_data[0].copy()
        small.attach_grad()
        loss = (small * small).sum()
    loss.backward()
    small.grad.wait_to_read()
    out_data[0][:] = small.grad / 2 * in_data[0].asnumpy().mean()
    assert out_data[0].asnumpy().shape == in_data[0].shape


def test_may_wait_inside(kind, is_async):
    define("busy", busy, None, is_async)
    results = [mx.nd.Custom(mx.nd.array(X), op_type="busy") for _ in range(20)]
    for array in results:
        np.testing.assert_allclose(array.asnumpy(), X * X.mean(), rtol=1e-6)
    symbol = mx.sym.Custom(mx.sym.var("x"), op_type="busy")
    for executor in [symbol.simple_bind(mx.cpu(), x=X.shape) for _ in range(3)]:
        np.testing.assert_allclose(executor.forward(x=X)[0].asnumpy(), X * X.mean(), rtol=1e-6)


def test_custom_inside_custom(kind, is_async):
    define("leaf", square, square_gradient, is_async)

    def forward(in_data, out_data):
        inner = [mx.nd.Custom(in_data[0], op_type="leaf") for _ in range(3)]
        if not is_async:
            inner[0].wait_to_read()
        out_data[0][:] = inner[0] + inner[1] + inner[2]

    define("nest", forward, None, is_async)
    define("nests", lambda i, o: o[0].__setitem__(slice(None), mx.nd.Custom(i[0], op_type="nest") * 2), None, is_async)
    results = [mx.nd.Custom(mx.nd.array(X), op_type="nests") for _ in range(20)]
    for array in results:
        np.testing.assert_allclose(array.asnumpy(), 6 * X**2)


def test_coroutines_await_inside():
    class Op(mx.operator.CustomOp):
        async def forward(self, is_train, req, in_data, out_data, aux):
            inner = [mx.nd.Custom(in_data[0], op_type="awaiting leaf") for _ in range(3)]
            for array in inner:
                await array
            await mx.nd.waitall_async()
            self.assign(out_data[0], req[0], inner[0])

    define("awaiting leaf", square, None, True)
    define("awaiting", None, create_operator=lambda *_: Op())

    async def main():
        results = [mx.nd.Custom(mx.nd.array(X), op_type="awaiting") for _ in range(10)]
        for array in results:
            await array
        return results

    for array in mx.run(main()):
        np.testing.assert_allclose(array.asnumpy(), X**2)


def test_called_in_coroutines(kind, is_async):
    define("busy", busy, None, is_async)

    async def one():
        y = mx.nd.Custom(mx.nd.array(X), op_type="busy")
        await y
        return y.asnumpy()

    async def main():
        return await asyncio.gather(*(one() for _ in range(8)))

    for item in mx.run(main()):
        np.testing.assert_allclose(item, X * X.mean(), rtol=1e-6)


def test_bodies_that_wait_for_each_other_outside_the_engine():
    met = threading.Barrier(4)
    define("meeting", lambda i, o: met.wait(10))
    results = [mx.nd.Custom(mx.nd.zeros(1), op_type="meeting") for _ in range(4)]
    for array in results:
        array.wait_to_read()


def test_a_body_may_read_results_of_another():
    started = threading.Event()

    def slow(in_data, out_data):
        assert started.wait(10)
        out_data[0][:] = mx.nd.Custom(in_data[0], op_type="square")

    define("square", square)
    define("slow", slow)
    first = mx.nd.Custom(mx.nd.array(X), op_type="slow")

    def reading(in_data, out_data):
        started.set()
        out_data[0][:] = first.asnumpy() + 1

    define("reading", reading)
    second = mx.nd.Custom(mx.nd.array(X), op_type="reading")
    np.testing.assert_allclose(second.asnumpy(), X**2 + 1)


def test_a_cycle_of_waits_is_an_error():
    gate = threading.Event()
    arrays = {}

    def waits_for(second):
        def forward(in_data, out_data):
            assert gate.wait(10)
            out_data[0][:] = arrays[second].asnumpy()

        return forward

    for name, second in (("a", "b"), ("b", "a")):
        define(name, waits_for(second))
        arrays[name] = mx.nd.Custom(mx.nd.zeros(1), op_type=name)
    later = arrays["a"] + 1
    gate.set()
    # Either body may detect the cycle: the other then fails with its error.
    for array in (later, arrays["a"], arrays["b"]):
        with pytest.raises(mx.engine.EngineError, match="cannot end before it does"):
            array.wait_to_read()


def test_a_body_may_wait_for_all_operations(kind, is_async):
    met = threading.Event()
    define("all", lambda i, o: (met.wait(10), mx.nd.waitall()), None, False)
    outer = [mx.nd.Custom(mx.nd.zeros(1), op_type="all") for _ in range(3)] if kind != "NaiveEngine" else []
    met.set()
    after = [array + 1 for array in outer]
    for array in after:
        array.wait_to_read()


def test_waits_that_would_block_the_loop_are_refused():
    define("square", square, None, True)

    def blocking(in_data, out_data):
        (mx.nd.Custom(in_data[0], op_type="square") + 1).asnumpy()

    define("blocking", blocking, None, True)
    with pytest.raises(mx.engine.EngineError, match="await it instead"):
        mx.nd.Custom(mx.nd.array(X), op_type="blocking").wait_to_read()


def test_in_a_bulk():
    define("square", square)
    with mx.engine.bulk(10):
        x = mx.nd.array(X) + 1
        y = mx.nd.Custom(x, op_type="square") + 1
    np.testing.assert_allclose(y.asnumpy(), (X + 1) ** 2 + 1)


def test_operations_pushed_inside_stay_out_of_the_enclosing_bulk(is_async):
    define("square", square, None, is_async)
    for _ in range(100):
        with mx.engine.bulk(4):
            x = mx.nd.array(X) + 1
            y = mx.nd.Custom(x, op_type="square")
            y *= 0.5
            z = mx.nd.Custom(y, op_type="square") * x
        np.testing.assert_allclose(z.asnumpy(), ((X + 1) ** 2 / 2) ** 2 * (X + 1), 1e-5)


def test_in_checking_mode(is_async):
    define("square", square, None, is_async)
    with mx.engine.using(engine_check=True):
        np.testing.assert_allclose(mx.nd.Custom(mx.nd.array(X), op_type="square").asnumpy(), X**2)


# -- sparse arrays -----------------------------------------------------------------------------------------


def define_lookup(is_async, name="custom_lookup"):
    """Register an operator on dense arrays with a row_sparse gradient, which counts its calls in a state."""

    class Lookup(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            aux[0][:] += 1
            self.assign(out_data[0], req[0], mx.nd.take(in_data[1], in_data[0]))

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            assert [array.stype for array in in_grad] == ["default", "row_sparse"]
            created = mx.nd.sparse.row_sparse_array((out_grad[0], in_data[0]), shape=in_data[1].shape)
            self.assign(in_grad[1], req[1], created)

    class Async(Lookup):
        async def forward(self, **arguments):
            await asyncio.sleep(0)
            super().forward(**arguments)

        async def backward(self, **arguments):
            await asyncio.sleep(0)
            super().backward(**arguments)

    @mx.operator.register(name)
    class Prop(mx.operator.CustomOpProp):
        def list_arguments(self):
            return ["ids", "weight"]

        def list_auxiliary_states(self):
            return ["calls"]

        def infer_shape(self, in_shape):
            return in_shape, [[in_shape[0][0], in_shape[1][1]]], [[1]]

        def create_operator(self, ctx, in_shapes, in_dtypes):
            return (Async if is_async else Lookup)()

        def infer_storage_type_backward(self, ograd, inputs, outputs, igrad, aux):
            return ograd, inputs, outputs, ["default", "row_sparse"], aux


def test_a_gradient_of_rows(kind, is_async):
    define_lookup(is_async)
    ids, weight, calls = mx.nd.array([2, 0]), mx.nd.arange(12).reshape((4, 3)), mx.nd.zeros((1,))
    weight.attach_grad(stype="row_sparse")
    with mx.autograd.record():
        y = (mx.nd.Custom(ids, weight, calls, op_type="custom_lookup") ** 2).sum()
    y.backward()
    assert weight.grad.indices.asnumpy().tolist() == [0, 2]
    np.testing.assert_array_equal(weight.grad.data.asnumpy(), 2 * weight.asnumpy()[[0, 2]])
    assert calls.asscalar() == 1

    created = mx.sym.Custom(*map(mx.sym.Variable, ("ids", "weight", "calls")), op_type="custom_lookup")
    bound = created.simple_bind(mx.cpu(), ids=(2,), weight=(4, 3))
    assert bound.grad_dict["weight"].stype == "row_sparse"
    assert bound.grad_dict["ids"].stype == "default"
    bound.copy_params_from({"ids": ids, "weight": weight})
    bound.forward(is_train=True)
    bound.backward(mx.nd.ones((2, 3)))
    assert bound.grad_dict["weight"].indices.asnumpy().tolist() == [0, 2]
    assert bound.aux_dict["calls"].asscalar() == 1


def define_square(types, backward_types):
    class Square(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            assert not aux or aux[0].stype == in_data[0].stype
            with pytest.raises(Exception, match="read-only"):
                in_data[0].raw().data[0] = 1
            self.assign(out_data[0], req[0], mx.nd.square(in_data[0]))
            if aux:
                aux[0][:] = in_data[0]

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            assert (out_grad[0].stype, in_data[0].stype, in_grad[0].stype) == ("default", "csr", "csr")
            self.assign(in_grad[0], req[0], 2 * mx.nd.elemwise_mul(in_data[0], out_grad[0]))

    define(
        "sparse_square", None, create_operator=lambda self, *arguments: Square(),
        list_auxiliary_states=lambda self: ["last"],
        infer_shape=lambda self, shapes: (shapes, shapes, shapes),
        infer_storage_type=lambda self, stypes: types, infer_storage_type_backward=lambda self, *stypes: backward_types,
    )  # fmt: skip


@pytest.mark.filterwarnings("error")
def test_matrices_stay_sparse_inside(kind):
    define_square((["csr"], ["csr"], ["csr"]), (["default"], ["csr"], ["csr"], ["csr"], ["csr"]))
    dense = np.array([[0, 2, 0], [3, 0, 0]], np.float32)
    x, last = mx.nd.array(dense).tostype("csr"), mx.nd.zeros((2, 3), stype="csr")
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Custom(x, last, op_type="sparse_square")
    y.backward()
    assert (y.stype, x.grad.stype, last.stype) == ("csr",) * 3
    np.testing.assert_array_equal(y.asnumpy(), dense**2)
    np.testing.assert_array_equal(x.grad.asnumpy(), 2 * dense)
    np.testing.assert_array_equal(last.asnumpy(), dense)
    # Dense arrays and states are converted to the operator's storage types.
    last = mx.nd.zeros((2, 3))
    results = mx.nd.Custom(mx.nd.array(dense), last, op_type="sparse_square")
    assert (results.stype, last.stype) == ("csr", "default")
    np.testing.assert_array_equal(last.asnumpy(), dense)


def test_an_operator_without_sparse_support_gets_dense_arrays():
    define("square_of_any", square, square_gradient)
    x = mx.nd.array(X).tostype("csr")
    with pytest.warns(mx.errors.StorageFallbackWarning, match="Custom"):
        assert mx.nd.Custom(x, op_type="square_of_any").stype == "default"


@pytest.mark.parametrize(
    ("types", "backward_types", "says"),
    [
        ((["csr"],), None, "expected 2 or 3 lists"),
        ((["csr"], ["csr", "csr"], []), None, r"1 \+ 2 \+ 0 storage types, expected 1 \+ 1 \+ 1"),
        ((["csr"], ["sparse"], ["csr"]), None, "'sparse', expected one of default, row_sparse, csr"),
        ((["csr"], ["csr"], ["csr"]), (["default"],) * 3, "expected 4 or 5 lists"),
    ],
)
def test_wrong_storage_types_are_refused(types, backward_types, says):
    define_square(types, backward_types)
    with pytest.raises(mx.MXNetError, match=says):
        mx.nd.Custom(mx.nd.zeros((2, 3), stype="csr"), mx.nd.zeros((2, 3)), op_type="sparse_square")


def test_hooks_may_refuse_dense_arrays(kind):
    class Double(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            self.assign(out_data[0], req[0], in_data[0] * 2)

    def asked(self, arguments):
        assert arguments == ["csr"]
        return arguments, arguments, []

    define("double_of_csr", None, create_operator=lambda self, *arguments: Double(), infer_storage_type=asked)
    results = mx.nd.Custom(mx.nd.array(X).tostype("csr"), op_type="double_of_csr")
    assert results.stype == "csr"
    np.testing.assert_array_equal(results.asnumpy(), 2 * X)


def test_the_inputs_are_those_of_the_property():
    assert lookup("Custom").arguments == ()
