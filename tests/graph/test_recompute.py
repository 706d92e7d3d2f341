"""Recomputation: within the budget, bit-identical gradients, and no second run of operators with side effects."""

import time
from functools import cache

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import BudgetError
from flowmx.graph.planning.order import LATE
from flowmx.ndarray.computations import forward_of
from flowmx.ops.compiled.recomputed import RECOMPUTED
from flowmx.ops.registry.operators import Run, lookup

sym = mx.sym


@pytest.fixture(autouse=True)
def fresh_names():
    with mx.name.NameManager():
        yield


def convolution(x, filters=8, kernel=3):
    return sym.Convolution(x, num_filter=filters, kernel=(kernel, kernel), pad=(kernel // 2, kernel // 2), no_bias=True)


def normal(x, **inputs):
    return sym.Activation(sym.BatchNorm(x, fix_gamma=False, **inputs), act_type="relu")


def classified(x, label="label"):
    return sym.SoftmaxOutput(sym.FullyConnected(x, num_hidden=4), sym.Variable(label), name="softmax")


def residual(blocks=6):
    x = convolution(sym.Variable("data"))
    for _ in range(blocks):
        x = x + convolution(normal(convolution(normal(x))))
    return classified(normal(x)), {"data": (4, 3, 8, 8), "label": (4,)}


def dense(layers=6):
    x = convolution(sym.Variable("data"))
    for _ in range(layers):
        x = sym.Concat(x, convolution(normal(x), 4), dim=1)
    return classified(sym.Pooling(normal(x), kernel=(2, 2), stride=(2, 2))), {"data": (4, 3, 8, 8), "label": (4,)}


def plain(layers=24):
    x = sym.Variable("data")
    for _ in range(layers):
        x = sym.tanh(sym.FullyConnected(x, num_hidden=32))
    return classified(x), {"data": (64, 32), "label": (64,)}


def dropping(layers=8):
    x = sym.Variable("data")
    for _ in range(layers):
        x = sym.Dropout(sym.BatchNorm(sym.tanh(sym.FullyConnected(x, num_hidden=32)), axis=-1), p=0.4)
    return classified(x), {"data": (64, 32), "label": (64,)}


def recurrent(steps=24, hidden=16):
    weights = [sym.Variable(name) for name in ("iw", "ib", "hw", "hb")]
    loaded = sym.SliceChannel(sym.Variable("data"), num_outputs=steps, axis=1, squeeze_axis=True)
    h, c = sym.Variable("h"), sym.Variable("c")
    for step in range(steps):
        gates = sym.FullyConnected(loaded[step], *weights[:2], num_hidden=4 * hidden)
        gates = gates + sym.FullyConnected(h, *weights[2:], num_hidden=4 * hidden)
        i, f, o, u = sym.SliceChannel(gates, num_outputs=4, axis=1)
        c = sym.sigmoid(f) * c + sym.sigmoid(i) * sym.tanh(u)
        h = sym.sigmoid(o) * sym.tanh(c)
    return classified(h), {"data": (8, steps, 8), "h": (8, hidden), "c": (8, hidden), "label": (8,)}


def frozen(blocks=4):
    x = convolution(sym.Variable("data"))
    for _ in range(blocks):
        x = convolution(normal(x, use_global_stats=True))
    return classified(x), {"data": (4, 3, 8, 8), "label": (4,)}


NETWORKS = [residual, dense, plain, dropping, recurrent, frozen]
LEAST = {residual: 0.5, dense: 0.6, plain: 0.45, dropping: 0.7, recurrent: 0.6, frozen: 0.7}
"""The budget of each network, as a fraction of its memory without recomputation."""


def bound(network, **settings):
    net, shapes = network
    requests = {name: "null" if name in shapes else "write" for name in net.list_arguments()}
    with mx.engine.using(**settings):
        return net.simple_bind(mx.cpu(), grad_req=requests, **shapes)


def trained(executor, steps=2):
    """Return the outputs, gradients and states after some steps."""
    rng = np.random.default_rng(0)
    for name, array in executor.arg_dict.items():
        array[:] = rng.integers(0, 4, array.shape) if name == "label" else rng.normal(size=array.shape) * 0.3
    for name, array in executor.aux_dict.items():
        array[:] = 1 if name.endswith("var") else 0
    mx.random.seed(1)
    actual = []
    for _ in range(steps):
        executor.forward(is_train=True)
        executor.backward()
        arrays = [*executor.outputs, *(g for g in executor.grad_arrays if g is not None), *executor.aux_arrays]
        actual += [array.asnumpy() for array in arrays]
    return actual


@cache
def expected(network):
    """Return the results of a network without recomputation, and its memory."""
    executor = bound(network())
    return trained(executor), executor.plan.internal_bytes()


def late(plan):
    return [node for node in plan.backward if LATE in node.attributes]


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_a_budget_is_kept_and_changes_no_bit(network):
    arrays, needed = expected(network)
    budget = int(LEAST[network] * needed)
    small = bound(network(), exec_memory_budget=budget)
    assert small.plan.internal_bytes() <= budget
    assert late(small.plan)
    assert same(trained(small), arrays)
    assert not same(arrays, [array + 1 for array in arrays]), "the comparison sees a difference"


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_mirroring_changes_no_bit(network):
    arrays, needed = expected(network)
    mirrored = bound(network(), backward_do_mirror=True)
    assert mirrored.plan.internal_bytes() <= needed
    assert same(trained(mirrored), arrays)


def test_mirroring_recomputes_cheap_results_and_keeps_convolutions():
    plan = bound(residual(12), backward_do_mirror=True).plan
    names = {node.op.name for node in late(plan)}
    assert names
    assert not any("Convolution" in name for name in names)
    assert plan.internal_bytes() <= 0.7 * bound(residual(12)).plan.internal_bytes()
    assert any("recomputed" in note for note in plan.graph.notes)


@pytest.mark.parametrize("key", ["force_mirroring", "__force_mirroring__"])
def test_a_node_can_be_forced(key):
    def network(**attributes):
        x = sym.FullyConnected(sym.Variable("data"), num_hidden=64)
        x = sym.FullyConnected(x, num_hidden=64, attr=attributes, name="again")
        return classified(x * x), {"data": (64, 16), "label": (64,)}

    assert not late(bound(network()).plan)
    forced = bound(network(**{key: "True"}))
    assert [node.name for node in late(forced.plan)] == ["again again"]
    assert same(trained(forced), trained(bound(network())))


def test_a_network_within_the_budget_is_not_changed():
    plan = bound(residual()).plan
    roomy = bound(residual(), exec_memory_budget=plan.internal_bytes()).plan
    assert not late(roomy)
    assert len(roomy.backward) == len(plan.backward)


def test_an_impossible_budget_names_the_smallest_possible_one():
    with pytest.raises(BudgetError, match=r"they take at least (\d+) bytes.*smaller batch") as caught:
        bound(residual(), exec_memory_budget=1000)
    assert isinstance(caught.value, MemoryError)
    least = int(str(caught.value).split("they take at least ")[1].split()[0])
    assert bound(residual(), exec_memory_budget=least).plan.internal_bytes() <= least
    with pytest.raises(BudgetError, match="FLOWMX_EXEC_ENABLE_INPLACE=1"):
        bound(residual(), exec_memory_budget=1000, exec_match_range=0)


def least(network):
    """Return the smallest budget in bytes that can be planned."""
    with pytest.raises(BudgetError) as caught:
        bound(network, exec_memory_budget=1)
    return int(str(caught.value).split("they take at least ")[1].split()[0])


def test_the_smallest_budget_grows_as_the_square_root_of_the_depth():
    short, long = (least(plain(layers)) for layers in (64, 256))
    assert long < 2.5 * short
    full = [bound(plain(layers)).plan.internal_bytes() for layers in (64, 256)]
    assert full[1] > 3.5 * full[0], "which is not so without recomputation"


def too_soon(backward):
    """Return the first copy that runs before a step that does not need it, or None."""
    waiting = []
    for node in backward:
        if LATE in node.attributes:
            waiting.append(node)
            continue
        needed, stack = set(), [node]
        while stack:
            for entry in stack.pop().inputs:
                if entry.node in waiting and entry.node not in needed:
                    needed.add(entry.node)
                    stack.append(entry.node)
        if len(needed) < len(waiting):
            return next(item for item in waiting if item not in needed)
        waiting = []
    return None


def test_each_copy_runs_just_before_it_is_needed():
    full = bound(residual(12)).plan.internal_bytes()
    backward = bound(residual(12), exec_memory_budget=full // 2).plan.backward
    assert too_soon(backward) is None
    copies = [node for node in backward if LATE in node.attributes]
    assert too_soon([*copies, *(node for node in backward if node not in copies)]) is not None


def test_random_operators_and_user_code_run_once():
    executor = bound(dropping(), exec_memory_budget=int(0.7 * bound(dropping()).plan.internal_bytes()))
    assert "Dropout" not in {node.op.name for node in executor.plan.backward}
    assert "_again_Dropout" in {node.op.name for node in executor.plan.backward}


def test_readers_of_variables_that_the_pass_writes_run_once():
    weight = sym.Variable("w")
    x = sym.exp(sym.FullyConnected(sym.Variable("data"), weight, num_hidden=64, no_bias=True))
    moved = sym.sgd_update(sym.BlockGrad(weight), sym.ones_like(sym.BlockGrad(weight)), lr=0.1)
    net = sym.Group([sym.sum(x * x), moved])
    plan = bound((net, {"data": (64, 64)}), backward_do_mirror=True).plan
    assert not any(node.op.name == "FullyConnected" for node in late(plan))


@pytest.mark.parametrize("name", sorted(set(RECOMPUTED) - {"Dropout"}))
@pytest.mark.parametrize("shape", [(4, 3, 5, 5), (8, 16, 16, 16), (32, 64)], ids=str)
@pytest.mark.parametrize("layout", ["plain", "channels last"])
def test_a_recomputed_normalization_is_identical_and_keeps_the_states(name, shape, layout):
    rng = np.random.default_rng(0)
    inputs = {"key": "k"} if "key" in lookup(name).parameters else {}
    op, again = (lookup(item).create(fix_gamma=False, **inputs) for item in (name, f"_again_{name}"))
    channels = shape[1]
    data = rng.normal(size=shape).astype(np.float32)
    if layout == "channels last":
        data = np.ascontiguousarray(np.moveaxis(data, 1, -1))
        data = np.moveaxis(data, -1, 1)
    parameters = [rng.random(channels).astype(np.float32) + 0.1 for _ in range(4)]
    run = Run(mx.devices.get(mx.cpu()), train=True)
    first, second = np.empty_like(data), np.empty_like(data)
    states = [item.copy() for item in parameters[2:]]
    forward_of(again, run.device)(run, [data, *parameters], [second])
    np.testing.assert_array_equal(parameters[2:], states)
    others = [np.empty(channels, np.float32), np.empty(channels, np.float32), np.empty(1, np.float32)]
    forward_of(op, run.device)(run, [data, *parameters], [first, *others])
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(parameters[2], states[0])


def test_time_grows_with_the_number_of_nodes():
    elapsed = []
    for layers in (50, 200):
        full = bound(plain(layers)).plan.internal_bytes()
        start = time.process_time()
        bound(plain(layers), exec_memory_budget=full // 3)
        elapsed.append((time.process_time() - start) / layers)
    assert elapsed[1] < 3 * elapsed[0]


def test_a_forced_node_that_is_not_needed_again_is_reported():
    x = sym.FullyConnected(sym.Variable("data"), num_hidden=64, attr={"force_mirroring": "True"}, name="again")
    plan = bound((classified(sym.exp(x)), {"data": (64, 16), "label": (64,)})).plan
    assert not late(plan)
    assert "nothing is recomputed: the backward pass reads none" in plan.explain()
