"""Predictions in slices of the batch: the same results in less memory, and effects that a user may notice."""

import json
import re

import numpy as np
import pytest

import flowmx as mx
from benchmarks.workers import networks
from flowmx import profiler, settings
from flowmx.devices import cpu
from flowmx.gluon import nn
from flowmx.graph import plan
from flowmx.graph.checking import race
from flowmx.graph.compiler import compile_graph, graph_of, options_of
from flowmx.graph.infer import infer_types, known_shapes
from flowmx.graph.planning import arena_packing, order
from flowmx.graph.reports.unfolded import sliced_steps
from tests.slicing import eager_slices

pytestmark = pytest.mark.usefixtures("two_threads_a_kernel")

S = mx.sym


def conv(x, filters, **more):
    return S.Convolution(x, num_filter=filters, kernel=(3, 3), pad=(1, 1), **more)


def network():
    """Branches, a residual sum, a folded and an unfolded normalization, and a final product."""
    x = conv(S.var("data"), 8)
    a = S.relu(S.BatchNorm(conv(x, 8, no_bias=True), fix_gamma=False))
    b = S.Pooling(S.BatchNorm(S.relu(x)), kernel=(3, 3), pad=(1, 1), pool_type="avg")
    x = S.concat(a, conv(S.relu(b), 8), S.broadcast_mul(x, S.mean(x, axis=(2, 3), keepdims=True)), dim=1)
    x = S.relu(x + conv(x, 24))
    return S.SoftmaxOutput(S.FullyConnected(S.Pooling(x, kernel=(2, 2), stride=(2, 2)), num_hidden=5), name="softmax")


def attention():
    """Heads move to axis 0, which is then a multiple of the batch."""
    data = S.var("data")
    x = S.LayerNorm(data, S.var("gamma"), S.var("beta"))
    q, k = (
        S.reshape(
            S.transpose(S.reshape(S.FullyConnected(x, num_hidden=8, flatten=False), (0, 0, 2, 4)), (0, 2, 1, 3)),
            (-3, -2),
        )
        for _ in range(2)
    )
    weights = S.softmax(S.batch_dot(q, k, transpose_b=True))
    x = S.reshape(S.batch_dot(weights, q), (-4, -1, 2, -2))
    return S.relu(S.reshape(S.transpose(x, (0, 2, 1, 3)), (0, 0, -3))) + data


def computed_weights():
    """Weights that are computed from parameters, between operators with a batch axis."""
    x = S.FullyConnected(S.var("data"), weight=S.tanh(S.var("w", shape=(6, 6))) * 2, num_hidden=6, no_bias=True)
    y = S.FullyConnected(S.relu(x), weight=S.reshape(S.exp(S.var("v", shape=(36,))), (6, 6)), num_hidden=6)
    return S.broadcast_add(x * y, S.reshape(S.var("b", shape=(6,)), (1, 6)))


def views():
    """Outputs and inputs of a region that are views, and one output that is returned twice."""
    x = S.var("data")
    y = S.reshape(S.relu(S.reshape(x, (0, -1))), (0, 2, -1))
    return S.Group([S.Flatten(x), y, S.expand_dims(y, axis=1), y, S.sum(y, axis=0)])


CASES = {
    "network": (network, (3, 8, 8)),
    "attention": (attention, (5, 8)),
    "computed weights": (computed_weights, (6,)),
    "views": (views, (2, 3)),
}


def bound(symbol, how, batch, example, dtype="float32", seed=0):
    """Return an executor with the same arrays for each way of slicing."""
    rng = np.random.default_rng(seed)
    with settings.override(exec_slice=how):
        types = dict.fromkeys([*symbol.list_arguments(), *symbol.list_auxiliary_states()], dtype)
        executor = symbol.simple_bind(mx.cpu(), grad_req="null", type_dict=types, data=(batch, *example))
        for name, array in {**executor.arg_dict, **executor.aux_dict}.items():
            array[:] = rng.uniform(0.5, 1.5, array.shape) if "var" in name else rng.normal(0, 0.4, array.shape)
        executor.forward()
    return executor


