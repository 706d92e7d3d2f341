"""Loops and branches on arrays, and on symbols in the form and with the results of MXNet 1.9.1."""

import itertools
import json
from collections import defaultdict

import numpy as np
import pytest

import flowmx as mx
from tests.fixtures import record_control_flow as recorded

TEXTS = json.loads((recorded.FOLDER / "symbols.json").read_text())
KINDS = ["ThreadedEnginePerDevice", "NaiveEngine"]


@pytest.fixture(params=recorded.NETWORKS, ids=lambda network: network.__name__)
def network(request):
    return request.param


def composed(network, monkeypatch):
    """Return the network with names that begin at 0, as in the recording."""
    monkeypatch.setattr(mx.AttrScope, "_subgraph_names", numbers_before(network, monkeypatch))
    with mx.name.NameManager():
        return network(mx)


def numbers_before(network, monkeypatch):
    """Return the counts of subgraphs of earlier networks, since MXNet composed all networks in one process."""
    counts = defaultdict(int)
    with monkeypatch.context() as patched:
        patched.setattr(mx.AttrScope, "_subgraph_names", counts)
        for earlier in itertools.takewhile(lambda item: item is not network, recorded.NETWORKS):
            earlier(mx)
    return counts


COMPUTED = [each for each in recorded.NETWORKS if each.__name__ not in recorded.WRITTEN_ONLY]


def bound(symbol, network):
    name, table = network.__name__, {}
    with np.load(recorded.FOLDER / "arrays.npz") as arrays:
        for key in arrays.files:
            if key.startswith(f"{name}/"):
                _, kind, others = key.split("/")
                table.setdefault(kind, {})[others] = arrays[key]
    executor = symbol.simple_bind(mx.cpu(), **recorded.NETWORKS[network])
    executor.copy_params_from(table["arg"])
    return executor, table


def test_composes_the_same_json_as_mxnet(network, monkeypatch):
    written = json.loads(TEXTS[network.__name__])
    assert json.loads(composed(network, monkeypatch).tojson()) == written


def test_mxnets_json_survives_a_round_trip(network):
    text = TEXTS[network.__name__]
    assert mx.sym.load_json(text).tojson() == text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("network", COMPUTED, ids=lambda network: network.__name__)
def test_results_are_mxnets(network, kind, loaded, monkeypatch):
    symbol = mx.sym.load_json(TEXTS[network.__name__]) if loaded else composed(network, monkeypatch)
    with mx.engine.using(engine_type=kind):
        executor, table = bound(symbol, network)
        outputs = executor.forward(is_train=True)
        executor.backward([mx.nd.array(table["head"][str(i)]) for i in range(len(outputs))])
        for i, item in enumerate(outputs):
            np.testing.assert_allclose(item.asnumpy(), table["out"][str(i)], rtol=1e-5, atol=1e-5)
        for key, expected in table["grad"].items():
            actual = executor.grad_dict[key].asnumpy()
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5, err_msg=key)


