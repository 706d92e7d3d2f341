"""Training steps in micro-batches under a memory budget: the same gradients and random numbers in less memory."""

import json
import re

import numpy as np
import pytest

import flowmx as mx
from benchmarks.workers import networks
from flowmx import profiler
from flowmx.devices.sim import simulated
from flowmx.errors import BudgetError
from flowmx.graph import plan
from flowmx.graph.checking import race
from flowmx.graph.compiler import options_of
from flowmx.graph.planning import arena_packing
from flowmx.graph.reports.unfolded import sliced_steps

pytestmark = pytest.mark.usefixtures("two_threads_a_kernel")  # budgets follow from the kernels' working memory

S = mx.sym


@pytest.fixture(autouse=True)
def fresh_names():
    with mx.name.NameManager():
        yield


def convolutional():
    """Branches, pooling with and without indices, an intermediate output, and weights that are used twice."""
    x = S.Convolution(S.var("data"), num_filter=8, kernel=(3, 3), pad=(1, 1))
    x = S.Pooling(S.relu(x), kernel=(2, 2), stride=(2, 2), pool_type="max")
    shared = S.var("shared_weight", shape=(8, 8, 3, 3))
    a = S.Convolution(x, shared, num_filter=8, kernel=(3, 3), pad=(1, 1), no_bias=True)
    b = S.Convolution(S.tanh(a), shared, num_filter=8, kernel=(3, 3), pad=(1, 1), no_bias=True)
    x = S.concat(a, S.relu(b), S.Pooling(x, kernel=(3, 3), pad=(1, 1), pool_type="avg"), dim=1)
    x = S.FullyConnected(S.Dropout(x, p=0.3), num_hidden=5)
    return S.Group([S.SoftmaxOutput(x, S.var("label"), name="softmax"), S.BlockGrad(S.mean(b, axis=(2, 3)))])


def attention():
    """A Transformer block, with Dropout in three places and a bias that is added to values with a batch axis."""
    data = S.var("data")
    x = S.LayerNorm(data, S.var("gamma"), S.var("beta"))
    q, k = (
        S.reshape(
            S.transpose(S.reshape(S.FullyConnected(x, num_hidden=8, flatten=False), (0, 0, 2, 4)), (0, 2, 1, 3)),
            (-3, -2),
        )
        for _ in range(2)
    )
    weights = S.Dropout(S.softmax(S.batch_dot(q, k, transpose_b=True)), p=0.2)
    x = S.reshape(S.batch_dot(weights, q), (-4, -1, 2, -2))
    x = S.Dropout(S.reshape(S.transpose(x, (0, 2, 1, 3)), (0, 0, -3)), p=0.5) + data
    x = S.broadcast_add(S.LeakyReLU(S.FullyConnected(x, num_hidden=8, flatten=False), act_type="gelu"), S.var("bias"))
    x = S.Dropout(S.broadcast_mul(x, S.var("scale")), p=0.1)
    out = S.FullyConnected(x, num_hidden=6, flatten=False)
    return S.SoftmaxOutput(out, S.var("label"), preserve_shape=True, name="softmax")


def embedded():
    """Rows of a table, whose gradient is a sum too, and weights that are computed from parameters."""
    x = S.Embedding(S.var("data"), input_dim=9, output_dim=6)
    w = S.tanh(S.var("w", shape=(6, 6))) * 2
    x = S.relu(S.FullyConnected(x, weight=w, num_hidden=6, no_bias=True, flatten=False))
    return S.LinearRegressionOutput(S.FullyConnected(S.dot(x, S.exp(S.var("v", shape=(6, 4)))), num_hidden=3),
                                    S.var("label"), name="out")  # fmt: skip


def heads():
    """Outputs that are not losses, one of them a sum over the batch."""
    x = S.tanh(S.FullyConnected(S.var("data"), num_hidden=8, flatten=False))
    y = S.tanh(S.FullyConnected(x, num_hidden=8, flatten=False))
    return S.Group([y, S.sum(S.square(x) * S.sigmoid(y)), S.Flatten(x)])