def results(executor):
    return [output.asnumpy().astype("float64") for output in executor.outputs]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_slices_give_the_same_results(name, dtype):
    make, example = CASES[name]
    near = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    for batch in (4, 7):
        whole = bound(make(), "off", batch, example, dtype)
        assert not sliced_steps(whole.plan)
        for length in (1, 2, 3):
            with settings.override(exec_check=True):  # free memory is overwritten
                parts = bound(make(), length, batch, example, dtype)
            (_, op), *_ = sliced_steps(parts.plan)
            assert op.batch == (batch, length)
            assert len(op.starts) == -(-batch // length)
            for one, other in zip(results(parts), results(whole), strict=True):
                np.testing.assert_allclose(one, other, rtol=near, atol=near * max(1, np.abs(other).max()))


@pytest.mark.parametrize("byte", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("name", ["network", "attention"])
def test_chosen_regions_give_the_same_results(name, byte):
    """Small networks are sliced too, if the estimated cost is low; the cost of weights moves the ends of regions."""
    make, example = CASES[name]
    with eager_slices(byte):
        parts, whole = (bound(make(), how, 14, example) for how in ("auto", "off"))
    assert sliced_steps(parts.plan)
    assert parts.plan.internal_bytes() < whole.plan.internal_bytes()
    for one, other in zip(results(parts), results(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_plans_of_slices_and_around_them_pass_the_race_check(name):
    make, example = CASES[name]
    with settings.override(exec_slice=2):
        race.check(make(), rounds=1, is_train=False, data=(5, *example))
        for _, op in sliced_steps(bound(make(), 2, 5, example).plan):
            race.check_plan(op.plan, options_of("cpu"), rounds=1)


# -- memory ---------------------------------------------------------------------------------------------------


def planned(symbol, how, **shapes):
    """Return the plan of a prediction, without running it."""
    nodes = symbol.nodes()
    variables = {node: shapes[node.name] for node in nodes if node.name in shapes}
    shapes_ = known_shapes(nodes, variables)
    with settings.override(exec_slice=how):
        return compile_graph(graph_of(symbol.entries, (), shapes_, infer_types(nodes, {}), False, cpu(0)))


@pytest.mark.parametrize("name", ["alexnet", "googlenet"])
def test_networks_need_a_quarter_of_the_memory(name):
    symbol = networks.symbol(mx, networks.NETWORKS[name])
    whole, parts = (planned(symbol, how, data=(64, 3, 224, 224)) for how in ("off", "auto"))
    assert parts.internal_bytes() <= 0.25 * whole.lower_bound()
    assert sum(len(op.plan.steps()) for _, op in sliced_steps(parts)) > 0.5 * len(whole.steps())


def test_slices_are_planned_in_one_pass(monkeypatch):
    """Steps are ordered once, and each value is placed once, so planning is cheap."""
    symbol, shapes = networks.symbol(mx, networks.NETWORKS["googlenet"]), {"data": (64, 3, 224, 224)}
    ordered, packed = [], []

    class Steps(order.Steps):
        def __init__(self, graph, nodes):
            ordered.append(len(nodes))
            super().__init__(graph, nodes)

    def pack(lives, rough=False):
        packed.append(len(lives))
        return arena_packing.pack(lives, rough)

    monkeypatch.setattr(order, "Steps", Steps)
    monkeypatch.setattr(plan, "pack", pack)
    whole = planned(symbol, "off", **shapes)
    assert (ordered, packed) == ([len(whole.forward)], [len(whole.lives)])
    parts = planned(symbol, "auto", **shapes)
    [(_, op)] = sliced_steps(parts)
    assert ordered[1:] == [len(whole.forward)]
    assert packed[1:] == [len(op.plan.lives), len(parts.lives)]


def many_weights():
    """Layers with weights that are large compared with their values: some with a folded scale, one with groups."""
    x = S.relu(S.BatchNorm(conv(S.var("data"), 32, no_bias=True), fix_gamma=False))
    y = conv(x, 32, num_group=4)
    x = S.Pooling(S.relu(x + S.BatchNorm(conv(y, 32), fix_gamma=False)), kernel=(2, 2), stride=(2, 2), pool_type="max")
    return S.FullyConnected(S.Pooling(conv(x, 48), global_pool=True, pool_type="avg"), num_hidden=5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_are_reordered_before_the_slices_if_memory_permits(dtype):
    near = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    with eager_slices(byte=1.0):
        parts, whole = (bound(many_weights(), how, 32, (3, 24, 24), dtype) for how in ("auto", "off"))
    assert "_order_Convolution" in [node.op.name for node in parts.plan.forward]
    assert parts.plan.internal_bytes() <= 0.3 * whole.plan.internal_bytes()
    for executor in (parts, whole):
        for name, array in executor.arg_dict.items():  # they are, in each run
            if name.endswith("weight"):
                array[:] = array * 0.5
    for one, other in zip(results_of_another_run(parts), results_of_another_run(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=near, atol=near * np.abs(other).max())


def test_scales_round_as_for_the_whole_batch():
    """With integers, whose sums are exact in any order, only the scale of each sum is rounded."""
    layers = [S.BatchNorm(conv(S.var("data"), 32, no_bias=True), fix_gamma=False) for _ in range(3)]
    executors = []
    for how in ("off", "auto"):
        with eager_slices(byte=1.0), settings.override(exec_slice=how):
            executor = S.add_n(*map(S.relu, layers)).simple_bind(mx.cpu(), grad_req="null", data=(32, 3, 24, 24))
        random = np.random.default_rng(0)
        for name, array in executor.arg_dict.items():
            if array.ndim > 1:
                array[:] = random.integers(-4, 5, array.shape)
            elif "gamma" in name:
                array[:] = random.uniform(0.5, 1.5, array.shape)
        executors.append(results_of_another_run(executor))
        assert ("_order_Convolution" in [node.op.name for node in executor.plan.forward]) == (how == "auto")
    np.testing.assert_array_equal(*executors)


@pytest.mark.parametrize("length", [1, 3])
def test_a_product_of_few_rows_equals_the_whole_batch(length):
    """Without the kernels for small products and vectors, which add in other orders."""
    x = S.relu(S.FullyConnected(S.relu(S.var("data")), num_hidden=64))
    whole, parts = (bound(S.FullyConnected(x, num_hidden=8), how, 16, (512,)) for how in ("off", length))
    ((_, op),) = sliced_steps(parts.plan)
    products = [each.op for each in op.plan.forward if each.op.traits.heavy]
    # The other is small for all rows.
    assert [getattr(product, "whole", False) for product in products] == [True, False]
    for one, other in zip(results(parts), results(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6 * np.abs(other).max())


def test_small_and_training_graphs_are_not_sliced():
    assert not sliced_steps(planned(network(), "auto", data=(64, 3, 8, 8)))
    executor = network().simple_bind(mx.cpu(), data=(64, 3, 8, 8))
    assert not sliced_steps(executor.plan)


# -- operators outside regions --------------------------------------------------------------------------------


class Twice(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)


@mx.operator.register("twice_in_slices")
class TwiceProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Twice()


TIED = {
    "random": lambda x: S.Dropout(x, p=0.5, mode="always"),
    "user code": lambda x: S.Custom(x, op_type="twice_in_slices"),
    "loop": lambda x: S.contrib.foreach(lambda each, state: (each * 2, state), x, [])[0],
    "along the batch": lambda x: S.softmax(x, axis=0),
    "not known": lambda x: S.Pooling(S.RNN(x, S.var("p"), S.var("s"), state_size=3, num_layers=1, mode="gru"),
                                     kernel=(1,)),
}  # fmt: skip


@pytest.mark.parametrize("kind", TIED)
def test_operators_that_mix_samples_are_in_no_region(kind):
    tied = TIED[kind](S.relu(S.exp(S.var("data"))))
    executor = bound(S.tanh(S.sqrt(S.abs(tied))), 1, 4, (3, 3))
    inside = {each.op.name for _, op in sliced_steps(executor.plan) for each in op.plan.forward}
    outside = {node.op.name for node in executor.plan.forward} - {"_sliced"}
    assert tied.nodes()[-1].op.name in outside | inside
    assert not inside & {"Dropout", "Custom", "_foreach", "softmax", "RNN"}
    results(executor)


# -- user-visible effects -------------------------------------------------------------------------------------


def test_reports_show_the_steps_and_how_they_are_cut():
    executor = bound(network(), 2, 5, (3, 8, 8))
    ((node, op),) = sliced_steps(executor.plan)
    text = executor.plan.explain()
    assert f"{node.name}: {len(op.plan.steps())} steps, 3 slices of 2 of 5" in text
    assert len(re.findall("forward  step", text)) == len(op.plan.steps()) + len(executor.plan.steps()) - 1
    assert "(2, 8, 8, 8)" in executor.debug_str()
    assert f"{op.plan.steps()[0].name}_output" in executor.plan.picture()
    assert executor.plan.lower_bound() <= executor.plan.internal_bytes()
    with settings.override(exec_slice=2):
        estimate = network().memory_estimate(grad_req="null", data=(5, 3, 8, 8))
    assert estimate.activations == executor.plan.internal_bytes()


@pytest.mark.usefixtures("profiler_afresh")
def test_the_profiler_shows_each_step_as_often_as_it_runs():
    executor = bound(S.tanh(S.LRN(S.var("data"), nsize=3)), 2, 5, (3, 4, 4))
    profiler.set_config(profile_all=True, aggregate_stats=True)
    profiler.set_state("run")
    results_of_another_run(executor)
    profiler.set_state("stop")
    shapes_ = json.loads(profiler.dumps(format="json"))["Time"]["operator"]
    assert shapes_["LRN"]["Count"] == shapes_["tanh"]["Count"] == 3
    assert "_sliced" not in shapes_


def test_an_error_names_the_operator_and_the_examples():
    executor = bound(S.Group([S.tanh(S.LRN(S.var("data"), nsize=3, name="norm"))]), 2, 5, (3, 4, 4))
    ((_, op),) = sliced_steps(executor.plan)
    assert op.plan.forward[0].name == "norm"
    runner = executor._modes[False].runner
    inner = runner.forward[0].forward._steps

    def broken(run, inputs, outputs):
        raise ValueError("out of order")

    inner[0] = inner[0]._replace(forward=broken)
    with pytest.raises(ValueError, match="out of order") as caught:
        results_of_another_run(executor)
    notes = "\n".join(caught.value.__notes__)
    assert notes.count("in node") == 1
    assert "in node 'norm' (LRN" in notes
    assert "(examples 0 to 1 of 5)" in notes
    assert "(2, 3, 4, 4) float32" in notes


def results_of_another_run(executor):
    executor.forward()
    return results(executor)


def test_the_nan_watch_checks_steps_inside_slices():
    executor = bound(S.exp(S.log(S.var("data"), name="the_log")), 2, 5, (3, 40))
    executor.arg_dict["data"][:] = 1
    executor.arg_dict["data"][3] = -1
    with pytest.raises(ArithmeticError, match="log"), mx.anomaly.stop_at_nan():
        results_of_another_run(executor)


def test_new_values_parameters_and_shapes():
    symbol = network()
    # The exponentials of scores of 60, which are rounded to 4e-6, are as exact.
    whole, parts = (bound(symbol, how, 5, (3, 8, 8)) for how in ("off", 2))
    for executor in (whole, parts):
        executor.arg_dict["data"][:] = 0.3
        executor.aux_dict[symbol.list_auxiliary_states()[0]][:] = 0.1
    for one, other in zip(results_of_another_run(parts), results_of_another_run(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    with settings.override(exec_slice=2):
        parts = parts.reshape(data=(7, 3, 8, 8), softmax_label=(7,), allow_up_sizing=True)
    whole = whole.reshape(data=(7, 3, 8, 8), softmax_label=(7,), allow_up_sizing=True)
    for executor in (whole, parts):
        executor.arg_dict["data"][:] = np.linspace(-1, 1, 7 * 192).reshape(7, 3, 8, 8)
    ((_, op),) = sliced_steps(parts.plan)
    assert op.batch == (7, 2)
    for one, other in zip(results_of_another_run(parts), results_of_another_run(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("static_shape", [False, True])
def test_hybridized_blocks_with_packed_weights(static_shape):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(32, 3, in_channels=16, activation="relu"), nn.BatchNorm(), nn.Conv2D(32, 3, in_channels=32))
    net.add(nn.Flatten(), nn.Dense(64, activation="relu"), nn.Dropout(0.5), nn.Dense(10))
    net.initialize(mx.init.Xavier())
    x = mx.nd.random.normal(shape=(7, 16, 12, 12))
    expected = net(x).asnumpy()
    for length in (1, 2, 3):
        with settings.override(exec_slice=length):
            net.hybridize(static_alloc=True, static_shape=static_shape)
            for _ in range(2):
                np.testing.assert_allclose(net(x).asnumpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", ["some", -2, "-2", 1.5])
def test_a_bad_setting_is_refused(value):
    with pytest.raises(settings.SettingError, match=r"EXEC_SLICE.*auto or off"), settings.override(exec_slice=value):
        pass