def test_a_loop_equals_its_unrolled_steps():
    """Auxiliary states change once in each step; the gradient of dropout uses the same mask."""

    def body(x, s):
        result = mx.sym.BatchNorm(x, name="bn", fix_gamma=False, momentum=0.5)
        return mx.sym.Dropout(result, p=0.5) * 2 + s, s + result

    x, s = mx.sym.var("x"), mx.sym.var("s")
    loop = mx.sym.Group(list(mx.sym.contrib.foreach(body, x, s)))
    assert loop.list_arguments() == ["x", "s", "bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var"]
    steps, state = [], s
    for item in mx.sym.split(x, num_outputs=3, axis=0, squeeze_axis=True):
        out, state = body(item, state)
        steps.append(out)
    written_out = mx.sym.Group([mx.sym.stack(*steps, axis=0), state])
    rng = np.random.default_rng(0)
    values = {"x": rng.standard_normal((3, 4, 2)), "s": rng.standard_normal((4, 2)), "bn_gamma": [1.5, 0.5],
              "bn_beta": [0.1, 0.2], "bn_moving_mean": [0, 0], "bn_moving_var": [1, 1]}  # fmt: skip
    values = {key: mx.nd.array(value) for key, value in values.items()}
    results = []
    for symbol in (loop, written_out):
        executor = symbol.simple_bind(mx.cpu(), x=(3, 4, 2), s=(4, 2))
        executor.copy_params_from(values, values, allow_extra_params=True)
        arrays = {**executor.arg_dict, **executor.aux_dict}
        executor.forward(is_train=True)
        executor.backward([mx.nd.ones((3, 4, 2)), mx.nd.full((4, 2), 2)])
        results.append((executor, {key: arrays[key].asnumpy() for key in ("bn_moving_mean", "bn_moving_var")}))
    (first, states), (second, expected) = results
    for key, value in expected.items():
        np.testing.assert_allclose(states[key], value, rtol=1e-5, err_msg=key)
    np.testing.assert_allclose(first.outputs[1].asnumpy(), second.outputs[1].asnumpy(), rtol=1e-4, atol=1e-5)
    # Where the output is equal to the state, the element was dropped; its gradient is only that of the state.
    result = values["x"].asnumpy()
    normal = (result - result.mean(1, keepdims=True)) / np.sqrt(result.var(1, keepdims=True) + 1e-3)
    before = values["s"].asnumpy() + np.cumsum(normal * [1.5, 0.5] + [0.1, 0.2], 0) - (normal * [1.5, 0.5] + [0.1, 0.2])
    keep_rate = ~np.isclose(first.outputs[0].asnumpy(), before, atol=1e-4)
    assert 0 < keep_rate.sum() < keep_rate.size
    later = np.arange(2, -1, -1)[:, None, None]  # iterations whose output depends on the state, and twice at the end
    np.testing.assert_allclose(first.grad_dict["bn_beta"].asnumpy(), (4 * keep_rate + later + 2).sum((0, 1)), rtol=1e-4)
    first.forward(is_train=False)
    assert not np.isnan(first.outputs[0].asnumpy()).any()


def test_a_branch_in_a_loop():
    w = mx.sym.var("w")

    def symbolic(x, s):
        result = mx.sym.contrib.cond(mx.sym.sum(x) > 0, lambda: x * w, lambda: x - s)
        return result, result + s

    loop = mx.sym.Group(list(mx.sym.contrib.foreach(symbolic, mx.sym.var("x"), mx.sym.var("s"))))
    executor = loop.simple_bind(mx.cpu(), x=(4, 2), s=(2,), w=(2,))
    rng = np.random.default_rng(1)
    arrays = {key: mx.nd.array(rng.standard_normal(item.shape)) for key, item in executor.arg_dict.items()}
    executor.forward(is_train=True, **arrays)
    executor.backward()
    for item in arrays.values():
        item.attach_grad()

    def imperative(x, s):
        result = mx.nd.contrib.cond(x.sum() > 0, lambda: x * arrays["w"], lambda: x - s)
        return result, result + s

    with mx.autograd.record():
        outputs = mx.nd.contrib.foreach(imperative, arrays["x"], arrays["s"])
    mx.autograd.backward(list(outputs))
    for bound_output, output in zip(executor.outputs, outputs, strict=True):
        np.testing.assert_allclose(bound_output.asnumpy(), output.asnumpy(), rtol=1e-5, atol=1e-6)
    for key, item in arrays.items():
        np.testing.assert_allclose(executor.grad_dict[key].asnumpy(), item.grad.asnumpy(), rtol=1e-5, atol=1e-6)