CASES = {
    "convolutional": (convolutional, {"data": (3, 8, 8), "label": ()}, {}),
    "attention": (attention, {"data": (5, 8), "label": (5,)}, {"bias": (1, 5, 8), "scale": (8,)}),
    "embedded": (embedded, {"data": (24,), "label": (3,)}, {}),
    "heads": (heads, {"data": (20, 6)}, {}),
}


def bound(
    symbol, examples, others, batch, budget=0, request="write", dtype="float32", context=None, **settings
):  # fmt: skip
    """Return an executor with the same arrays for every budget."""
    shapes = {name: (batch, *shape) for name, shape in examples.items()} | others
    requests = {n: "null" if n in examples else request for n in symbol.list_arguments()}
    if "data" in examples and len(examples["data"]) > 1:
        requests["data"] = "write"
    types = dict.fromkeys(symbol.list_arguments(), dtype)
    with mx.engine.using(exec_memory_budget=budget, **settings):
        executor = symbol.simple_bind(context or mx.cpu(), grad_req=requests, type_dict=types, **shapes)
    rng = np.random.default_rng(3)
    for name, array in executor.arg_dict.items():
        whole = name == "label" or (name == "data" and len(examples["data"]) == 1)
        array[:] = rng.integers(0, 5, array.shape) if whole else rng.normal(0, 0.5, array.shape)
    for array in executor.grad_arrays:
        if array is not None:
            array[:] = 1
    for name, array in executor.aux_dict.items():
        array[:] = float(name.endswith("var"))
    return executor


def in_slices(symbol, examples, others, batch, count, **more):
    """Return an executor with at least ``count`` micro-batches, and one that processes the whole batch."""
    whole = bound(symbol, examples, others, batch, **more)
    for percent in (95, 80, 65, 55, 45, 38, 32, 27, 22, 18, 14, 11, 8, 6):
        budget = whole.plan.internal_bytes() * percent // 100
        try:
            small = bound(symbol, examples, others, batch, budget, **more)
        except BudgetError:
            continue
        if any(len(op.starts) >= count for _, op in sliced_steps(small.plan)):
            assert small.plan.internal_bytes() <= budget
            return small, whole
    raise AssertionError("there are no micro-batches")


def results(executor):
    """Return outputs and gradients of a step, and a random number drawn after it."""
    mx.random.seed(5)
    mx.random.seed(5, ctx=executor._ctx)
    executor.forward_backward(head_gradients(executor))
    gradients = [gradient for gradient in executor.grad_arrays if gradient is not None]
    arrays = [*executor.outputs, *gradients, *executor.aux_arrays]
    return [array.asnumpy().astype("float64") for array in arrays] + [mx.nd.random.uniform(shape=3).asnumpy()]


def head_gradients(executor):
    rng = np.random.default_rng(4)
    return [mx.nd.array(rng.normal(size=out.shape), out.context, out.dtype) for out in executor.outputs]


def same(one, other, near=1e-5):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=near, atol=near * max(1, np.abs(b).max()))