def test_a_custom_operator_in_a_loop():
    class Twice(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            assert (in_data[0] + 0).asnumpy().shape == (2,)
            self.assign(out_data[0], req[0], in_data[0] * 2)

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            self.assign(in_grad[0], req[0], out_grad[0] * 2)

    @mx.operator.register("twice in a loop")
    class TwiceProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, in_shapes, in_dtypes):
            return Twice()

    def body(x, s):
        result = mx.sym.Custom(x, op_type="twice in a loop")
        return result, result + s

    out, state = mx.sym.contrib.foreach(body, mx.sym.var("x"), mx.sym.var("s"))
    executor = mx.sym.Group([out, state]).simple_bind(mx.cpu(), x=(3, 2), s=(2,))
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    executor.forward(is_train=True, x=x, s=np.zeros(2))
    executor.backward()
    np.testing.assert_array_equal(executor.outputs[1].asnumpy(), 2 * x.sum(0))
    np.testing.assert_array_equal(executor.grad_dict["x"].asnumpy(), np.full((3, 2), 4))


def test_trains_in_a_module():
    def body(x, s):
        s = mx.sym.FullyConnected(x, num_hidden=8, name="i") + mx.sym.FullyConnected(s, num_hidden=8, name="h")
        s = mx.sym.tanh(s)
        return s, s

    data = mx.sym.transpose(mx.sym.var("data"), axes=(1, 0, 2))
    begin = mx.sym.zeros_like(mx.sym.slice_axis(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8, name="b"),
                                                axis=1, begin=0, end=8))  # fmt: skip
    _, last = mx.sym.contrib.foreach(body, data, begin)
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(last, num_hidden=2, name="out"), name="softmax")
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 64)
    series = rng.standard_normal((64, 5, 3)) + (2 * label - 1)[:, None, None] * np.linspace(0, 1, 5)[None, :, None]
    module = mx.mod.Module(net)
    batches = mx.io.NDArrayIter(series.astype(np.float32), label, 16, label_name="softmax_label")
    mx.random.seed(0)
    mx.run(module.fit(batches, num_epoch=8, initializer=mx.init.Xavier(), optimizer_params={"learning_rate": 0.5}))
    assert dict(mx.run(module.score(batches, "acc")))["accuracy"] > 0.9


def test_while_loop_of_arrays():
    outputs, (i, x) = mx.nd.contrib.while_loop(
        lambda i, x: i < 3, lambda i, x: (x * i, [i + 1, x + 1]), [mx.nd.zeros(1), mx.nd.ones(1)], max_iterations=5
    )
    np.testing.assert_array_equal(outputs.asnumpy().ravel(), [0, 2, 6, 0, 0])
    assert (i.asscalar(), x.asscalar()) == (3, 4)
    outputs, x = mx.nd.contrib.while_loop(lambda x: x > 5, lambda x: (x, x), mx.nd.ones(1), max_iterations=5)
    assert outputs == []
    assert x.asscalar() == 1


def test_dtypes_are_inferred_through_bodies():
    x, i = mx.sym.var("x"), mx.sym.var("i", dtype="int64")
    _, states = mx.sym.contrib.while_loop(
        lambda i, x: i < 2, lambda i, x: ([], [i + 1, x * 2]), [i, x], max_iterations=3
    )
    symbol = mx.sym.Group(states)
    assert symbol.infer_type(x="float64")[:2] == ([np.int64, np.float64], [np.int64, np.float64])
    executor = symbol.simple_bind(mx.cpu(), type_dict={"x": "float16"}, x=(2,), i=(1,))
    executor.forward(is_train=True, x=np.ones(2))
    executor.backward()
    assert executor.outputs[0].dtype == np.int64
    np.testing.assert_array_equal(executor.outputs[1].asnumpy(), np.full(2, 4, np.float16))
    np.testing.assert_array_equal(executor.grad_dict["x"].asnumpy(), np.full(2, 4, np.float16))