def test_only_the_chosen_plan_is_packed_thoroughly(monkeypatch):
    packed, tried = [], []

    def pack(lives, rough=False):
        (tried if rough else packed).append(len(lives))
        return arena_packing.pack(lives, rough)

    symbol, examples = convolutional(), {"data": (3, 8, 8), "label": ()}
    whole = bound(symbol, examples, {}, 8).plan
    monkeypatch.setattr(plan, "pack", pack)
    small = bound(symbol, examples, {}, 8, whole.internal_bytes() * 35 // 100, exec_plan_cache=False).plan
    [(_, op)] = sliced_steps(small)
    assert packed == [len(op.plan.lives), len(small.lives)]
    assert len(tried) > len(packed)


@pytest.mark.parametrize("request_", ["write", "add"])
@pytest.mark.parametrize("name", CASES)
def test_micro_batches_give_the_same_gradients_and_draw_the_same_numbers(name, request_):
    make, examples, others = CASES[name]
    for batch, count in ((8, 2), (6, 3), (5, 5)):
        small, whole = in_slices(make(), examples, others, batch, count, request=request_, exec_check=True)
        same(results(small), results(whole))
        same(results(small), results(whole))


@pytest.mark.parametrize("name", CASES)
def test_micro_batches_in_16_bits(name):
    make, examples, others = CASES[name]
    small, whole = in_slices(make(), examples, others, 8, 4, dtype="float16")
    same(results(small), results(whole), 4e-3)


@pytest.mark.parametrize("name", CASES)
def test_plans_of_slices_pass_the_race_check(name):
    make, examples, others = CASES[name]
    small, _ = in_slices(make(), examples, others, 8, 4)
    for _, op in sliced_steps(small.plan):
        race.check_plan(op.plan, options_of("cpu"), rounds=1)


def test_separate_passes_and_a_second_backward_pass():
    """A second backward pass draws the same numbers, and predictions do not change."""
    make, examples, others = CASES["attention"]
    small, whole = in_slices(make(), examples, others, 8, 2)
    expected = results(whole)
    same(results(small), expected)
    gradients = [gradient for gradient in small.grad_arrays if gradient is not None]
    before = [gradient.asnumpy() for gradient in gradients]
    for gradient in gradients:
        gradient[:] = 7
    small.backward(head_gradients(small))
    same([gradient.asnumpy() for gradient in gradients], before)
    for executor in (small, whole):
        executor.forward(is_train=False)
    same([output.asnumpy() for output in small.outputs], [output.asnumpy() for output in whole.outputs])
    same(results(small), expected)


# -- separate passes ------------------------------------------------------------------------------------------


def wide_first(dropped=0.0):
    """Layers with values that become smaller, as in networks for images."""
    x = S.var("data")
    for filters in (4, 8, 16):
        for _ in range(2):
            x = S.relu(S.Convolution(x, num_filter=filters, kernel=(3, 3), pad=(1, 1)))
        x = S.Pooling(S.Dropout(x, p=dropped) if dropped else x, kernel=(2, 2), stride=(2, 2), pool_type="max")
    return S.SoftmaxOutput(S.FullyConnected(x, num_hidden=5), S.var("label"), name="softmax")


@pytest.mark.parametrize("dropped", [0.0, 0.3])
@pytest.mark.parametrize("request_", ["write", "add"])
def test_separate_passes_have_separate_slices(request_, dropped):
    net, examples = wide_first(dropped), {"data": (3, 16, 16), "label": ()}
    whole = bound(net, examples, {}, 8, request=request_)
    budget = whole.plan.internal_bytes() * (55 if dropped else 40) // 100
    small = bound(net, examples, {}, 8, budget, request=request_, exec_check=True)

    def apart(executor):
        mx.random.seed(5)
        executor.forward(is_train=True)
        executor.backward()
        arrays = [*executor.outputs, *[gradient for gradient in executor.grad_arrays if gradient is not None]]
        return [array.asnumpy() for array in arrays] + [mx.nd.random.uniform(shape=3).asnumpy()]

    expected = apart(whole)
    same(apart(small), expected)
    plan = small._modes[True].plan
    assert plan.internal_bytes() <= budget
    first, second = (op for _, op in sliced_steps(plan))
    assert first.batch == second.batch
    small.backward()  # what was used up is computed again
    if request_ == "write":
        same([gradient.asnumpy() for gradient in small.grad_arrays if gradient is not None], expected[1:-1])


def test_hybridized_blocks_train_in_a_budget():
    def trained(budget):
        mx.random.seed(2)
        net = mx.gluon.nn.HybridSequential()
        for filters in (4, 8, 16):
            net.add(mx.gluon.nn.Conv2D(filters, 3, padding=1, activation="relu"), mx.gluon.nn.MaxPool2D())
        net.add(mx.gluon.nn.Dense(4))
        net.initialize(mx.init.Xavier())
        rng = np.random.default_rng(0)
        x = mx.nd.array(rng.normal(size=(8, 3, 32, 32)))
        x.attach_grad()
        loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        with mx.engine.using(exec_memory_budget=budget):
            net.hybridize(static_alloc=True)
            with mx.autograd.record():
                out = loss(net(x), mx.nd.array(rng.integers(0, 4, 8)))
            out.backward()
            gradients = [each.grad().asnumpy() for each in net.collect_params().values()]
        return [out.asnumpy(), x.grad.asnumpy(), *gradients], plans(net)

    expected, (plan,) = trained(0)
    report, (small,) = trained(plan.internal_bytes() * 45 // 100)
    assert len(sliced_steps(small)) == 2
    assert small.internal_bytes() <= 0.45 * plan.internal_bytes()
    same(report, expected)


def plans(net):
    """Return the plans of a hybridized block."""
    return [each.pool.results.plan for each in net._cached_op._compiled.values()]


@pytest.mark.parametrize("seed", [None, 5])
def test_the_simulated_device_runs_slices(seed):
    """The random numbers are the same, in order and out of order."""
    with simulated("gtx980", 1, **({} if seed is None else {"seed": seed})):
        net, examples = wide_first(0.3), {"data": (3, 16, 16), "label": ()}
        small, whole = in_slices(net, examples, {}, 8, 4, context=mx.sim(0))
        report, expected = results(small)[:-1], results(whole)[:-1]
        same(report, expected)


def test_cheap_values_are_recomputed():
    x = S.var("data")
    for _ in range(12):
        x = S.tanh(S.FullyConnected(x, num_hidden=16))
    net, examples = S.SoftmaxOutput(x, S.var("label")), {"data": (16,), "label": ()}
    executor = bound(net, examples, {}, 64)
    expected = results(executor)[:-1]
    small = bound(net, examples, {}, 64, executor.plan.internal_bytes() * 65 // 100)
    small.forward(is_train=True)
    small.backward()
    same([array.asnumpy() for array in [*small.outputs, *small.grad_arrays] if array is not None], expected)


def test_recomputation_and_micro_batches_are_combined():
    x = S.var("data")
    for _ in range(16):
        x = S.sigmoid(S.LRN(S.Convolution(x, num_filter=4, kernel=(3, 3), pad=(1, 1)), nsize=3))
    net, examples = S.SoftmaxOutput(S.FullyConnected(x, num_hidden=3), S.var("label")), {"data": (4, 8, 8), "label": ()}
    whole = bound(net, examples, {}, 4)
    for percent in (30, 27, 24, 22, 20, 18, 16):
        try:
            small = bound(net, examples, {}, 4, whole.plan.internal_bytes() * percent // 100)
        except BudgetError:
            break
    ((_, op),) = sliced_steps(small.plan)
    assert op.batch == (4, 1)
    assert any("again" in node.name for node in op.plan.backward)
    assert small.plan.internal_bytes() < 0.3 * whole.plan.internal_bytes()
    same(results(small), results(whole))


# -- operators that need the whole batch ----------------------------------------------------------------------


def test_a_message_names_the_layer_that_needs_the_whole_batch():
    x = S.Convolution(S.var("data"), num_filter=8, kernel=(3, 3), name="first")
    x = S.Activation(S.BatchNorm(x, name="the_norm"), act_type="relu")
    for _ in range(3):
        x = S.tanh(S.BatchNorm(S.Convolution(x, num_filter=8, kernel=(3, 3), pad=(1, 1))))
    net = S.SoftmaxOutput(S.FullyConnected(x, num_hidden=4), S.var("label"))
    with pytest.raises(BudgetError) as caught:
        bound(net, {"data": (3, 8, 8), "label": ()}, {}, 8, budget=1000)
    assert any("'the_norm'" in note and "whole batch" in note for note in caught.value.__notes__)
    whole = bound(net, {"data": (3, 8, 8), "label": ()}, {}, 8)
    again = bound(net, {"data": (3, 8, 8), "label": ()}, {}, 8, whole.plan.internal_bytes() * 3 // 4)
    assert "'the_norm'" in again.plan.explain()
    same(results(again), results(whole))


def test_a_loss_divided_by_the_batch_is_not_cut():
    x = S.tanh(S.FullyConnected(S.var("data"), num_hidden=16))
    net = S.SoftmaxOutput(S.FullyConnected(x, num_hidden=4), S.var("label"), normalization="valid", name="loss")
    with pytest.raises(BudgetError) as caught:
        bound(net, {"data": (16,), "label": ()}, {}, 8, budget=100)
    assert any("'loss" in note for note in caught.value.__notes__)


# -- user-visible effects -------------------------------------------------------------------------------------


def test_reports_show_the_steps_of_a_slice():
    make, examples, others = CASES["convolutional"]
    small, _ = in_slices(make(), examples, others, 8, 4)
    ((node, op),) = sliced_steps(small.plan)
    text = small.plan.explain()
    assert f"{node.name}: {len(op.plan.steps())} steps, {op.description()}" in text
    assert len(re.findall("step +[0-9]+", text)) >= len(op.plan.steps())
    assert small.plan.picture()
    assert "(2, 8, 8, 8)" in small.debug_str()
    assert small.plan.lower_bound() <= small.plan.internal_bytes()


@pytest.mark.usefixtures("profiler_afresh")
def test_the_profiler_shows_each_step_as_often_as_it_runs():
    make, examples, others = CASES["embedded"]
    small, _ = in_slices(make(), examples, others, 8, 4)
    ((_, op),) = sliced_steps(small.plan)
    profiler.set_config(profile_all=True, aggregate_stats=True)
    profiler.set_state("run")
    results(small)
    profiler.set_state("stop")
    report = json.loads(profiler.dumps(format="json"))["Time"]["operator"]
    assert report["_summed"]["Count"] >= len(op.starts)


def test_a_module_trains_in_the_budget():
    def trained(budget):
        mx.random.seed(2)
        with mx.name.NameManager(), mx.engine.using(exec_memory_budget=budget):
            x = S.var("data")
            for _ in range(3):
                x = S.relu(S.Convolution(x, num_filter=8, kernel=(3, 3), pad=(1, 1)))
            net = S.SoftmaxOutput(S.FullyConnected(S.Dropout(x, p=0.2), num_hidden=4), name="softmax")
            rng = np.random.default_rng(0)
            data = mx.io.NDArrayIter(rng.normal(size=(32, 3, 8, 8)), rng.integers(0, 4, 32), batch_size=16)
            module = mx.mod.Module(net)
            module.fit(data, num_epoch=2, optimizer_params={"learning_rate": 0.01}, initializer=mx.init.Xavier())
        plan = module._group.execs[0].plan
        return plan, {name: each.asnumpy() for name, each in module.get_params()[0].items()}

    plan, expected = trained(0)
    small, report = trained(plan.internal_bytes() * 3 // 10)
    assert small.internal_bytes() <= 0.3 * plan.internal_bytes()
    assert sliced_steps(small)
    for name, each in expected.items():
        np.testing.assert_allclose(report[name], each, rtol=1e-4, atol=1e-5)


def test_large_networks_fit_into_three_tenths():
    image = networks.symbol(mx, networks.LATER["vgg_16"])
    for net, shapes in (
        (image, {"data": (64, 3, 224, 224), "softmax_label": (64,)}),
        (networks.transformer(mx), {"data": (16, 128, networks.WIDTH), "softmax_label": (16, 128)}),
    ):
        requests = {name: "null" if name in shapes else "write" for name in net.list_arguments()}
        whole = net.memory_estimate(grad_req=requests, **shapes)
        small = net.memory_estimate(grad_req=requests, budget=whole.activations * 3 // 10, **shapes)
        assert small.activations <= 0.3 * whole.activations
        assert sliced_steps(small.plan), (
            "reading the weights again for each slice costs less than computing values again"
        )