X, S = mx.sym.var("x"), mx.sym.var("s")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c: c.foreach(lambda x, s: (x, s), 3, S), TypeError, "foreach: data: expected Symbols.*got int"),
        (lambda c: c.foreach(lambda x, s: (x, [s, s]), X, S), ValueError, "states nested as"),
        (lambda c: c.foreach(lambda x, s: (x, x), X, S), ValueError, "does not use 's-0'"),
        (lambda c: c.foreach(lambda x, s: (x, s), X, X), ValueError, "several symbols used inside are called x-0"),
        (lambda c: c.while_loop(lambda s: s, lambda s: (s, s), S), ValueError, "max_iterations must be given"),
        (lambda c: c.while_loop(lambda s: s, lambda s: (s, [s, s]), S, 3), ValueError, "returned 2 loop variables"),
        (lambda c: c.while_loop(lambda: 1, lambda: 1, [], 3), ValueError, "loop_vars is empty"),
        (lambda c: c.cond(X, lambda: X, lambda: [X, S]), ValueError, "then_func returned 1 symbols and else_func 2"),
        (lambda c: c.foreach(lambda x, s: (x * mx.sym.var("w"), s + mx.sym.var("w")), X, S), ValueError,
         "several symbols used inside are called w"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(mx.sym.contrib)


def test_shapes_that_do_not_match():
    out, _ = mx.sym.contrib.foreach(lambda x, s: (x + s, s), X, S)
    with pytest.raises(mx.MXNetError, match=r"_foreach.*has shape"):
        out.infer_shape(x=(5, 2), s=(3,))
    assert out.infer_shape(x=(5, 2))[0] == [(5, 2), (2,)]
    result = mx.sym.contrib.cond(mx.sym.sum(X), lambda: X, lambda: S)
    with pytest.raises(mx.MXNetError, match="in one branch"):
        result.infer_shape(x=(5, 2), s=(3,))


def test_an_error_inside_names_its_node():
    class Failing(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            raise KeyError("mine")

    @mx.operator.register("failing in a loop")
    class FailingProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, in_shapes, in_dtypes):
            return Failing()

    out, _ = mx.sym.contrib.foreach(
        lambda x, s: (mx.sym.Custom(x, op_type="failing in a loop", name="culprit") + s, s), X, S
    )
    with pytest.raises(KeyError, match="mine") as caught:
        out.simple_bind(mx.cpu(), x=(3, 2), s=(2,)).forward()[0].wait_to_read()
    assert "in node 'culprit'" in "\n".join(caught.value.__notes__)


def gradients(symbol, **inputs):
    executor = symbol.simple_bind(mx.cpu(), **{name: array.shape for name, array in inputs.items()})
    outputs = executor.forward(is_train=True, **inputs)
    executor.backward([mx.nd.ones(out.shape) for out in outputs])
    return {name: array.asnumpy() for name, array in executor.grad_dict.items()}


def test_two_loops_over_the_same_data_have_separate_gradients():
    data = mx.sym.var("data")
    doubled, _ = mx.sym.contrib.foreach(lambda x, states: (x * 2, states), data, [])
    squared, _ = mx.sym.contrib.foreach(lambda x, states: (x * x, states), data, [])
    values = mx.nd.array([[1.0, 2.0], [3.0, 4.0]])
    actual = gradients(doubled + squared, data=values)
    np.testing.assert_allclose(actual["data"], 2 + 2 * values.asnumpy())


@pytest.mark.parametrize("hybrid", [False, True])
def test_slices_of_vectors_have_one_element(hybrid):
    class Sums(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, data, state):
            return F.contrib.foreach(lambda x, s: (x * s, s + x), data, state)

    net = Sums()
    net.hybridize(hybrid)
    data, state = mx.nd.array([1, 2, 3]), mx.nd.array([1])
    data.attach_grad()
    with mx.autograd.record():
        outputs, last = net(data, state)
    outputs.backward()
    assert (outputs.shape, last.shape) == ((3, 1), (1,))
    np.testing.assert_allclose(outputs.asnumpy()[:, 0], [1, 4, 12])
    np.testing.assert_allclose(data.grad.asnumpy(), [6, 5, 4])
